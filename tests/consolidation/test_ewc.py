"""EWC: the one quadratic against separate penalties, the online rule by hand."""

import pytest
import torch
from tests.consolidation.tiny import particles, task
from torch import nn

import orderless as ol
from orderless.consolidation import EWC, fisher_information


@torch.no_grad()
def wander(ensemble: ol.Ensemble, number: int) -> None:
    generator = torch.Generator().manual_seed(100 + number)
    for p in ensemble.parameters():
        p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))


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
    torch.testing.assert_close(penalty, separate)
    for ours, theirs in zip(torch.autograd.grad(penalty.sum(), parameters), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_parameters_that_no_task_needed_are_free():
    ensemble = particles()
    ewc = EWC(ensemble, 1.0)
    x, y = task(0)
    x[:, 0] = 0.0  # the first input's weights have no gradient: F = 0, and 0/0 in the mean
    for _ in range(2):
        ewc.end_task((x, y))
    with torch.no_grad():
        dict(ensemble.named_parameters())["0.weight"][:, :, 0] += 5.0
    torch.testing.assert_close(ewc.penalty(), torch.zeros(3, dtype=torch.float64))


def test_a_parameter_that_was_frozen_later_is_kept_like_the_others():
    ensembles = particles(), particles()
    penalties = [EWC(ensemble, 1.0) for ensemble in ensembles]
    dict(ensembles[1].named_parameters())["2.weight"].requires_grad_(False)
    for ewc in penalties:
        ewc.end_task(task(0))
    for name, importance in penalties[0].importance.items():
        assert torch.equal(penalties[1].importance[name], importance), name


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
    torch.testing.assert_close(ewc.penalty(), quadratic(ensemble, running, anchor, 3.0))


def test_active_columns_and_the_sample_limit_reach_the_fisher_information():
    ensemble, active = particles(), torch.tensor([1, 0])
    ewc = EWC(ensemble, fisher="empirical", fisher_samples=4)
    x, y = task(0)
    ewc.end_task([(x, y)], active=active)
    expected = fisher_information(ensemble, (x[:4], y[:4]), kind="empirical", active=active)
    for name, importance in ewc.importance.items():
        torch.testing.assert_close(importance, expected[name])


def test_a_task_that_holds_nothing_says_so():
    ensemble = particles()
    with torch.no_grad():
        for p in ensemble.parameters():
            p.zero_()
        dict(ensemble.named_parameters())["2.bias"][:2] = torch.tensor([1e4, -1e4]).double()
    with pytest.warns(UserWarning, match="Fisher information of 2 of 3 particles is 0"):
        EWC(ensemble).end_task(task(0))


def test_bad_settings_are_refused_in_a_sentence():
    with pytest.raises(TypeError, match="particles must be an ol.Ensemble, got Linear"):
        EWC(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="strength must be 0 or larger, got -1"):
        EWC(particles(), -1)
    with pytest.raises(ValueError, match="fisher must be one of"):
        EWC(particles(), fisher="batch")
    with pytest.raises(ValueError, match="mode must be 'separate' or 'online', got 'both'"):
        EWC(particles(), mode="both")
    with pytest.raises(ValueError, match="decay=0.9 belongs to mode='online'"):
        EWC(particles(), decay=0.9)
    with pytest.raises(ValueError, match="needs the task's data"):
        EWC(particles()).end_task()
