"""EWC: the one quadratic against separate penalties, the online rule by hand."""

import pytest
import torch
from tests.common import assert_identical
from tests.consolidation.tiny import particles, task, wander
from torch.testing import assert_close

from orderless.consolidation import EWC, fisher_information


def quadratic(ensemble, fisher, anchor, strength):
    return (
        strength
        / 2
        * sum(
            (fisher[name] * (p - anchor[name]) ** 2).reshape(len(p), -1).sum(1)
            for name, p in ensemble.named_parameters()
        )
    )


def snapshot(ensemble):
    return {name: p.detach().clone() for name, p in ensemble.named_parameters()}


def test_one_quadratic_equals_the_sum_of_separate_penalties():
    ensemble = particles()
    ewc = EWC(ensemble, 7.0)
    past = []
    for number in range(4):
        wander(ensemble, number)
        past.append((fisher_information(ensemble, task(number)), snapshot(ensemble)))
        ewc.end_task(task(number))
    wander(ensemble, 9)
    parameters = list(ensemble.parameters())
    separate = sum(quadratic(ensemble, fisher, anchor, 7.0) for fisher, anchor in past)
    expected = torch.autograd.grad(separate.sum(), parameters)
    penalty = ewc.penalty()
    assert_close(penalty, separate)
    assert_close(torch.autograd.grad(penalty.sum(), parameters), expected)


def test_parameters_that_no_task_needed_are_free():
    ensemble = particles()
    ewc = EWC(ensemble, 1.0)
    x, y = task(0)
    x[:, 0] = 0.0  # the first input's weights have no gradient: F = 0, and 0/0 in the mean
    for _ in range(2):
        ewc.end_task((x, y))
    with torch.no_grad():
        ensemble.get_parameter("0.weight")[:, :, 0] += 5.0
    assert_close(ewc.penalty(), torch.zeros(3, dtype=torch.float64))


def test_a_parameter_that_was_frozen_later_is_kept_like_the_others():
    ensembles = particles(), particles()
    penalties = [EWC(ensemble, 1.0) for ensemble in ensembles]
    ensembles[1].get_parameter("2.weight").requires_grad_(False)
    for ewc in penalties:
        ewc.end_task(task(0))
    assert_identical(penalties[1].importance, penalties[0].importance)


def test_online_ewc_by_hand():
    ensemble = particles()
    ewc = EWC(ensemble, 3.0, mode="online", decay=0.5)
    running = None
    for number in range(3):
        wander(ensemble, number)
        fisher, anchor = fisher_information(ensemble, task(number)), snapshot(ensemble)
        running = (
            fisher if running is None else {k: 0.5 * running[k] + f for k, f in fisher.items()}
        )
        ewc.end_task(task(number))
    wander(ensemble, 9)
    assert_close(ewc.penalty(), quadratic(ensemble, running, anchor, 3.0))


def test_active_columns_and_the_sample_limit_reach_the_fisher_information():
    ensemble, active = particles(), torch.tensor([1, 0])
    ewc = EWC(ensemble, fisher="empirical", fisher_samples=4)
    x, y = task(0)
    ewc.end_task([(x, y)], active=active)
    expected = fisher_information(ensemble, (x[:4], y[:4]), kind="empirical", active=active)
    assert_close(ewc.importance, expected)


def test_a_task_that_holds_nothing_says_so():
    ensemble = particles()
    with torch.no_grad():
        for p in ensemble.parameters():
            p.zero_()
        ensemble.get_parameter("2.bias")[:2] = torch.tensor([1e4, -1e4]).double()
    with pytest.warns(UserWarning, match="Fisher information of 2 of 3 particles is 0"):
        EWC(ensemble).end_task(task(0))
