"""Layers' input moments against second derivatives, and against explicit loops."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import orderless as ol
from orderless.product.merging import merged_layers, task_moments


def moments(particles: ol.Ensemble, x: Tensor) -> dict[str, Tensor]:
    labels = torch.zeros(len(x), dtype=torch.long)
    return task_moments(particles, merged_layers(particles), (x, labels))[0]


def frozen(name: str) -> nn.Module:
    module = nn.Linear(3, 2)
    getattr(module, name).requires_grad_(False)
    return module


LAYERS = {
    "linear": (nn.Linear(3, 2), (4, 5, 3)),  # every row of a sequence
    "without its weight": (frozen("weight"), (4, 3)),
    "without its bias": (frozen("bias"), (4, 3)),
    "padded": (nn.Conv2d(2, 3, 3, padding=(1, 2), stride=2), (3, 2, 5, 6)),
    "dilated": (nn.Conv2d(2, 3, 2, dilation=(2, 1)), (3, 2, 5, 6)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4, bias=False), (2, 4, 5, 6)),
    "same": (nn.Conv2d(2, 2, 3, padding="same"), (3, 2, 4, 4)),
    "reflected": (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (3, 2, 4, 4)),
    "sequence": (nn.Conv1d(4, 2, 3, stride=2, padding=1, dilation=2, groups=2), (3, 4, 7)),
    "volume": (nn.Conv3d(2, 4, (1, 2, 3), padding=(0, 1, 1), groups=2), (2, 2, 3, 4, 5)),
    "batch norm": (nn.BatchNorm2d(3), (4, 3, 2, 2)),
    "group norm": (nn.GroupNorm(2, 4), (3, 4, 5)),
    "layer norm": (nn.LayerNorm(4), (3, 2, 4)),
    "root mean square norm": (nn.RMSNorm(4), (5, 4)),
    "embedding": (nn.Embedding(5, 3), (2, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_moments_are_the_second_derivatives_of_the_squared_outputs(name: str) -> None:
    """Outputs are linear in W, so the Hessian of |outputs|^2 / 2 is G for every column of W, and 0
    between blocks and between columns."""
    module, shape = LAYERS[name]
    module = module.double()
    x = torch.randn(shape, dtype=torch.float64)
    if isinstance(module, nn.Embedding):
        x = torch.tensor([[0, 1, 1], [4, 1, 0]])
    else:
        module.train()(3 * x + 1)  # running statistics of its own
    particles = ol.Ensemble(lambda: module, 1).double()
    (layer,) = merged_layers(particles).values()
    tensors = {n: p for n, p in particles.named_parameters() if p.requires_grad}
    start = layer.matrix(tensors)
    module.eval()

    def energy(matrix: Tensor) -> Tensor:
        weights = {n: w[0] for n, w in layer.parameters(matrix, tensors).items()}
        without = {n: torch.zeros_like(p) for n, p in module.named_parameters() if n not in weights}
        return torch.func.functional_call(module, weights | without, (x,)).square().sum() / 2

    blocks, width, columns = start.shape[1:]
    hessian = torch.func.hessian(energy)(start)[0, :, :, :, 0]
    (gram,) = moments(particles, x).values()
    eye = torch.einsum("bc,kl->bkcl", torch.eye(blocks), torch.eye(columns)).double()
    expected = torch.einsum("bij,bkcl->bikcjl", gram[0], eye)
    assert gram.shape == (1, blocks, width, width)
    assert_close(hessian, expected, rtol=1e-10, atol=1e-10)


class Tied(nn.Module):
    """One weight in two layers, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(self.first(x))))


def test_tied_weights_add_their_moments() -> None:
    particles = ol.Ensemble(Tied, 1).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    weight = particles.first.weight[0].detach()
    inner = F.linear(x, weight)
    deep = F.linear(inner, weight).relu()
    looped = torch.stack([torch.outer(a, a) for a in [*x, *inner, *deep]]).sum(0)
    assert_close(moments(particles, x)["first.weight"][0, 0], looped)


def test_every_particle_has_its_own_moments() -> None:
    """Also where the first layer sees the same inputs in all of them."""
    make = lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))  # noqa: E731
    together = ol.Ensemble(make, 2).double()
    x = torch.randn(5, 3).double()
    found = moments(together, x)
    for i in range(2):
        for name, gram in moments(ol.Ensemble.from_modules([together[i]]), x).items():
            # the last bits of one product for all particles are not those of a product for each
            assert_close(found[name][i], gram[0], rtol=1e-13, atol=1e-15)
    assert not torch.equal(found["2.weight"][0], found["2.weight"][1])
