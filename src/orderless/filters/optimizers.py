"""Checks of optimizers and their states."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ..ensemble import Ensemble

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


def is_plain_descent(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer.step()` computes x <- x - lr g and nobody else listens to it."""
    step = inspect.unwrap(getattr(optimizer.step, "__func__", optimizer.step))
    listened = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    return (
        type(optimizer) is torch.optim.SGD
        and step is inspect.unwrap(torch.optim.SGD.step)
        and not any(listened)
        and not any(
            group[option]
            for group in optimizer.param_groups
            for option in ("momentum", "weight_decay", "maximize", "differentiable")
        )
    )


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
