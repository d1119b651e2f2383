"""Features of a frozen network, pre-trained elsewhere, and a cache for those of a data set."""

import copy
import hashlib
import math
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..ensemble.device import matrix_precision, one_thread, same_kernels
from ..ensemble.initialization import seeded
from ..errors import DataError
from ..io import digest, load, save, user_cache
from .exact import RandomReLU, dead_leaves

_PORTION = 512  # samples whose features are on the device at once
_INPUT_LIMIT = 8.0  # of the projection, in deviations of the backbone's outputs


class Frozen:
    """A network that is shared, and never trained, copied, stacked or saved.

    It is no `nn.Module`, so an `Ensemble` of modules that use it neither resets nor stacks it.
    """

    def __init__(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"a backbone is an nn.Module, got {type(module).__name__}")
        self.original = copy.deepcopy(module).cpu().eval().requires_grad_(False)
        self._copies = {torch.device("cpu"): self.original}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """Pooled outputs `[B, C]`; the copy on a device is kept."""
        if x.device not in self._copies:
            self._copies[x.device] = copy.deepcopy(self.original).to(x.device)
        outputs = self._copies[x.device](x)
        several = outputs if isinstance(outputs, list) else [outputs]
        return torch.cat([_pooled(output).float() for output in several], dim=1)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the architecture and the weights."""
        return digest([repr(self.original), dict(self.original.state_dict())])


class Backbone(nn.Module):
    """Features of a frozen network: its pooled outputs, then random ReLUs.

        f(x) = mean over space of network(x) / s        averaged over x and its mirror image
        phi(x) = max(W f(x), 0)              W ~ N(0, 1 / number of features), exact on its grid

    The scale s is the standard deviation of all these outputs on dead-leaves images, rounded to a
    power of two. No data is used, and a scale per feature would be worse.

    The network is shared: an `Ensemble` draws a projection per particle and runs the network once.
    It runs in evaluation mode, in blocks of fixed size, without TF32 and without cuDNN's autotuner;
    on a CPU with one thread per block, several blocks at a time. So features have the same bits in
    any batch and order on the same machine, device and build of torch (`conditions`), but not
    elsewhere: `exact` is False.

    Args:
        module: any network. It is copied, so that later training does not change the features. Of
            a list of outputs, such as those of timm's `features_only=True`, all are used, of
            several outputs in another form the first. `[B, C, H, W]` is averaged over H and W,
            `[B, T, C]` over T.
        project: the number of random ReLU features of f(x); None for f(x) itself.
        mirror: average f over the image and its mirror image (the last axis reversed).
        inputs: synthetic inputs on which the scale is measured; by default dead-leaves images
            `[64, 3, 224, 224]` of mean 0 and deviation 1.
        scale: the standard deviation, if it is known.

    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    >>> maps = Backbone(network, inputs=torch.rand(4, 3, 8, 8), project=100)
    >>> maps(torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 100])
    """

    exact = False
    blocks_itself = True  # batches need no padding by the head

    def __init__(
        self,
        module: nn.Module,
        *,
        project: int | None = None,
        mirror: bool = False,
        inputs: Tensor | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.mirror = mirror
        self._frozen = Frozen(module)
        if inputs is None:
            with seeded("backbone"):  # colours are uniform on 0..255
                inputs = (dead_leaves(64, 224).float() - 127.5) / 74.0
        try:
            with torch.no_grad():
                measured = self._frozen(inputs)
        except RuntimeError as error:
            raise ValueError(
                f"the backbone cannot take inputs of shape {list(inputs.shape)}: give a few "
                f"made-up ones of the right shape as inputs= ({error})"
            ) from error
        deviation = measured.double().std().item() if scale is None else scale
        if not 0.0 < deviation < float("inf"):
            raise ValueError(f"the outputs of a backbone need a positive scale, got {deviation}")
        self.scale = 2.0 ** round(math.log2(deviation))
        self.in_features = measured.shape[1]
        self.out_features = self.in_features if project is None else project
        self.projection = None
        if project is not None:
            self.projection = RandomReLU(
                self.in_features, project, bias_scale=0.0, input_limit=_INPUT_LIMIT
            )

    def forward(self, x: Any) -> Tensor:
        return self.projected(self.pooled(self.as_tensor(x)))

    def as_tensor(self, x: Tensor) -> Tensor:
        """What the network takes, from what the map takes; see `Sentences`."""
        return x

    def projected(self, features: Tensor) -> Tensor:
        """phi from f(x), which all maps of an ensemble have in common."""
        return features if self.projection is None else self.projection(features)

    @torch.no_grad()
    def pooled(self, x: Tensor) -> Tensor:
        """f(x): `[B, in_features]`, float32."""
        features = self._run(x)
        if self.mirror:
            features = (features + self._run(x.flip(-1))) / 2.0
        return features / self.scale

    def _run(self, x: Tensor) -> Tensor:
        """Run the network in blocks of one size, the last one padded, so by the same kernels."""
        size = 256 if x.is_cuda else 8
        if torch.compiler.is_exporting():  # to a program for batches of any size
            return self._frozen(x)
        if not len(x):  # there is no sample to fill a block with
            return torch.empty(0, self.in_features, device=x.device)

        @torch.no_grad()  # in every thread
        def features(part: Tensor) -> Tensor:
            filled = torch.cat([part, part[:1].expand(size - len(part), *part.shape[1:])])
            return self._frozen(filled)[: len(part)]

        with same_kernels(), matrix_precision("float32", x.device):
            return torch.cat(_side_by_side(features, x.split(size)))

    def fingerprint(self, device: torch.device | str = "cpu") -> str:
        """A description of everything that the bits of f depend on: network and `conditions`."""
        return f"network {self._frozen.checksum[:16]} on {conditions(torch.device(device))}"

    def extra_repr(self) -> str:
        return f"{self._frozen.checksum[:16]}, scale={self.scale}, mirror={self.mirror}"


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
    """The first tensor of an output, averaged over space or time: `[B, C]`."""
    tensor: Tensor = next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
    if tensor.dim() == 3:
        return tensor.mean(1)
    return tensor.mean(tuple(range(2, tensor.dim()))) if tensor.dim() > 3 else tensor.flatten(1)


@torch.no_grad()
def cached(backbone: Backbone, x: Any) -> Tensor:
    """`backbone(x)`, from the user's cache if it was computed before under the same conditions.

    The file's name is a hash of the backbone's fingerprint, its projection and x.
    """
    x = backbone.as_tensor(x)
    state = dict(backbone.state_dict())
    name = digest([backbone.fingerprint(x.device), repr(backbone), state, x])
    file = user_cache() / "features" / f"{name}.safetensors"
    with suppress(DataError, FileNotFoundError):  # damaged: compute and write it again
        features: Tensor = load(file)["features"]
        return features.to(x.device)
    features = torch.cat([backbone(part).cpu() for part in x.split(_PORTION)])
    file.parent.mkdir(parents=True, exist_ok=True)
    save(file, {"features": features})
    return features.to(x.device)
