"""Experience replay: who is kept, what comes back, and going on after a stop."""

import pytest
import torch

from orderless_lab.methods.learners import Reservoir


def feed(reservoir, samples, batch=20):
    """Numbered samples; a sample's x, label and task all say its number."""
    numbers = torch.arange(samples)
    mixed = []
    for part in numbers.split(batch):
        mixed.append(reservoir.mix(part[:, None].float(), part, part % 7))
    return mixed


@pytest.mark.slow
def test_every_sample_is_kept_with_equal_probability():
    samples, capacity, repeats = 60, 12, 1500
    kept = torch.zeros(samples)
    for seed in range(repeats):
        reservoir = Reservoir(capacity, seed)
        feed(reservoir, samples)
        kept[reservoir.stored[1]] += 1
    share = capacity / samples
    deviation = (repeats * share * (1 - share)) ** 0.5
    # the largest of 60 normal deviations is above 4.5 about once in 2,000 times; seeds are fixed
    assert (kept - repeats * share).abs().max() < 4.5 * deviation
    # and no trend from early to late: means of thirds, each about 20 times as certain
    thirds = kept.view(3, -1).mean(1) - repeats * share
    assert thirds.abs().max() < 4.5 * deviation / 20**0.5


def test_no_sample_is_kept_twice_and_its_parts_stay_together():
    reservoir = Reservoir(10, 0)
    feed(reservoir, 100)
    x, y, task = reservoir.stored
    assert len(y.unique()) == 10
    assert torch.equal(x[:, 0].long(), y) and torch.equal(task, y % 7)


def test_a_batch_comes_with_as_many_earlier_samples():
    mixed = feed(Reservoir(10, 0), 100)
    assert [len(y) for _, y, _ in mixed] == [20, 40, 40, 40, 40]
    for number, (x, y, task) in enumerate(mixed):
        assert torch.equal(y[:20], torch.arange(20) + 20 * number)
        assert (y[20:] < 20 * number).all()  # nothing from the batch itself
        assert torch.equal(x[:, 0].long(), y) and torch.equal(task, y % 7)


def test_before_it_is_full_only_what_was_seen_comes_back():
    reservoir = Reservoir(200, 0)
    reservoir.mix(torch.ones(3, 2), torch.tensor([4, 5, 6]))
    _, y = reservoir.mix(torch.ones(8, 2), torch.arange(8) + 10)
    assert set(y[8:].tolist()) <= {4, 5, 6}


def test_a_buffer_for_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1 sample, got 0"):
        Reservoir(0, 0)
