"""Cloning an expert, and what the clones' play is worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lab.tests.rl.corridor import Corridor, Walker

import orderless as ol
from orderless_lab.rl import BehaviourCloning, play
from orderless_lab.rl.cloning import play_both


def learner(n: int = 3, **options: int) -> BehaviourCloning:
    particles = ol.Ensemble(Walker, n, seed=0)
    optimizer = torch.optim.Adam(particles.parameters(), 1e-2)
    return BehaviourCloning(ol.WeightedParticleFilter(particles, optimizer), **options)


def transitions(count: int = 700) -> tuple[torch.Tensor, torch.Tensor]:
    """An expert who always walks right."""
    cells = torch.randint(6, (count,), generator=torch.Generator().manual_seed(0))
    return torch.eye(6)[cells], torch.ones(count, dtype=torch.long)


def walkers(weights: list[float]) -> ol.ParticleFilter:
    """Particle 0 always walks right, particle 1 always left."""
    particles = ol.Ensemble(Walker, 2)
    with torch.no_grad():
        particles.policy.weight.zero_()
        particles.policy.bias.copy_(torch.tensor([[-90.0, 90.0, -90.0], [90.0, -90.0, -90.0]]))
    filter = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), 0.1))
    filter.raw_log_weights.copy_(torch.tensor(weights, dtype=torch.float64).log())
    return filter


@pytest.mark.slow
def test_clones_do_what_the_expert_did() -> None:
    cloning = learner(batch_size=32)
    losses = cloning.learn(*transitions(), level=0, stop=100)
    assert losses.shape == (100, 3) and (losses[-1] < 0.1 * losses[0]).all()
    score = play(cloning.filter, Corridor(6), combine="accuracy", episodes=2)
    assert score.mean > 0.9 and score.per_particle is not None and score.per_particle.shape == (3,)
    assert score.episodes.shape == (6, 2)


@pytest.mark.slow
def test_batches_depend_on_the_level_and_not_on_what_came_before() -> None:
    observations, actions = transitions()
    fresh, pieces = learner(batch_size=32), learner(batch_size=32)
    whole = fresh.learn(observations, actions, level=5, stop=60)  # 21 batches are one pass
    parts = [pieces.learn(observations, actions, level=5, start=0, stop=25)]
    parts += [pieces.learn(observations, actions, level=5, start=25, stop=60)]
    assert torch.equal(whole, torch.cat(parts))
    other = learner(batch_size=32).learn(observations, actions, level=6, stop=60)
    assert not torch.equal(whole, other)


def test_the_two_scores_of_a_mixture_are_what_they_are_by_hand() -> None:
    filter = walkers([0.8, 0.2])
    own = play(filter, Corridor(10, limit=200), combine="accuracy")
    assert own.mean == pytest.approx(0.8 * 1.0 + 0.2 * -1.0)
    assert own.per_particle is not None and own.per_particle.tolist() == [1.0, -1.0]
    mixed = play(filter, Corridor(2000, limit=200), combine="probs", seed=1)
    # the gambler's ruin: from cell 1 of 5, up with probability .8
    win = (1 - 0.25) / (1 - 0.25**5)
    assert mixed.mean == pytest.approx(2 * win - 1, abs=4 * 0.87 / 2000**0.5)


def test_particles_play_as_often_as_they_weigh() -> None:
    score = play(walkers([0.7, 0.3]), Corridor(10), combine="accuracy")
    assert score.episodes.ravel().tolist() == [1.0] * 7 + [-1.0] * 3
    # 0.26 of 4 environments is one of them, and still no more than 0.26
    assert play(walkers([0.74, 0.26]), Corridor(4), combine="accuracy").mean == pytest.approx(0.48)
    filter = walkers([0.0, 1.0])
    with torch.no_grad():
        filter.particles.policy.bias[0] = torch.nan  # dead
    alone = play(filter, Corridor(5), combine="accuracy")
    assert alone.mean == -1.0 and alone.episodes.shape == (5, 1)
    assert alone.per_particle is not None
    assert alone.per_particle.tolist() == [pytest.approx(torch.nan, nan_ok=True), -1.0]


def test_both_scores_at_once_are_those_of_one_at_a_time() -> None:
    filter = learner().filter  # untrained: what they do depends on every draw
    both = play_both(filter, Corridor(600), seed=2)
    own = play(filter, Corridor(300), combine="accuracy", seed=2)
    assert both["accuracy"].episodes.tolist() == own.episodes.tolist()
    assert both["accuracy"].mean == own.mean and both["probs"].per_particle is None
    mixed = play(filter, Corridor(300), combine="probs", seed=3).episodes
    deviation = (2 * mixed.var() / 300) ** 0.5
    assert both["probs"].mean == pytest.approx(mixed.mean(), abs=4 * deviation)


def test_every_environment_counts_its_first_episodes_only() -> None:
    score = play(walkers([0.5, 0.5]), Corridor(4), combine="accuracy", episodes=3)
    # particle 1 is done after one step, particle 0 after four; each counts three times
    assert score.episodes.tolist() == [[1.0] * 3] * 2 + [[-1.0] * 3] * 2


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        learner(batch_size=0)
    with pytest.raises(ValueError, match="700 transitions do not fill one batch of 1000"):
        learner(batch_size=1000).learn(*transitions(), level=0)
    with pytest.raises(ValueError, match="5 observations but 4 actions"):
        learner(batch_size=2).learn(torch.eye(6)[:5], torch.zeros(4).long(), level=0)
    frames = np.eye(6, dtype=np.float32)[:4]  # arrays are taken, too
    learner(batch_size=2).learn(frames, np.zeros(4, dtype=np.uint8), level=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="actions must be whole numbers, got torch.float32"):
        learner(batch_size=2).learn(torch.eye(6)[:4], torch.zeros(4), level=0)
    with pytest.raises(ValueError, match="actions must be at least 0, got -100"):
        learner(batch_size=2).learn(torch.eye(6)[:4], torch.full((4,), -100), level=0)
    with pytest.raises(ValueError, match="start must be at least 0, got -5"):
        learner(batch_size=2).learn(torch.eye(6)[:4], torch.zeros(4).long(), level=0, start=-5)
    with pytest.raises(ValueError, match="combine must be 'accuracy' or 'probs', got 'logits'"):
        play(walkers([1.0, 0.0]), Corridor(2), combine="logits")
    with pytest.raises(ValueError, match="3 environments cannot be halved for accuracy and probs"):
        play_both(walkers([1.0, 0.0]), Corridor(3))
