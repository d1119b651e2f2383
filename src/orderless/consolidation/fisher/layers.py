"""Squared per-sample gradients of Linear and Conv2d layers, from their inputs and output gradients.

A torch-function mode stands between a network and `F.linear` / `F.conv2d`: it notes the inputs and
adds a probe (zeros) to the outputs. The gradient with respect to a probe is delta, for every sample
apart, and the layer's own parameters need no gradient at all.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Named = dict[str, Tensor]
SMALL = 1 << 22  # at most this many numbers at once are no memory worth saving


@dataclass(frozen=True)
class Layer:
    """A layer that meets each sample once: names of its parameters, shape of one sample's output.

    `patches` is what `F.unfold` takes after the inputs of a convolution; None: a Linear layer.
    """

    weight: str
    bias: str | None
    output: torch.Size
    dtype: torch.dtype
    patches: tuple[Any, ...] | None

    def add_squares(self, totals: Named, delta: Tensor, inputs: Tensor) -> None:
        """totals += sum over samples of squared gradients; delta, inputs `[N, B, ...]`."""
        weight = totals.get(self.weight)
        bias = None if self.bias is None else totals.get(self.bias)
        delta = delta.to((weight if weight is not None else inputs).dtype)
        if self.patches is None:
            if weight is not None:
                weight.baddbmm_(delta.square().mT, inputs.to(delta.dtype).square())
            if bias is not None:
                bias.add_(delta.square().sum(1))
            return
        self._add_convolved(weight, bias, delta, inputs)

    def _add_convolved(
        self, weight: Tensor | None, bias: Tensor | None, delta: Tensor, inputs: Tensor
    ) -> None:
        """Sums over positions are squared: the gradients of a few samples at a time are made."""
        assert self.patches is not None
        n, samples = delta.shape[:2]
        if bias is not None:
            bias.add_(delta.flatten(3).sum(3).square().sum(1))
        if weight is None:
            return
        positions = delta[0, 0, 0].numel()
        largest = max(weight.numel(), n * (weight[0, 0].numel() + delta.shape[2]) * positions)
        chunk = max(1, SMALL // largest)
        for start in range(0, samples, chunk):
            part = slice(start, start + chunk)
            rows = delta[:, part].flatten(0, 1).flatten(2)
            seen = F.unfold(inputs[:, part].flatten(0, 1).to(delta.dtype), *self.patches)
            gradients = torch.bmm(rows, seen.mT).view(n, -1, *weight.shape[1:])
            weight.add_(gradients.square_().sum(1))


class LayerProbes(TorchFunctionMode):
    """Notes what passes through a network's layers. `names`: id of a parameter -> its name.

    With `probes` it adds them to the outputs of the layers they are named after and keeps those
    layers' `inputs`. Without, it collects in `found` every call that could be a `Layer` for a batch
    of `samples`.
    """

    def __init__(self, names: dict[int, str], samples: int, probes: Named | None = None) -> None:
        super().__init__()
        self.names, self.samples, self.probes = names, samples, probes
        self.inputs: Named = {}
        self.found: list[Layer] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func is F.conv2d:
            return self._conv2d(*args, **kwargs)
        return func(*args, **kwargs)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not self._meets_samples_once(x, 2, weight, bias):
            return F.linear(x, weight, bias)
        y = F.linear(x, weight.detach(), None if bias is None else bias.detach())
        return self._note(x, y, weight, bias, None)

    def _conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        options = stride, padding, dilation, groups
        simple = groups == 1 and not isinstance(padding, str)
        if not (simple and self._meets_samples_once(x, 4, weight, bias)):
            return F.conv2d(x, weight, bias, *options)
        y = F.conv2d(x, weight.detach(), None if bias is None else bias.detach(), *options)
        return self._note(x, y, weight, bias, (weight.shape[-2:], dilation, padding, stride))

    def _meets_samples_once(
        self, x: Tensor, dims: int, weight: Tensor, bias: Tensor | None
    ) -> bool:
        """Whether this is a call with one row (or image) per sample, on parameters we know."""
        if bias is not None and id(bias) not in self.names:
            return False
        name = self.names.get(id(weight))
        if name is None or x.dim() != dims or x.shape[0] != self.samples:
            return False
        return self.probes is None or name in self.probes

    def _note(
        self,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        patches: tuple[Any, ...] | None,
    ) -> Tensor:
        name = self.names[id(weight)]
        if self.probes is not None:
            self.inputs[name] = x.detach()
            return y + self.probes[name]
        bias_name = None if bias is None else self.names[id(bias)]
        self.found.append(Layer(name, bias_name, y.shape[1:], y.dtype, patches))
        return y
