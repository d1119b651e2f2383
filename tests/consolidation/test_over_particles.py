"""What every consolidation owes: independence of N, filters, optimizers, and resuming."""

import copy

import pytest
import torch
from tests.common import OPTIMIZERS, assert_identical, cross_entropy
from tests.consolidation.tiny import particles, task
from torch import nn
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import orderless as ol
from orderless.consolidation import EWC, SI, LwF

METHODS = {
    "ewc": lambda p: EWC(p, 50.0),
    "online": lambda p: EWC(p, 50.0, fisher="empirical", mode="online", decay=0.5),
    "si": lambda p: SI(p, 20.0),
    "lwf": lambda p: LwF(p, 2.0),
}


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
        self.filter = ol.WeightedParticleFilter(
            ensemble, OPTIMIZERS[optimizer](ensemble.parameters())
        )
        self.filter.register(self.consolidation, **register)
        self.passes = passes

    def steps(self, number: int, count: int) -> torch.Tensor:
        x, y = task(number)
        penalty = (lambda: self.consolidation.penalty(x)) if self.passes else None
        for _ in range(count):
            info = self.filter.step(lambda: cross_entropy(self.ensemble(x), y), penalty=penalty)
        return info.penalty

    def learn(self, number: int) -> torch.Tensor:
        penalty = self.steps(number, 4)
        self.consolidation.end_task(task(number))
        return penalty


@pytest.mark.parametrize("method", METHODS)
def test_particle_i_has_the_same_penalty_alone_as_one_of_many(method):
    together = particles()
    alone = [ol.Ensemble.from_modules([together[i]]) for i in range(3)]
    group = Learner(together, method)
    expected = torch.stack([group.learn(number) for number in range(3)])
    assert expected[1:].abs().min() > 0
    for i, single in enumerate(alone):
        learner = Learner(single, method)
        ours = torch.cat([learner.learn(number) for number in range(3)])
        assert_close(ours, expected[:, i])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_registering_is_enough_and_passing_it_too_counts_once(method, optimizer):
    """As a term of the gradient, registered, passed as well or registered twice: to the bit."""
    ends = []
    for passes, again in ((False, False), (True, False), (False, True)):
        ensemble = particles()
        closed = None if method == "lwf" else False
        learner = Learner(ensemble, method, optimizer, passes, closed=closed)
        if again:
            learner.filter.register(learner.consolidation, closed)
        learner.learn(0)
        penalty = learner.learn(1)
        assert penalty.abs().min() > 0
        ends.append([penalty, learner.filter.state_dict()])
    for other in ends[1:]:
        assert_identical(other, ends[0])


@pytest.mark.parametrize("left", [torch.nan, torch.inf])
@pytest.mark.parametrize("method", METHODS)
def test_a_dead_particle_does_not_reach_the_others(method, left):
    """Whatever its parameters are: penalties, importances and steps of the others are the same."""
    runs = []
    for dies in (False, True):
        learner = Learner(particles(), method, "adam")
        learner.learn(0)
        if dies:
            for parameter in learner.ensemble.parameters():
                parameter.data[1] = left
        penalties = [learner.learn(number)[[0, 2]] for number in (1, 2)]
        assert learner.filter.alive.tolist() == [True, not dies, True]
        runs.append([*penalties, *(p.detach()[[0, 2]] for p in learner.ensemble.parameters())])
    assert_close(*runs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_resumed_in_the_middle_of_a_task_goes_on_bit_for_bit(method, tmp_path):
    first = Learner(particles(), method, "adam")
    first.learn(0)
    first.steps(1, 2)
    ol.save(tmp_path / "consolidation.safetensors", first.consolidation)
    ol.save(tmp_path / "filter.safetensors", first.filter)

    second = Learner(particles(seed=8), method, "adam")
    ol.load(tmp_path / "filter.safetensors", into=second.filter)
    ol.load(tmp_path / "consolidation.safetensors", into=second.consolidation)
    assert second.consolidation.tasks == 1
    for learner in (first, second):
        learner.steps(1, 2)
        learner.consolidation.end_task(task(1))
    assert torch.equal(first.steps(2, 3), second.steps(2, 3))
    assert_identical(first.ensemble.state_dict(), second.ensemble.state_dict())


def small() -> ol.Ensemble:
    return particles(make=lambda: nn.Linear(3, 2))


OTHERS = {
    "another method": (lambda: EWC(particles()), {}, "this state is of a SI, not of a EWC"),
    "fewer": (lambda: SI(particles(2)), {}, r"is \(3, 4, 3\) there and \(2, 4, 3\) here"),
    "another model": (
        lambda: SI(small()),
        {},
        "'path' of this state is of another model: '0.bias' is not in both",
    ),
    **{
        f"{tasks} tasks": (
            lambda: SI(particles()),
            {"tasks": tasks},
            "must count its tasks from 0 on",
        )
        for tasks in (None, -1, "2")
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_states_of_another_method_or_model_are_refused_before_any_change(name):
    make, changes, words = OTHERS[name]
    state = SI(particles()).state_dict()
    state["path"]["0.bias"].fill_(7.0)
    consolidation = make()
    before = copy.deepcopy(consolidation.state_dict())
    with pytest.raises(ValueError, match=words):
        consolidation.load_state_dict({**state, **changes})
    assert_identical(consolidation.state_dict(), before)


def register(penalty: ol.Consolidation) -> None:
    """For a closed step, with Adam."""
    adam = OPTIMIZERS["adam"](penalty.particles.parameters())
    ol.WeightedParticleFilter(penalty.particles, adam).register(penalty, closed=True)


def taught(ensemble: ol.Ensemble) -> LwF:
    lwf = LwF(ensemble)
    lwf.end_task()
    return lwf


MISTAKES = {
    "particles must be an ol.Ensemble, got Linear": lambda: EWC(nn.Linear(2, 2)),
    "strength must be 0 or larger, got -1": lambda: EWC(particles(), -1),
    "fisher must be one of": lambda: EWC(particles(), fisher="batch"),
    "mode must be 'separate' or 'online', got 'both'": lambda: EWC(particles(), mode="both"),
    "decay=0.9 belongs to mode='online'": lambda: EWC(particles(), decay=0.9),
    "needs the task's data": lambda: EWC(particles()).end_task(),
    "xi must be positive, got 0": lambda: SI(particles(), xi=0),
    "temperature must be positive, got 0": lambda: LwF(particles(), temperature=0),
    "LwF needs the inputs of the batch": lambda: taught(particles()).penalty(),
    "descent by torch.optim.SGD, got a Adam: .*closed=False": lambda: register(EWC(particles())),
    "a LwF has no closed step": lambda: register(LwF(particles())),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_sentences(words):
    with pytest.raises((ValueError, TypeError), match=words):
        MISTAKES[words]()


@pytest.mark.parametrize("method", METHODS)
def test_tensors_that_penalties_read_are_changed_in_place(method):
    # so that recorded steps and saved references stay valid
    consolidation = METHODS[method](particles())
    assert not consolidation.penalty().any()
    before = tree_leaves(consolidation._state())
    consolidation.end_task(task(0))
    consolidation.load_state_dict(consolidation.state_dict())
    assert all(a is b for a, b in zip(before, tree_leaves(consolidation._state()), strict=True))
