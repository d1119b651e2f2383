"""Dropout keyed on (seed, draw, particle)."""

import pytest
import torch
import torch.nn.functional as F
from tests.common import normal
from torch import Tensor, nn
from torch.testing import assert_close

import orderless as ol


class Masks(nn.Module):
    """Shows its own masks: dropout of ones. A parameter makes it a network."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale, self.layer, self.shape = nn.Parameter(torch.ones(())), layer, shape

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.scale * torch.ones(self.shape) + x)


def masks(layer: nn.Module, shape: tuple[int, ...], n: int = 4, **options) -> ol.Ensemble:
    return ol.Ensemble(lambda: Masks(layer, shape), n, **options)


ZERO = torch.zeros(())
SHAPE = (50, 40)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_kept_is_1_minus_p_and_the_mean_stays(p: float) -> None:
    out = masks(nn.Dropout(p), SHAPE)(ZERO).detach()
    kept = out != 0
    for i in range(4):
        share = kept[i].float().mean().item()
        assert share == pytest.approx(1 - p, abs=5 * (p * (1 - p) / 2000) ** 0.5)
    assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))


class Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self) -> Tensor:
        return F.dropout(self.w, 1.5)


def test_extreme_probabilities():
    assert torch.equal(masks(nn.Dropout(0.0), SHAPE)(ZERO), torch.ones(4, *SHAPE))
    assert torch.equal(masks(nn.Dropout(1.0), SHAPE)(ZERO), torch.zeros(4, *SHAPE))
    with pytest.raises(ValueError, match=r"1\.5"):
        ol.Ensemble(Wrong, 2)()


def test_masks_differ_between_particles_draws_seeds_and_layers() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2000))

        def forward(self) -> Tensor:
            return torch.stack([F.dropout(self.w), F.dropout(self.w)])

    particles = ol.Ensemble(Two, 4)
    rows = [particles().detach().flatten(0, 1) for _ in range(3)]
    rows.append(ol.Ensemble(Two, 4, seed=1)().detach().flatten(0, 1))
    rows = torch.cat(rows)
    correlations = torch.corrcoef(rows) - torch.eye(len(rows))
    assert correlations.abs().max() < 5 / 2000**0.5  # independent: five standard errors


def test_evaluation_mode_drops_nothing_and_draws_nothing() -> None:
    particles = masks(nn.Dropout(0.5), SHAPE)
    first = particles(ZERO)
    particles.eval()
    assert torch.equal(particles(ZERO), torch.ones(4, *SHAPE))
    particles.train()
    undisturbed = masks(nn.Dropout(0.5), SHAPE)
    assert torch.equal(undisturbed(ZERO), first)
    assert torch.equal(undisturbed(ZERO), particles(ZERO))


@pytest.mark.parametrize(
    ("layer", "shape", "lead"),
    [
        (nn.Dropout1d(0.5), (8, 50, 7), 2),
        (nn.Dropout1d(0.5), (200, 7), 1),
        (nn.Dropout2d(0.5), (8, 50, 3, 4), 2),
        (nn.Dropout3d(0.5), (8, 50, 2, 3, 2), 2),
        (nn.Dropout3d(0.5), (200, 2, 3, 2), 1),
        (nn.FeatureAlphaDropout(0.5), (8, 50, 3, 4), 2),
    ],
)
def test_whole_channels_are_dropped(layer: nn.Module, shape: tuple[int, ...], lead: int) -> None:
    out = masks(layer, shape)(ZERO).detach().flatten(lead + 1)
    assert (out == out[..., :1]).all()
    highest = out[..., 0].flatten(1).max()
    share = (out[..., 0].flatten(1) == highest).float().mean(1)
    assert ((share - 0.5).abs() < 5 * (0.25 / share.numel() / 50) ** 0.5 + 0.1).all()
    assert len(out.flatten(1).unique(dim=0)) == 4


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    z = (torch.rand(200, 200) * 2 - 1) * 3**0.5  # mean 0, variance 1, above what is dropped to
    particles = masks(nn.AlphaDropout(0.3), (1,), 3)
    with torch.no_grad():
        particles.scale.zero_()
    out = particles(z).detach()
    assert_close(out.mean((1, 2)), torch.zeros(3), rtol=0, atol=0.03)
    assert_close(out.var((1, 2)), torch.ones(3), rtol=0, atol=0.05)
    lowest = out.min()
    assert (out == lowest).float().mean().item() == pytest.approx(0.3, abs=0.01)
    values = nn.AlphaDropout(0.3)(z)
    assert_close(lowest, values.min())


def test_dropout_in_place_on_an_input_that_all_share() -> None:
    x = torch.ones(5, 100)
    particles = ol.Ensemble(
        lambda: nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(100, 2)), 3
    )
    copied = ol.Ensemble(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(100, 2)), 3)
    assert torch.equal(particles(x), copied(x))
    assert torch.equal(x, torch.ones(5, 100))


class Attention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


class Scaled(nn.Module):
    """scaled_dot_product_attention with everything it takes."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.inlet, self.causal = nn.Linear(8, 24), causal

    def forward(self, x: Tensor, dropout: float = 0.5) -> Tensor:
        q, k, v = self.inlet(x).chunk(3, -1)
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=self.causal, scale=0.3
        )


class Memory(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(8, 3, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][:, -1]


MAKERS = {
    "dropout": lambda: Masks(nn.Dropout(0.5), (2, 6, 8)),
    "alpha dropout": lambda: Masks(nn.AlphaDropout(0.3), (2, 6, 8)),
    "attention's weights": lambda: Attention(True),
    "attention without weights": lambda: Attention(False),
    "causal attention": lambda: Scaled(True),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 8, dropout=0.5, batch_first=True),
    "LSTM": lambda: Memory(nn.LSTM),
    "GRU": lambda: Memory(nn.GRU),
    "RNN": lambda: Memory(nn.RNN),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_particle_draws_the_same_in_any_company_whatever_torch_draws(name):
    x = normal(2, 6, 8)
    few, *others = (
        ol.Ensemble(MAKERS[name], n, chunk_size=size)
        for n, size in ((3, None), (3, 2), (3, 1), (7, None), (1, None))
    )
    first, second = few(x), few(x)
    assert not torch.allclose(first, second)
    exact = {"rtol": 0, "atol": 0} if name.endswith("dropout") else {}
    for seed, particles in enumerate(others):
        torch.manual_seed(seed)
        for expected in (first, second):
            n = min(particles.n, 3)
            assert_close(particles(x)[:n], expected[:n], **exact)


def test_dropped_attention_is_right_on_average() -> None:
    """Over many masks the mean is attention without dropout."""
    x = torch.randn(2, 6, 8)
    for causal in (False, True):
        module = Scaled(causal)
        particles = ol.Ensemble.from_modules([module] * 400)
        with torch.no_grad():
            out = particles(x)
            exact = module(x, dropout=0.0)
        error = out.std(0) / 400**0.5
        assert ((out.mean(0) - exact).abs() <= 5 * error + 1e-6).all()
        assert (out.std(0) > 0).any()
