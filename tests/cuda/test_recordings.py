"""What a recorded step depends on, and what recording leaves as it was; needs no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from tests.common import batches, gradient_filter, mlp, train
from torch import Tensor, nn

import orderless as ol
from orderless.cuda.compiled import CompiledStep, Rates


@dataclass
class Tempered(ol.Weighting):
    """A plain dataclass, which cannot be hashed."""

    factor: float = 0.1

    def __call__(self, step: object) -> Tensor:
        return -self.factor * step.energy_before


def filter_and_penalty() -> tuple[ol.GradientFilter, ol.EWC]:
    particles = ol.Ensemble(lambda: nn.Linear(3, 2), n=2)
    optimizer = torch.optim.SGD(particles.parameters(), lr=0.1)
    pf = ol.GradientFilter(particles, optimizer, weighting=Tempered())
    ewc = ol.EWC(particles)
    pf.register(ewc)
    return pf, ewc


CHANGES: dict[str, Callable[[ol.GradientFilter, ol.EWC], object]] = {
    "a task that ends": lambda pf, ewc: ewc.end_task((torch.ones(4, 3), torch.arange(4) % 2)),
    "the weighting": lambda pf, ewc: setattr(pf.weighting, "factor", 0.2),
    "clipping": lambda pf, ewc: setattr(pf, "max_grad_norm", 1.0),
    "another penalty": lambda pf, ewc: pf.register(ol.SI(pf.particles)),
    "another way": lambda pf, ewc: pf.register(ewc, closed=False),
    "what is weighed": lambda pf, ewc: setattr(pf, "weigh_penalty", True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_compiled_step_looks_at_what_it_depends_on(name: str, monkeypatch) -> None:
    """On a CPU, where the steps before a recording need no stream and a recording is an error."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(
        CompiledStep, "_eager", lambda self, batch: self.filter.step(self.closures(batch)[0])
    )
    pf, ewc = filter_and_penalty()
    loss = ol.per_particle(nn.functional.cross_entropy)
    step = CompiledStep(pf, lambda x, y: loss(pf.particles(x), y), None)
    batch = torch.ones(4, 3), torch.arange(4) % 2
    step(*batch)
    CHANGES[name](pf, ewc)
    step(*batch)  # the first one of another recording; it would be recorded otherwise
    assert len(step._graphs) == 2


KINDS = {
    "weighted": gradient_filter,
    "averaging": partial(gradient_filter, kind=ol.AveragingParticles),
    "gradient descent": partial(gradient_filter, n=1, kind=ol.GradientDescent),
    "bootstrap": lambda: ol.BootstrapParticleFilter(ol.Ensemble(mlp, 3), perturbation=0.1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_leave_the_settings_as_they_are(kind):
    """Otherwise every step would be recorded anew."""
    pf = KINDS[kind]()
    before = {pf.recorded_settings()}
    train(pf, batches(3))
    assert pf.recorded_settings() in before


def test_a_consolidation_in_the_place_of_another_is_another_setting():
    """Also where Python gives the new one the old one's place in memory."""
    pf, _ = filter_and_penalty()
    seen = set()
    for _ in range(5):
        pf.hooks.clear()
        pf.register(ol.EWC(pf.particles))
        seen.add(repr(pf.recorded_settings()))
    assert len(seen) == 5


def test_another_perturbation_is_another_setting():
    pf, equal, other = (
        ol.BootstrapParticleFilter(ol.Ensemble(mlp, 2), perturbation=radius)
        for radius in (0.1, 0.1, 0.2)
    )
    before = pf.recorded_settings()
    pf.perturbation = equal.perturbation
    assert pf.recorded_settings() == before
    pf.perturbation = other.perturbation
    assert pf.recorded_settings() != before


OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), True),
    "adamw": (lambda p: torch.optim.AdamW(p, 0.1, foreach=True), True),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, 0.1), True),
    "adagrad": (lambda p: torch.optim.Adagrad(p, 0.1), False),  # it counts steps on the host
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_is_as_its_owner_made_it(name: str) -> None:
    make, can_be_recorded = OPTIMIZERS[name]
    optimizer = make(nn.Linear(3, 2).parameters())
    before = [dict(group) for group in optimizer.param_groups]
    rates = Rates(optimizer, torch.device("cpu"))
    fixed = rates.update()
    with pytest.raises(KeyError), rates.set_up():
        for group, rate in zip(optimizer.param_groups, rates.static, strict=True):
            assert (group["lr"] is rate) == (fixed == ())
            assert group.get("capturable", True)
        raise KeyError
    assert [dict(group) for group in optimizer.param_groups] == before
    assert rates.can_be_recorded == can_be_recorded
    assert fixed == (() if name in ("sgd", "adamw") else (0.1,))
    assert fixed or float(rates.static[0]) == pytest.approx(0.1)


def test_a_scheduler_changes_the_rate_in_place() -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), 0.1)
    rates = Rates(optimizer, torch.device("cpu"))
    static = rates.static[0]
    optimizer.param_groups[0]["lr"] = 0.05
    assert rates.update() == () and float(static) == pytest.approx(0.05)
