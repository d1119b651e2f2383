"""Cloning an expert, and what the clones' play is worth."""

from __future__ import annotations

import pytest
import torch
from lab.tests.toys import Corridor, Walker, averaging, set_weights

import orderless as ol
from orderless_lab.rl import BehaviourCloning, play
from orderless_lab.rl.cloning import COMBINES, play_both

OWN, MIXED = COMBINES


def learner(n: int = 3, **options: int) -> BehaviourCloning:
    particles = ol.Ensemble(Walker, n, seed=0)
    optimizer = torch.optim.Adam(particles.parameters(), 1e-2)
    return BehaviourCloning(ol.WeightedParticleFilter(particles, optimizer), **options)


def transitions(count: int = 700) -> tuple[torch.Tensor, torch.Tensor]:
    """An expert who always walks right."""
    cells = torch.randint(6, (count,), generator=torch.Generator().manual_seed(0))
    return torch.eye(6)[cells], torch.ones(count, dtype=torch.long)


def walkers(weights: list[float]) -> ol.AveragingParticles:
    """Particle 0 always walks right, particle 1 always left."""
    particles = ol.Ensemble(Walker, 2)
    with torch.no_grad():
        particles.policy.weight.zero_()
        particles.policy.bias.copy_(torch.tensor([[-90.0, 90.0, -90.0], [90.0, -90.0, -90.0]]))
    filter = averaging(particles)
    set_weights(filter, weights)
    return filter


@pytest.mark.slow
def test_clones_do_what_the_expert_did() -> None:
    cloning = learner(batch_size=32)
    losses = cloning.learn(*transitions(), level=0, stop=100)
    assert losses.shape == (100, 3)
    assert (losses[-1] < 0.1 * losses[0]).all()
    score = play(cloning.filter, Corridor(6), combine=OWN, episodes=2)
    assert score.mean > 0.9
    assert score.episodes.shape == (6, 2)


def test_batches_depend_on_the_level_and_not_on_what_came_before() -> None:
    data = transitions()
    whole = learner(batch_size=32).learn(*data, level=5, stop=60)  # 21 batches are one pass
    pieces = learner(batch_size=32)
    parts = [pieces.learn(*data, level=5, start=0, stop=25)]
    parts.append(pieces.learn(*data, level=5, start=25, stop=60))
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, learner(batch_size=32).learn(*data, level=6, stop=60))


def test_the_two_scores_of_a_mixture_are_what_they_are_by_hand() -> None:
    filter = walkers([0.8, 0.2])
    own = play(filter, Corridor(10, limit=200), combine=OWN)
    assert own.mean == pytest.approx(0.8 * 1.0 + 0.2 * -1.0)
    assert own.per_particle is not None
    assert own.per_particle.tolist() == [1.0, -1.0]
    mixed = play(filter, Corridor(2000, limit=200), combine=MIXED, seed=1)
    # the gambler's ruin: from cell 1 of 5, up with probability .8
    win = (1 - 0.25) / (1 - 0.25**5)
    assert mixed.mean == pytest.approx(2 * win - 1, abs=4 * 0.87 / 2000**0.5)


def test_particles_play_as_often_as_they_weigh_and_the_dead_never() -> None:
    score = play(walkers([0.7, 0.3]), Corridor(10), combine=OWN)
    assert score.episodes.ravel().tolist() == [1.0] * 7 + [-1.0] * 3
    # 0.26 of 4 environments is one of them, and still no more than 0.26
    assert play(walkers([0.74, 0.26]), Corridor(4), combine=OWN).mean == pytest.approx(0.48)
    filter = walkers([0.0, 1.0])
    with torch.no_grad():
        filter.particles.policy.bias[0] = torch.nan
    for combine in COMBINES:
        assert play(filter, Corridor(5), combine=combine).episodes.tolist() == [[-1.0]] * 5


def test_both_scores_at_once_are_those_of_one_at_a_time() -> None:
    filter = learner().filter  # untrained: what they do depends on every draw
    both = play_both(filter, Corridor(600), seed=2)
    own = play(filter, Corridor(300), combine=OWN, seed=2)
    assert both[OWN].episodes.tolist() == own.episodes.tolist()
    assert both[OWN].mean == own.mean
    mixed = play(filter, Corridor(300), combine=MIXED, seed=3).episodes
    deviation = (2 * mixed.var() / 300) ** 0.5
    assert both[MIXED].mean == pytest.approx(mixed.mean(), abs=4 * deviation)


def test_every_environment_counts_its_first_episodes_only() -> None:
    score = play(walkers([0.5, 0.5]), Corridor(4), combine=OWN, episodes=3)
    # particle 1 is done after one step, particle 0 after four; each counts three times
    assert score.episodes.tolist() == [[1.0] * 3] * 2 + [[-1.0] * 3] * 2


def test_bad_input_is_named() -> None:
    x, y = transitions(4)
    cloning = learner(batch_size=2)
    for batch, message in (
        ((x[:1], y[:1]), "1 transitions do not fill"),
        ((x, y - 101), "at least 0, got -100"),
    ):
        with pytest.raises(ValueError, match=message):
            cloning.learn(*batch, level=0)
    with pytest.raises(ValueError, match="logits"):
        play(walkers([1.0, 0.0]), Corridor(2), combine="logits")
    with pytest.raises(ValueError, match="3 environments"):
        play_both(walkers([1.0, 0.0]), Corridor(3))
