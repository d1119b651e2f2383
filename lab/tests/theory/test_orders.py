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
    distance, queue = {start: 0}, deque([start])
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


def test_a_long_order_agrees_with_scipys_kendall_tau():
    order = np.random.default_rng(0).permutation(2000)
    pairs = 2000 * 1999 / 2
    tau = kendalltau(np.arange(2000), order).statistic
    assert adjacent_swaps(order.tolist()) == round(pairs * (1 - tau) / 2)


def test_moving_one_element_to_the_end_takes_length_minus_place_swaps():
    length = 7
    for place in range(1, length + 1):  # the paper's i
        moved = [t for t in range(1, length + 1) if t != place] + [place]
        assert adjacent_swaps(moved) == length - place


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_an_order_at_a_distance_is_at_that_distance(length):
    for swaps in range(length * (length - 1) // 2 + 1):
        for seed in range(3):
            order = order_at_distance(length, swaps, seed)
            assert sorted(order) == list(range(length))
            assert adjacent_swaps(order) == swaps


def test_every_order_at_a_distance_can_come_out():
    wanted = {order for order in permutations(range(4)) if adjacent_swaps(order) == 3}
    assert {tuple(order_at_distance(4, 3, seed)) for seed in range(200)} == wanted
    assert order_at_distance(9, 12, seed=4) == order_at_distance(9, 12, seed=4)


def test_a_path_has_as_many_swaps_as_the_distance_and_arrives():
    generator = np.random.default_rng(1)
    for _ in range(20):
        start = generator.permutation(8).tolist()
        path, order = swap_path(start), list(start)
        for place in path:
            order[place], order[place + 1] = order[place + 1], order[place]
        assert order == sorted(start)
        assert len(path) == adjacent_swaps(start)


def test_bad_orders_are_refused_in_a_sentence():
    for function in (adjacent_swaps, swap_path):
        with pytest.raises(ValueError, match="repeated"):
            function([0, 0, 1])
    with pytest.raises(ValueError, match="between 0 and 6 for length 4, got 7"):
        order_at_distance(4, 7)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        order_at_distance(0, 0)
