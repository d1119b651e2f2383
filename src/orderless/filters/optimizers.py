"""What filters do with any optimizer: check it, read and clip gradients, keep its state."""

from typing import Any

import torch
from torch import Tensor

from ..ensemble import Ensemble
from ..ensemble.parameter import inner_products, per_particle_view, squared_norms
from .base import copied

# They use statistics of a whole tensor, which would mix the steps of stacked networks.
WHOLE_TENSORS = (torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Muon)


def check_optimizer(optimizer: torch.optim.Optimizer, particles: Ensemble) -> None:
    """Raise if an optimizer cannot move these particles independently of each other."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {kind}")
    base = getattr(optimizer, "base", optimizer)  # of an ol.TRAC
    if isinstance(base, WHOLE_TENSORS):
        raise ValueError(
            f"{type(base).__name__} would mix stacked networks with each other: use an "
            "optimizer that moves every number by itself, such as SGD or Adam"
        )
    ours = {id(p) for p in particles.parameters()}
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if id(parameter) not in ours:
            raise ValueError(
                f"the optimizer holds a parameter of shape {tuple(parameter.shape)} that is "
                "not the particles': build it from particles.parameters()"
            )


def clear_gradients(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.zero_grad()`, which takes ten times as long for small networks."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()`; not where everything has moved already and nobody wraps `step`."""
    if moving(optimizer) or "step" in vars(optimizer) or type(optimizer) is not torch.optim.SGD:
        optimizer.step()


def moving(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters that have a gradient."""
    groups = optimizer.param_groups
    return [p for group in groups for p in group["params"] if p.grad is not None]


def gradients_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients of `moving`."""
    return [p.grad for p in moving(optimizer) if p.grad is not None]


@torch.no_grad()
def clip_gradients(optimizer: torch.optim.Optimizer, max_norm: float | None) -> None:
    """Scale each particle's gradient to a norm of at most `max_norm`."""
    if max_norm is None:
        return
    gradients = gradients_of(optimizer)
    norms = squared_norms(gradients).sqrt()
    clip = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(per_particle_view(clip.to(gradient.dtype), gradient))


class Tangent:
    """Where the particles stood and their gradient there, to first order the loss around them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.parameters = moving(optimizer)
        self.start = [p.detach().clone() for p in self.parameters]
        self.gradients = [gradient.clone() for gradient in gradients_of(optimizer)]

    def slope(self) -> Tensor:
        """<gradient, x_new - x_old> per particle `[N]`, for the actual displacement, float64."""
        pairs = zip(self.parameters, self.start, strict=True)
        return inner_products(self.gradients, [p.detach() - start for p, start in pairs])


def move_state(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Move what the optimizer remembers to a device; step counts stay where they are."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() > 0:
                state[name] = value.to(device)


def load_state(optimizer: torch.optim.Optimizer, state: Any, device: torch.device) -> None:
    """Load a copy of a state: torch's optimizers keep the tensors they are given."""
    optimizer.load_state_dict(copied(state))
    if device.type != "cuda":
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = False  # a state from a GPU may be set up for recording


def check_state(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Raise `ValueError` if a state is not of such an optimizer over these parameters."""
    given = state if isinstance(state, dict) else {}
    alike = _form(given.get("param_groups")) == _form(optimizer.state_dict()["param_groups"])
    sizes = [tuple(p.shape) for group in optimizer.param_groups for p in group["params"]]
    states = given.get("state")
    known = isinstance(states, dict) and all(_fits(*each, sizes) for each in states.items())
    if not (alike and known):
        raise ValueError(
            f"this state is of another optimizer than {type(optimizer).__name__} "
            "over these parameters: its parameter groups or tensors differ"
        )


def _form(value: Any) -> Any:
    """The kind of an option's value; `foreach` and the like are True, False or None."""
    if isinstance(value, dict):
        return {name: _form(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_form(each) for each in value]
    if value is None or isinstance(value, bool):
        return "switch"
    number = isinstance(value, int | float) or (isinstance(value, Tensor) and value.dim() == 0)
    return "number" if number else type(value)


def _fits(number: Any, values: Any, sizes: list[tuple[int, ...]]) -> bool:
    """Whether a parameter's state has the right shapes; an `ol.TRAC` checks its own."""
    if not isinstance(number, int):
        return True
    if not (isinstance(values, dict) and 0 <= number < len(sizes)):
        return False
    return all(
        tuple(v.shape) in ((), sizes[number]) if isinstance(v, Tensor) else _form(v) == "number"
        for v in values.values()
    )
