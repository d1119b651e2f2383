"""Learning from a kept sample has no order; experience replay has one."""

import pytest
import torch

import orderless as ol


@pytest.fixture
def tasks():
    torch.manual_seed(0)
    made = []
    for k in range(5):
        x = torch.randint(256, (300, 1, 28, 28), dtype=torch.uint8)
        made.append(
            ol.Task(x, torch.arange(300) % 2 + 2 * k, x[:10], torch.zeros(10).long(), f"{k}")
        )
    return made


@pytest.mark.parametrize(("method", "digests"), [("kept sample", 1), ("experience replay", 2)])
def test_only_the_kept_sample_gives_the_same_bits_in_two_orders(study, tasks, method, digests):
    cells = [study.run(method, "1/8", tasks, order, seed=0) for order in study.ORDERS[:2]]
    assert len({cell["digest"] for cell in cells}) == digests
    assert all(100 < cell["kept"] < 280 for cell in cells)  # 188 are expected


def test_a_reservoir_keeps_all_samples_with_equal_probability(study):
    counts = torch.zeros(20)
    for seed in range(400):
        store = study.Reservoir(5, seed)
        store.add(torch.arange(20), torch.arange(20))
        for x, _ in store.samples:
            counts[x] += 1
    assert (counts / 400 - 0.25).abs().max() < 0.1
