"""Distances between orders against brute force."""

from collections import deque
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import kendalltau

from orderless_lab.theory import adjacent_swaps, order_at_distance, swap_path


def breadth_first_distances(length):
    """Fewest adjacent swaps from the ascending order to every order, by searching."""
    start = tuple(range(length))
    distance = {start: 0}
    queue = deque([start])
    while queue:
        order = queue.popleft()
        for t in range(length - 1):
            near = list(order)
            near[t], near[t + 1] = near[t + 1], near[t]
            if tuple(near) not in distance:
                distance[tuple(near)] = distance[order] + 1
                queue.append(tuple(near))
    return distance


def test_it_is_the_fewest_swaps_that_a_search_finds():
    distances = breadth_first_distances(5)
    assert len(distances) == 120
    for order, distance in distances.items():
        assert adjacent_swaps(order) == distance
        elements = list(order)
        for place in swap_path(order):
            elements[place], elements[place + 1] = elements[place + 1], elements[place]
        assert elements == sorted(order)


def test_a_long_order_agrees_with_scipys_kendall_tau():
    order = np.random.default_rng(0).permutation(500)
    pairs = 500 * 499 / 2
    tau = kendalltau(np.arange(500), order).statistic
    assert adjacent_swaps(order.tolist()) == round(pairs * (1 - tau) / 2)


def test_every_order_at_a_distance_can_come_out():
    wanted = {order for order in permutations(range(4)) if adjacent_swaps(order) == 3}
    assert {tuple(order_at_distance(4, 3, seed)) for seed in range(200)} == wanted
    for swaps in (0, 12, 36):
        assert adjacent_swaps(order_at_distance(9, swaps, seed=4)) == swaps
    with pytest.raises(ValueError, match="got 7"):
        order_at_distance(4, 7)
