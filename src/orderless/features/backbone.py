"""Features of a frozen network, pre-trained elsewhere, and a cache for those of a data set."""

import copy
import hashlib
import math
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..ensemble.initialization import seeded
from ..ensemble.precision import matrix_precision, one_thread, same_kernels
from ..io import user_cache, write_atomically
from .leaves import dead_leaves
from .relu import RandomReLU

_PORTION = 512  # samples between two reports of progress
_INPUT_LIMIT = 8.0  # of the projection, in deviations of the backbone's outputs


class Frozen:
    """A network that is shared, and never trained, copied, stacked or saved.

    It is no `nn.Module`, so an `Ensemble` of modules that use it neither resets nor stacks it.
    """

    def __init__(self, module: nn.Module, taps: Sequence[str]) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"a backbone is an nn.Module, got {type(module).__name__}")
        self.taps = (taps,) if isinstance(taps, str) else tuple(taps)
        self.scales: tuple[float, ...] = ()  # a `Backbone` measures them
        known = dict(module.named_modules())
        if len(set(self.taps)) < len(self.taps):
            raise ValueError(f"taps must be different parts, got {', '.join(self.taps)}")
        for tap in self.taps:
            if tap not in known:
                names = ", ".join(name for name in known if name.count(".") < 2 and name)
                raise ValueError(f"the backbone has no part {tap!r} to tap; there are {names}")
        own = copy.deepcopy(module).cpu().eval().requires_grad_(False)
        self._copies = {torch.device("cpu"): own}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def on(self, device: torch.device) -> nn.Module:
        """The network on a device; the copy is kept."""
        if device not in self._copies:
            self._copies[device] = copy.deepcopy(self._copies[torch.device("cpu")]).to(device)
        return self._copies[device]

    @contextmanager
    def tapped(self, device: torch.device) -> Iterator[Callable[[Tensor], list[Tensor]]]:
        """A function, for several threads, from inputs to the pooled output `[B, C]` of each tap,
        or of the network if there are none."""
        module = self.on(device)
        parts = [module.get_submodule(tap) for tap in self.taps]
        found: dict[tuple[int, nn.Module], object] = {}

        def keep(part: nn.Module, inputs: object, output: object) -> None:
            found[threading.get_ident(), part] = output

        def pooled(x: Tensor) -> list[Tensor]:
            output, me = module(x), threading.get_ident()
            for tap, part in zip(self.taps, parts, strict=True):
                if (me, part) not in found:  # such as a list of layers
                    raise ValueError(f"the backbone does not call its part {tap!r}: tap another")
            outputs = [found.pop((me, part)) for part in parts] or [output]
            return [_pooled(output).float() for output in outputs]

        with ExitStack() as hooks:
            for part in parts:
                hooks.enter_context(part.register_forward_hook(keep))
            yield pooled

    def joined(self, parts: list[Tensor]) -> Tensor:
        """Concatenate the taps, each divided by its scale."""
        pairs = zip(parts, self.scales, strict=True)
        return torch.cat([part / scale for part, scale in pairs], dim=1)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the architecture, the weights, the taps and their scales."""
        module = self._copies[torch.device("cpu")]
        digest = hashlib.sha256(repr((module, self.taps, self.scales)).encode())
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


class Backbone(nn.Module):
    """Features of a frozen network: pooled outputs of some of its parts, then random ReLUs.

        f(x) = [mean over space of part_t(x) / s for t in taps]    averaged over x and its mirror
        phi(x) = max(W f(x), 0)              W ~ N(0, 1 / number of features), exact on its grid

    The scale s is the standard deviation of all these outputs on dead-leaves images, rounded to a
    power of two. No data is used, and a scale per feature or per tap would be worse.

    The network is shared: an `Ensemble` draws a projection per particle and runs the network once.
    It runs in evaluation mode, in blocks of fixed size, without TF32 and without cuDNN's autotuner;
    on a CPU with one thread per block, several blocks at a time. So features have the same bits in
    any batch and order on the same machine, device and build of torch (`conditions`), but not
    elsewhere: `exact` is False.

    Args:
        module: any network. It is copied, so that later training does not change the features.
        taps: names of its parts (`module.named_modules()`) whose outputs are the features; by
            default the network's own output. `[B, C, H, W]` is averaged over H and W, `[B, T, C]`
            over T, and of several outputs the first is used.
        project: the number of random ReLU features of f(x); None for f(x) itself.
        mirror: average f over the image and its mirror image (the last axis reversed).
        inputs: synthetic inputs on which the scale is measured; by default dead-leaves images
            `[64, 3, 224, 224]` of mean 0 and deviation 1.
        scales: the standard deviations, if known: one per tap.
    """

    exact = False
    blocks_itself = True  # batches need no padding by the filter

    def __init__(
        self,
        module: nn.Module,
        *,
        taps: Sequence[str] = (),
        project: int | None = None,
        mirror: bool = False,
        inputs: Tensor | None = None,
        scales: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.mirror = mirror
        self._frozen = Frozen(module, taps)
        if inputs is None:
            with seeded("backbone"):  # colours are uniform on 0..255
                inputs = (dead_leaves(64, 224).float() - 127.5) / 74.0
        try:
            with self._frozen.tapped(inputs.device) as network:
                measured = network(inputs)
        except RuntimeError as error:
            raise ValueError(
                f"the backbone cannot take inputs of shape {list(inputs.shape)}: give a few "
                f"made-up ones of the right shape as inputs= ({error})"
            ) from error
        if scales is None:
            scales = [torch.cat(measured, dim=1).double().std().item()] * len(measured)
        if len(scales) != len(measured) or not all(0.0 < s < float("inf") for s in scales):
            raise ValueError(f"{len(measured)} taps need a positive scale each, got {scales}")
        self._frozen.scales = tuple(2.0 ** round(math.log2(scale)) for scale in scales)
        self.in_features = sum(part.shape[1] for part in measured)
        self.out_features = self.in_features if project is None else project
        self.projection = None
        if project is not None:
            self.projection = RandomReLU(
                self.in_features, project, bias_scale=0.0, input_limit=_INPUT_LIMIT
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.projected(self.pooled(x))

    def projected(self, features: Tensor) -> Tensor:
        """phi from f(x), which all maps of an ensemble have in common."""
        return features if self.projection is None else self.projection(features)

    @torch.no_grad()
    def pooled(self, x: Tensor) -> Tensor:
        """f(x): `[B, in_features]`, float32."""
        features = self._run(x)
        return (features + self._run(x.flip(-1))) / 2.0 if self.mirror else features

    def _run(self, x: Tensor) -> Tensor:
        """Run the network in blocks of one size, the last one padded, so by the same kernels."""
        size = 256 if x.is_cuda else 8
        with self._frozen.tapped(x.device) as network:
            if torch.compiler.is_exporting():  # to a program for batches of any size
                return self._frozen.joined(network(x))
            if not len(x):  # there is no sample to fill a block with
                return torch.empty(0, self.in_features, device=x.device)

            @torch.no_grad()  # in every thread
            def features(part: Tensor) -> Tensor:
                filled = torch.cat([part, part[:1].expand(size - len(part), *part.shape[1:])])
                return self._frozen.joined(network(filled))[: len(part)]

            with same_kernels(), matrix_precision("float32", x.device):
                return torch.cat(_side_by_side(features, x.split(size)))

    def fingerprint(self, device: torch.device | str = "cpu") -> str:
        """A description of everything that the bits of f depend on: network and `conditions`."""
        return f"network {self._frozen.checksum[:16]} on {conditions(torch.device(device))}"

    def extra_repr(self) -> str:
        return f"{self._frozen.checksum[:16]}, mirror={self.mirror}"


def _side_by_side(function: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    """Apply a function to each part. On a CPU as many run at a time as torch has threads, with one
    thread each, so that results do not depend on the number of threads."""
    threads = 1 if parts[0].is_cuda else min(torch.get_num_threads(), len(parts))
    with one_thread():
        if threads == 1:
            return [function(part) for part in parts]
        with ThreadPoolExecutor(threads, "", torch.set_num_threads, (1,)) as pool:
            return list(pool.map(function, parts))


def conditions(device: torch.device) -> str:
    """Everything besides inputs that the bits of floating-point kernels depend on."""
    build = hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:8]
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return f"{device.type} ({machine}), torch {torch.__version__} ({build})"


def _processor() -> str:
    """The processor's model and the vector instructions that torch uses on it."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = (line for line in file if line.startswith("model name"))
            model = next(lines, "").partition(":")[2]
    except OSError:
        model = platform.processor()
    return f"{platform.machine()} {model.strip()} {torch.backends.cpu.get_cpu_capability()}"


def _pooled(output: object) -> Tensor:
    tensor: Tensor = next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
    if tensor.dim() == 3:
        return tensor.mean(1)
    return tensor.mean(tuple(range(2, tensor.dim()))) if tensor.dim() > 3 else tensor.flatten(1)


def on_terminal(done: int, total: int) -> None:
    """Show progress if stderr is a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\rfeatures of {done} of {total} samples", end=end, file=sys.stderr, flush=True)


@torch.no_grad()
def cached(
    backbone: Backbone, x: Tensor, progress: Callable[[int, int], None] = on_terminal
) -> Tensor:
    """`backbone(x)`, from the user's cache if it was computed before under the same conditions.

    The file's name is a hash of the backbone's fingerprint, its projection and x. `progress` is
    called with the samples so far and in all.
    """
    digest = hashlib.sha256(backbone.fingerprint(x.device).encode())
    digest.update(repr((backbone, x.dtype, tuple(x.shape))).encode())
    for part in (*backbone.state_dict().values(), *x.split(4096)):
        digest.update(part.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    file = user_cache() / "features" / f"{digest.hexdigest()}.safetensors"
    if file.is_file():
        with suppress(SafetensorError, KeyError):  # damaged: compute and write it again
            return load_file(file)["features"].to(x.device)
    parts, done = [], 0
    for part in x.split(_PORTION):
        parts.append(backbone(part).cpu())
        done += len(part)
        progress(done, len(x))
    features = torch.cat(parts)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, save({"features": features}))
    return features.to(x.device)
