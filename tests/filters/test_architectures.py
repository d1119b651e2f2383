"""Networks of many kinds under many optimizers: one filter is a plain loop over its networks."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.filters.oracles import assert_same_networks, cross_entropy, loop
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import orderless as ol

N, BATCH, LENGTH, WIDTH, CLASSES = 3, 4, 5, 8, 3
IMAGES, TOKENS, SEQUENCES, VECTORS = "images", "tokens", "sequences", "vectors"


def inputs(kind: str, generator: torch.Generator) -> Tensor:
    if kind == TOKENS:
        return torch.randint(7, (BATCH, LENGTH), generator=generator)
    shapes = {IMAGES: (2, 6, 6), SEQUENCES: (LENGTH, WIDTH), VECTORS: (WIDTH,)}
    return torch.randn(BATCH, *shapes[kind], generator=generator, dtype=torch.float64)


class Encoder(nn.Module):
    def __init__(self, layers: int = 1, **options) -> None:
        super().__init__()
        one = nn.TransformerEncoderLayer(WIDTH, 2, 12, 0.0, batch_first=True, **options)
        self.layers = nn.TransformerEncoder(one, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))


class MaskedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        return self.head(self.attention(x, x, x, attn_mask=mask, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind) -> None:
        super().__init__()
        self.layer, self.head = kind(WIDTH, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0])


class Tied(nn.Module):
    """One matrix embeds and decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(7, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decode = nn.Linear(WIDTH, 7, bias=False)
        self.decode.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.mix(self.embedding(tokens))).mean(1))[:, :CLASSES]


class Thrice(nn.Module):
    """A Linear layer used three times beside a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.frozen = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.block(x) + self.frozen(x))
        return self.head(x)


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.norm = nn.EmbeddingBag(7, WIDTH), nn.RMSNorm(WIDTH)
        self.pair = nn.Bilinear(WIDTH, WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.bag(tokens))
        return self.pair(x, x.flip(1))


class Spectrum(nn.Module):
    """A Fourier transform, a convolution in three dimensions, a complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.conv, self.head = nn.Conv3d(2, 2, (1, 3, 3)), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fft.irfft(torch.fft.rfft(x) * self.filter.to(torch.complex128), n=6)
        return self.head(self.conv(x.unsqueeze(2)).flatten(1))


class Average(nn.Module):
    """A buffer that follows the activations."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.a(x))
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.b(x - self.mean)


def upsampling() -> nn.Module:
    layers = [nn.ConvTranspose2d(2, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(676, CLASSES))


def grouped() -> nn.Module:
    conv = nn.Conv2d(2, 4, 3, padding=2, dilation=2, groups=2, padding_mode="reflect")
    norm = nn.InstanceNorm2d(4, affine=True)
    return nn.Sequential(conv, norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))


def parametrized(kind) -> nn.Module:
    return nn.Sequential(kind(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


NETWORKS = {
    "encoder": (Encoder, SEQUENCES),
    "pre-norm encoder": (partial(Encoder, norm_first=True), SEQUENCES),
    "two encoder layers": (partial(Encoder, 2), SEQUENCES),
    "masked attention": (MaskedAttention, SEQUENCES),
    "LSTM": (partial(Recurrent, nn.LSTM), SEQUENCES),
    "GRU": (partial(Recurrent, nn.GRU), SEQUENCES),
    "LSTM cell": (Cell, SEQUENCES),
    "tied embedding": (Tied, TOKENS),
    "a layer thrice": (Thrice, VECTORS),
    "bags of tokens": (Bags, TOKENS),
    "weight norm": (partial(parametrized, parametrizations.weight_norm), VECTORS),
    "orthogonal": (partial(parametrized, parametrizations.orthogonal), VECTORS),
    "spectrum": (Spectrum, IMAGES),
    "transposed": (upsampling, IMAGES),
    "grouped": (grouped, IMAGES),
    "moving average": (Average, VECTORS),
}


def assert_like_the_loop(name: str, make_optimizer, schedule=None, steps: int = 4, **options):
    make, kind = NETWORKS[name]
    generator = torch.Generator().manual_seed(3)
    data = [
        (inputs(kind, generator), torch.randint(CLASSES, (BATCH,), generator=generator))
        for _ in range(steps)
    ]
    particles = ol.Ensemble(make, N, seed=2, **options).double()
    modules, log_weights = loop(particles, make_optimizer, data, make_scheduler=schedule)
    pf = ol.WeightedParticleFilter(particles, make_optimizer(particles.parameters()))
    scheduler = schedule(pf.optimizer) if schedule else None
    for x, y in data:
        pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
        if scheduler is not None:
            scheduler.step()
    assert_same_networks(particles, modules, 1e-9)
    torch.testing.assert_close(pf.log_weights, log_weights, rtol=0, atol=1e-9)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def adamw(parameters):
    # eps: where a gradient is rounding noise (a key's bias), Adam would make steps of it
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.05, eps=1e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_any_network_under_sgd_equals_the_loop(name: str) -> None:
    assert_like_the_loop(name, sgd)


@pytest.mark.parametrize("name", NETWORKS)
def test_any_network_under_adamw_with_a_schedule_equals_the_loop(name: str) -> None:
    schedule = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=4)
    assert_like_the_loop(name, adamw, schedule, steps=3)


@pytest.mark.parametrize("name", ["encoder", "tied embedding", "moving average", "grouped"])
def test_in_chunks_too(name: str) -> None:
    assert_like_the_loop(name, sgd, steps=2, chunk_size=2)


OPTIMIZERS = {
    "sgd": sgd,
    "adamw": adamw,
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, eps=1e-3),
    "nadam": partial(torch.optim.NAdam, lr=0.01, eps=1e-3),
    "adagrad": partial(torch.optim.Adagrad, lr=0.01, eps=1e-3),
    "asgd": partial(torch.optim.ASGD, lr=0.05),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "weighting"),
    [(name, "trapezoid") for name in OPTIMIZERS]
    + [("sgd", "linearized"), ("adamw", "linearized"), ("momentum", "linearized")],
)
def test_three_closures_a_penalty_clipping_and_a_loss_scale(name: str, weighting: str) -> None:
    """All at once, written out for one network after another."""
    make_optimizer = OPTIMIZERS[name]
    particles = ol.Ensemble(Encoder, N, seed=2).double()
    modules = [particles[i] for i in range(N)]
    generator = torch.Generator().manual_seed(3)
    data = [
        [
            (inputs(SEQUENCES, generator), torch.randint(CLASSES, (BATCH,), generator=generator))
            for _ in range(3)
        ]
        for _ in range(3)
    ]
    pf = ol.WeightedParticleFilter(
        particles,
        make_optimizer(particles.parameters()),
        weighting=weighting,
        loss_scale=2.5,
        max_grad_norm=0.7,
    )
    for parts in data:
        pf.step(
            [lambda x=x, y=y: cross_entropy(particles(x), y) for x, y in parts],
            penalty=lambda: sum(p.square().flatten(1).sum(1) for p in particles.parameters()) / 50,
        )
    log_weights = []
    for module in modules:
        optimizer, log_weight = make_optimizer(module.parameters()), 0.0
        parameters = list(module.parameters())
        for parts in data:
            before = sum(F.cross_entropy(module(x), y) for x, y in parts)
            slope = torch.autograd.grad(before, parameters, retain_graph=True)
            optimizer.zero_grad()
            (before + sum(p.square().sum() for p in parameters) / 50).backward()
            nn.utils.clip_grad_norm_(parameters, 0.7)
            old = [p.detach().clone() for p in parameters]
            optimizer.step()
            with torch.no_grad():
                after = sum(F.cross_entropy(module(x), y) for x, y in parts)
                if weighting == "linearized":
                    moved = zip(slope, parameters, old, strict=True)
                    after = before + sum((g * (p - o)).sum() for g, p, o in moved)
            log_weight -= 2.5 * (before.item() + after.item()) / 2
        log_weights.append(log_weight)
    assert_same_networks(particles, modules, 1e-9)
    expected = torch.tensor(log_weights, dtype=torch.float64).log_softmax(0)
    torch.testing.assert_close(pf.log_weights, expected, rtol=0, atol=1e-9)
