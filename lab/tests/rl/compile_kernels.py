"""Compile the kernels for a GPU that is not there, with the sizes of IMPALA's layers.

A script, because the tests' own process runs Triton's interpreter, which accepts more than the
compiler does.
"""

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from orderless_lab.rl.kernels import convolution, triton_kernels

HOPPER = GPUTarget("cuda", 90, 32)
SIZES = {"patches": "i32", "positions": "i32", "channels": "i32"}
POOLING = {"FROM_H": 64, "FROM_W": 64, "TO_H": 32, "TO_W": 32, "ROWS": 16, "COLUMNS": 128,
           "REMEMBER": True}  # fmt: skip
BYTES = {"winners": "*u8"}


def build(kernel, types, constants):
    names = kernel.arg_names
    types = {name: types.get(name) or SIZES.get(name) or "*bf16" for name in names}
    known = {name: value for name, value in constants.items() if name in names}
    signature = types | dict.fromkeys(known, "constexpr")
    places = {(names.index(name),): value for name, value in known.items()}
    compile(ASTSource(kernel, signature, places), target=HOPPER)


for inputs, outputs, side in ((3, 128, 64), (16, 16, 32), (16, 32, 32), (32, 32, 8)):
    for kernel, tile in (
        (triton_kernels.convolve, convolution._tile(inputs, outputs)),
        (triton_kernels.filters, convolution._filter_tile(inputs, outputs)),
    ):
        constants = {"N": 8, "IN": inputs, "OUT": outputs, "H": side, "W": side,
                     "HAS_BIAS": True, "PRECISION": "tf32", "HIGH": tile.patch[0],
                     "WIDE": tile.patch[1], "SPAN": tile.span, "SHARE": 1024, "ROWS": tile.rows,
                     "INNER": min(tile.inner, 256), "COLUMNS": tile.columns}  # fmt: skip
        result = "*fp32" if kernel is triton_kernels.filters else "*bf16"
        build(kernel, {"bias": "*fp32", "result": result}, constants)
build(triton_kernels.largest, BYTES, POOLING)
build(triton_kernels.to_winners, BYTES, POOLING)
