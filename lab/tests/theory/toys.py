"""What the tests of the theory share: small weighted sets, and runs of a filter's update."""

from functools import reduce

import torch

from orderless_lab.theory import WeightedSet


def weighted(positions, weights):
    """A set on a line."""
    places = torch.tensor(positions, dtype=torch.float64).unsqueeze(1)
    return WeightedSet(places, torch.tensor(weights, dtype=torch.float64).log())


def point(*coordinates):
    return WeightedSet(torch.tensor([coordinates], dtype=torch.float64), torch.zeros(1))


def run(update, start, losses):
    return reduce(update, losses, start)
