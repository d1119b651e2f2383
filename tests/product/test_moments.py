"""Layers' input moments and weights against explicit loops, and sums against Python's integers."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from orderless.ensemble.layers import Layer
from orderless.exact.sums import ExactSum
from orderless.product.sums import UNIT, merged_layers, task_moments


def only_layer(module: nn.Module) -> tuple[ol.Ensemble, Layer]:
    particles = ol.Ensemble(lambda: module, 1).double()
    (layer,) = merged_layers(particles).values()
    return particles, layer


def moments(particles: ol.Ensemble, x: Tensor) -> Tensor:
    labels = torch.zeros(len(x), dtype=torch.long)
    grams = task_moments(particles, merged_layers(particles), (x, labels)).grams
    (gram,) = grams.values()
    return gram[0]


def looped(rows: list[Tensor]) -> Tensor:
    """sum a a^T, one row after another."""
    return torch.stack([torch.outer(a, a) for a in rows]).sum(0)


CONVOLUTIONS = {
    "plain": nn.Conv2d(2, 3, 3),
    "padded": nn.Conv2d(2, 3, 3, padding=(1, 2), stride=2),
    "dilated": nn.Conv2d(2, 3, 2, dilation=(2, 1)),
    "grouped": nn.Conv2d(4, 6, 3, groups=2, padding=1),
    "depthwise": nn.Conv2d(4, 4, 3, groups=4, bias=False),
    "same": nn.Conv2d(2, 3, 3, padding="same"),
    "reflected": nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
    "circular": nn.Conv1d(2, 3, 3, padding=2, padding_mode="circular"),
    "sequence": nn.Conv1d(4, 2, 3, stride=2, padding=1, dilation=2, groups=2),
    "volume": nn.Conv3d(2, 4, (1, 2, 3), stride=(1, 2, 1), padding=(0, 1, 1), groups=2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_a_linear_layer_on_its_patches(name: str) -> None:
    """Its outputs are a W for the patches whose moments are summed, position by position."""
    module = CONVOLUTIONS[name].double()
    particles, layer = only_layer(module)
    sizes = {1: (7,), 2: (5, 6), 3: (3, 4, 5)}[len(module.kernel_size)]
    x = torch.randn(3, module.in_channels, *sizes, dtype=torch.float64)
    found = moments(particles, x)
    inputs = patches_by_hand(module, x)
    matrix = layer.matrix(dict(particles.named_parameters()))[0]
    outputs = module(x).flatten(2)  # [B, g K, positions]
    for block, rows in enumerate(inputs):
        expected = torch.stack(rows) @ matrix[block]  # [B * positions, K]
        own = outputs[:, block * layer.columns : (block + 1) * layer.columns]
        torch.testing.assert_close(expected, own.transpose(1, 2).flatten(0, 1))
        torch.testing.assert_close(found[block], looped(rows))


def patches_by_hand(module: nn.Module, x: Tensor) -> list[list[Tensor]]:
    """What every position sees, group by group: the derivative of an output by its weight."""
    rows: list[list[Tensor]] = [[] for _ in range(module.groups)]
    per_group = module.out_channels // module.groups
    weight = module.weight.detach().clone().requires_grad_()
    outputs = torch.func.functional_call(module, {"weight": weight}, (x,)).flatten(2)
    for sample in range(len(x)):
        for position in range(outputs.shape[2]):
            for block in range(module.groups):
                channel = block * per_group
                one = outputs[sample, channel, position]
                (slope,) = torch.autograd.grad(one, weight, retain_graph=True)
                a = slope[channel].flatten()
                bias = [a.new_ones(1)] if module.bias is not None else []
                rows[block].append(torch.cat([a, *bias]))
    return rows


NORMS = {
    "batch": (nn.BatchNorm2d(3), (4, 3, 2, 2), 1),
    "rows": (nn.BatchNorm1d(3), (6, 3), 1),
    "group": (nn.GroupNorm(2, 4), (3, 4, 5), 1),
    "layer": (nn.LayerNorm(4), (3, 2, 4), 2),
    "root mean square": (nn.RMSNorm(4), (5, 4), 1),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_normalisation_is_a_linear_layer_of_every_channel(name: str) -> None:
    module, shape, axis = NORMS[name]
    module = module.double().train()
    module(torch.randn(shape, dtype=torch.float64) * 3 + 1)  # running statistics of its own
    particles, _ = only_layer(module)
    x = torch.randn(shape, dtype=torch.float64) + 2
    found = moments(particles, x)
    plain = module.eval()
    nn.init.ones_(plain.weight)
    has_bias = getattr(plain, "bias", None) is not None
    if has_bias:
        nn.init.zeros_(plain.bias)
    normalized = plain(x).detach()
    for channel in range(shape[axis]):
        values = normalized.select(axis, channel).flatten()
        rows = [torch.stack([v, torch.ones_like(v)]) if has_bias else v.view(1) for v in values]
        torch.testing.assert_close(found[channel], looped(rows))


def test_an_embedding_counts_its_entries() -> None:
    particles, layer = only_layer(nn.Embedding(5, 3))
    x = torch.tensor([[0, 1, 1], [4, 1, 0]])
    assert moments(particles, x).flatten().tolist() == [2, 3, 0, 0, 1]
    matrix = layer.matrix(dict(particles.named_parameters()))[0]
    assert torch.equal(matrix[:, 0], particles.weight[0].double())


def test_a_linear_layer_sees_every_row_of_a_sequence() -> None:
    particles, _ = only_layer(nn.Linear(3, 2))
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    rows = [torch.cat([a, a.new_ones(1)]) for a in x.flatten(0, 1)]
    torch.testing.assert_close(moments(particles, x), looped(rows)[None])


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_what_is_frozen_takes_no_part(frozen: str) -> None:
    module = nn.Linear(3, 2)
    getattr(module, frozen).requires_grad_(False)
    particles, layer = only_layer(module)
    x = torch.randn(7, 3, dtype=torch.float64)
    rows = list(x) if frozen == "bias" else [torch.ones(1, dtype=torch.float64)] * 7
    torch.testing.assert_close(moments(particles, x), looped(rows)[None])
    assert layer.width == len(rows[0])


class Tied(nn.Module):
    """One weight in two layers, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(self.first(x))))


def test_tied_weights_add_their_moments() -> None:
    particles = ol.Ensemble(Tied, 1).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    weight = particles.first.weight[0].detach()
    inner = F.linear(x, weight)
    deep = F.linear(inner, weight).relu()
    torch.testing.assert_close(moments(particles, x), looped([*x, *inner, *deep])[None])


@pytest.mark.parametrize("module", [nn.Linear(4, 3), nn.Conv2d(4, 6, 3, groups=2), nn.LayerNorm(5)])
def test_weights_come_back_from_their_matrix(module: nn.Module) -> None:
    particles = ol.Ensemble(lambda: module, 2, ol.Perturb(0.1, 0.2))
    (layer,) = merged_layers(particles).values()
    tensors = dict(particles.named_parameters())
    back = layer.parameters(layer.matrix(tensors), tensors)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_every_particle_has_its_own_moments() -> None:
    """Also where the first layer sees the same inputs in all of them."""
    layers = [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)]
    together = ol.Ensemble(nn.Sequential(*layers).double(), 3)
    x, y = torch.randn(5, 3).double(), torch.zeros(5)
    found = task_moments(together, merged_layers(together), (x, y)).grams
    for i in range(3):
        alone = ol.Ensemble.from_modules([together[i]])
        for name, gram in task_moments(alone, merged_layers(alone), (x, y)).grams.items():
            # the last bits of one product for all particles are not those of a product for each
            torch.testing.assert_close(found[name][i], gram[0], rtol=1e-13, atol=1e-15)
    assert torch.equal(found["0.weight"][0], found["0.weight"][1])
    assert not torch.equal(found["2.weight"][0], found["2.weight"][1])


# ---------------------------------------------------------------------- sums


def test_sums_are_those_of_whole_numbers() -> None:
    """Numbers of all sizes, added in any order and taken away again, against exact fractions."""
    generator = torch.Generator().manual_seed(0)
    scale = 10.0 ** torch.randint(-22, 12, (40, 50), generator=generator).double()
    values = torch.randn(40, 50, generator=generator, dtype=torch.float64) * scale
    rounded = [
        [Fraction(round(Fraction(v) * 2**60), 2**60) for v in row] for row in values.tolist()
    ]
    totals = [sum(column) for column in zip(*rounded, strict=True)]
    for order in (range(40), reversed(range(40)), torch.randperm(40, generator=generator).tolist()):
        sums = ExactSum.of(torch.zeros(50, dtype=torch.float64), UNIT)
        for row in order:
            sums = sums.plus(ExactSum.of(values[row], UNIT))
        assert whole(sums) == totals
        for row in range(40):
            sums = sums.plus(ExactSum.of(values[row], UNIT), -1)
        assert not sums.low.any() and sums.high is None


def whole(sums: ExactSum) -> list[Fraction]:
    low, high = sums.low, torch.zeros_like(sums.low) if sums.high is None else sums.high
    assert ((low >= -(2.0**-12)) & (low < 2.0**-12)).all()  # so that equal sums are equal bits
    pairs = zip(low.tolist(), high.tolist(), strict=True)
    return [Fraction(a) + Fraction(b) * Fraction(1, 2**11) for a, b in pairs]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e13])
def test_what_cannot_be_summed_exactly_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="must be finite and below"):
        ExactSum.of(torch.tensor([0.0, value], dtype=torch.float64), UNIT)


def test_a_total_that_could_round_is_refused() -> None:
    """Each term is small enough by itself; their sum would depend on the order."""
    terms = [ExactSum.of(torch.tensor(2.0**40 + k * 2.0**-11).double(), UNIT) for k in (1, 2)]
    with pytest.raises(ValueError, match="must be finite and below"):
        terms[0].plus(terms[1]).plus(terms[1])
