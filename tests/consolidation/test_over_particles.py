"""What every consolidation owes: independence of N, filters, optimizers, and resuming."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import orderless as ol
from orderless.consolidation import EWC, SI, LwF

LOSS = ol.per_particle(F.cross_entropy)
METHODS = {
    "ewc": lambda p: EWC(p, 50.0),
    "online": lambda p: EWC(p, 50.0, fisher="empirical", mode="online", decay=0.5),
    "si": lambda p: SI(p, 20.0),
    "lwf": lambda p: LwF(p, 2.0),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p.parameters(), lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p.parameters(), lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p.parameters(), lr=0.01),
}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def task(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    return x, (x[:, number % 3] > 0).long()


class Learner:
    """Registers the penalty and passes it to every step, unless told."""

    def __init__(
        self,
        ensemble: ol.Ensemble,
        method: str,
        optimizer: str = "sgd",
        passes: bool = True,
        **register: bool,
    ) -> None:
        self.ensemble = ensemble
        self.consolidation = METHODS[method](ensemble)
        self.filter = ol.WeightedParticleFilter(ensemble, OPTIMIZERS[optimizer](ensemble))
        self.filter.register(self.consolidation, **register)
        self.passes = passes

    def steps(self, number: int, count: int) -> torch.Tensor:
        x, y = task(number)
        penalty = (lambda: self.consolidation.penalty(x)) if self.passes else None
        for _ in range(count):
            info = self.filter.step(lambda: LOSS(self.ensemble(x), y), penalty=penalty)
        return info.penalty

    def learn(self, number: int) -> torch.Tensor:
        penalty = self.steps(number, 4)
        self.consolidation.end_task(task(number))
        return penalty


@pytest.mark.parametrize("method", METHODS)
def test_particle_i_has_the_same_penalty_alone_as_one_of_many(method):
    together = ol.Ensemble(network, 3, seed=2).double()
    alone = [ol.Ensemble.from_modules([together[i]]) for i in range(3)]
    group = Learner(together, method)
    expected = torch.stack([group.learn(number) for number in range(3)])
    assert expected[1:].abs().min() > 0
    for i, single in enumerate(alone):
        learner = Learner(single, method)
        ours = torch.cat([learner.learn(number) for number in range(3)])
        torch.testing.assert_close(ours, expected[:, i])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_the_step_sees_the_penalty_and_the_weights_do_not(method, optimizer):
    """As a term of the gradient, against torch alone; test_closed_steps.py has the other way."""
    ensemble = ol.Ensemble(network, 3, seed=2).double()
    learner = Learner(ensemble, method, optimizer, closed=None if method == "lwf" else False)
    learner.learn(0)
    learner.steps(1, 1)
    x, y = task(1)
    by_hand = copy.deepcopy(ensemble)
    plain = OPTIMIZERS[optimizer](by_hand)
    plain.load_state_dict(copy.deepcopy(learner.filter.optimizer.state_dict()))
    total = LOSS(ensemble(x), y) + learner.consolidation.penalty(x)
    gradients = torch.autograd.grad(total.sum(), list(ensemble.parameters()))
    for parameter, gradient in zip(by_hand.parameters(), gradients, strict=True):
        parameter.grad = gradient
    plain.step()
    before = learner.filter.raw_log_weights.clone()

    info = learner.filter.step(lambda: LOSS(ensemble(x), y))
    assert info.penalty.abs().min() > 0
    for ours, theirs in zip(ensemble.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    energy = (info.loss_before.double() + info.loss_after.double()) / 2
    expected = torch.log_softmax(before - energy, 0)
    torch.testing.assert_close(learner.filter.raw_log_weights, expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_registering_is_enough_and_passing_it_too_counts_once(method, optimizer):
    """As a term of the gradient, registered, passed as well or registered twice: to the bit."""
    ends = []
    for passes, again in ((False, False), (True, False), (False, True)):
        ensemble = ol.Ensemble(network, 3, seed=2).double()
        closed = None if method == "lwf" else False
        learner = Learner(ensemble, method, optimizer, passes, closed=closed)
        if again:
            learner.filter.register(learner.consolidation, closed)
        learner.learn(0)
        penalty = learner.learn(1)
        assert penalty.abs().min() > 0
        ends.append([penalty, *(p.detach() for p in ensemble.parameters())])
    for other in ends[1:]:
        assert all(torch.equal(a, b) for a, b in zip(ends[0], other, strict=True))


@pytest.mark.parametrize("left", [torch.nan, torch.inf])
@pytest.mark.parametrize("method", METHODS)
def test_a_dead_particle_does_not_reach_the_others(method, left):
    """Whatever its parameters are: penalties, importances and steps of the others are the same."""
    runs = []
    for dies in (False, True):
        learner = Learner(ol.Ensemble(network, 3, seed=2).double(), method, "adam")
        learner.learn(0)
        if dies:
            for parameter in learner.ensemble.parameters():
                parameter.data[1] = left
        penalties = [learner.learn(number)[[0, 2]] for number in (1, 2)]
        assert learner.filter.alive.tolist() == [True, not dies, True]
        runs.append([*penalties, *(p.detach()[[0, 2]] for p in learner.ensemble.parameters())])
    for alone, beside in zip(*runs, strict=True):
        torch.testing.assert_close(alone, beside, rtol=1e-12, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_resumed_in_the_middle_of_a_task_goes_on_bit_for_bit(method, tmp_path):
    first = Learner(ol.Ensemble(network, 3, seed=2).double(), method, "adam")
    first.learn(0)
    first.steps(1, 2)
    ol.save(tmp_path / "consolidation.safetensors", first.consolidation)
    ol.save(tmp_path / "filter.safetensors", first.filter)

    second = Learner(ol.Ensemble(network, 3, seed=8).double(), method, "adam")
    ol.load(tmp_path / "filter.safetensors", into=second.filter)
    ol.load(tmp_path / "consolidation.safetensors", into=second.consolidation)
    assert second.consolidation.tasks == 1
    for learner in (first, second):
        learner.steps(1, 2)
        learner.consolidation.end_task(task(1))
    assert torch.equal(first.steps(2, 3), second.steps(2, 3))
    for p, q in zip(first.ensemble.parameters(), second.ensemble.parameters(), strict=True):
        assert torch.equal(p, q)


def test_states_of_another_method_or_model_are_refused():
    ensemble = ol.Ensemble(network, 3)
    si, ewc = SI(ensemble), EWC(ensemble)
    with pytest.raises(ValueError, match="this state is of a SI, not of a EWC"):
        ewc.load_state_dict(si.state_dict())
    other = SI(ol.Ensemble(network, 2))
    with pytest.raises(ValueError, match="is \\(3, 4, 3\\) there and \\(2, 4, 3\\) here"):
        other.load_state_dict(si.state_dict())
    smaller = SI(ol.Ensemble(lambda: nn.Linear(3, 2), 3))
    with pytest.raises(
        ValueError, match="'path' of this state is of another model: '0.bias' is not in both"
    ):
        smaller.load_state_dict(si.state_dict())
    for tasks in (None, -1, "2"):
        state = si.state_dict()
        state["path"]["0.bias"].fill_(7.0)
        fresh = SI(ensemble)
        with pytest.raises(ValueError, match="must count its tasks from 0 on"):
            fresh.load_state_dict({**state, "tasks": tasks})
        assert not fresh.path["0.bias"].any()  # refused before any change


def test_tensors_that_penalties_read_are_changed_in_place():
    # so that recorded steps and saved references stay valid
    ensemble = ol.Ensemble(network, 2).double()
    for make in METHODS.values():
        consolidation = make(ensemble)
        before = [t for group in consolidation._state().values() for t in group.values()]
        consolidation.end_task(task(0))
        consolidation.load_state_dict(consolidation.state_dict())
        after = [t for group in consolidation._state().values() for t in group.values()]
        assert all(a is b for a, b in zip(before, after, strict=True))
