"""Scores: three ways to combine particles, and calibration, against their definitions."""

import base64

import numpy as np
import pytest
import torch
from lab.tests.toys import make_run, tiny_cell

from orderless import metrics
from orderless_lab.plasticity import dormant_share, effective_rank, plasticity
from orderless_lab.runs.runner import displacement
from orderless_lab.runs.supervised import score_task


@pytest.fixture
def learner(tmp_path):
    """Three particles that differ in weight and in what they say."""
    run = make_run(tiny_cell("wpf", loss_scale=2.0), tmp_path)
    run.run()
    weights = run.learner.weights
    assert 0.01 < float(weights.min()) < float(weights.max()) < 0.9
    return run.learner


def by_definition(learner, task):
    """Everything from the networks one by one."""
    x, y = learner.scenario.test_set(task)
    weights = learner.weights.tolist()
    logits = [learner.filter.particles[i].eval()(x).detach().double() for i in range(3)]
    own = [float((z.argmax(1) == y).double().mean()) for z in logits]
    mixture = sum(w * z.softmax(1) for w, z in zip(weights, logits, strict=True))
    votes = sum(w * z for w, z in zip(weights, logits, strict=True))
    return weights, own, votes, mixture, y


@pytest.mark.parametrize("task", [0, 1, 2])
def test_three_combinations_are_their_formulas(learner, task):
    weights, own, votes, mixture, y = by_definition(learner, task)
    score = score_task(learner, task, test_batch=7)
    expected = {
        "particles": sum(w * a for w, a in zip(weights, own, strict=True)),
        "logits": float((votes.argmax(1) == y).double().mean()),
        "probs": float((mixture.argmax(1) == y).double().mean()),
    }
    assert score.correct == pytest.approx(expected, abs=1e-12)
    labels = np.frombuffer(base64.b64decode(score.predictions), dtype=np.uint8)
    assert labels.tolist() == mixture.argmax(1).tolist()


def test_nll_and_ece_are_those_of_the_mixture(learner):
    _, _, _, mixture, y = by_definition(learner, 1)
    score = score_task(learner, 1, test_batch=7)
    assert score.nll == pytest.approx(metrics.nll(mixture.numpy(), y.numpy()), rel=1e-5)
    assert score.ece == pytest.approx(metrics.ece(mixture.numpy(), y.numpy()), abs=1e-6)


def test_the_size_of_test_batches_changes_nothing(learner):
    one, other = score_task(learner, 0, 1000), score_task(learner, 0, 3)
    assert one.correct == pytest.approx(other.correct, abs=1e-12)
    assert one.predictions == other.predictions


def test_a_particle_of_weight_0_has_no_say(learner):
    before = score_task(learner, 0, 7)
    filter = learner.filter
    filter.raw_log_weights.copy_(torch.tensor([0.0, -torch.inf, -torch.inf]))
    for parameter in filter.particles.parameters():
        parameter.data[1:] = torch.nan
    after = score_task(learner, 0, 7)
    x, y = learner.scenario.test_set(0)
    own = (filter.particles[0].eval()(x).argmax(1) == y).double().mean().item()
    assert after.correct == pytest.approx(dict.fromkeys(before.correct, own), abs=1e-12)
    assert np.isfinite(after.nll) and np.isfinite(after.ece)


def test_plasticity_is_that_of_the_heaviest_network(learner):
    best = int(learner.weights.argmax())
    network = learner.filter.particles[best].eval()
    x, _ = learner.scenario.test_set(1)
    hidden = network[:-1](x).detach().double().numpy()
    found = plasticity(*learner.representation(x))
    assert found["effective_rank"] == pytest.approx(effective_rank(hidden), rel=1e-9)
    assert found["dormant"] == dormant_share(hidden)
    every = torch.cat([p.detach().double().abs().flatten() for p in network.parameters()])
    assert found["mean_abs_weight"] == pytest.approx(float(every.mean()), rel=1e-12)


def test_displacement_is_relative_to_the_start(tmp_path):
    run = make_run(tiny_cell("wpf"), tmp_path)
    there = make_run(tiny_cell("wpf"), tmp_path).learner.filter.particles
    start = run.learner.filter.particles
    with torch.no_grad():
        for parameter in there.parameters():
            parameter.mul_(torch.tensor([1.0, 1.5, 3.0]).view(-1, *[1] * (parameter.dim() - 1)))
    assert displacement(there, start.parameters()) == pytest.approx([0.0, 0.5, 2.0], abs=1e-6)
