"""One filter over N networks is N networks with N optimizers: a plain loop, in float64."""

import copy
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.filters.oracles import (
    assert_same_networks,
    batches,
    cnn,
    cross_entropy,
    dropout_mlp,
    loop,
    mlp,
)
from torch import Tensor, nn

import orderless as ol

IMAGES, SEQUENCES, TOKENS, VECTORS = (4, 2, 8, 8), (4, 5, 8), (4, 5), (4, 6)
WIDTH, CLASSES = 8, 3


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        one = nn.TransformerEncoderLayer(WIDTH, 2, 12, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(one, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind) -> None:
        super().__init__()
        self.layer, self.head = kind(WIDTH, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Tied(nn.Module):
    """One matrix embeds and decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(7, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decode = nn.Linear(WIDTH, 7, bias=False)
        self.decode.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.mix(self.embedding(tokens))).mean(1))[:, :CLASSES]


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
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.conv, self.head = nn.Conv3d(2, 2, (1, 3, 3)), nn.Linear(72, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fft.irfft(torch.fft.rfft(x) * self.filter.to(torch.complex128), n=8)
        return self.head(self.conv(x.unsqueeze(2)).flatten(1))


class Residual(nn.Module):
    """A block used twice beside a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.frozen = nn.Linear(6, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)
        self.block = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.outlet = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inlet(x)
        for _ in range(2):
            hidden = self.frozen(hidden) + self.block(hidden)
        return self.outlet(hidden)


NETWORKS = {
    "MLP": (mlp, VECTORS),
    "CNN with BatchNorm": (cnn, IMAGES),
    "residual": (Residual, VECTORS),
    "encoder": (Encoder, SEQUENCES),
    "LSTM": (partial(Recurrent, nn.LSTM), SEQUENCES),
    "tied embedding": (Tied, TOKENS),
    "bags of tokens": (Bags, TOKENS),
    "spectrum": (Spectrum, IMAGES),
}
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "dampened": partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.3),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "weight decay": partial(torch.optim.SGD, lr=0.1, weight_decay=0.1),
    "maximize": partial(torch.optim.SGD, lr=0.1, maximize=True),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "amsgrad": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "adadelta": partial(torch.optim.Adadelta, lr=0.1),
    "adamax": partial(torch.optim.Adamax, lr=0.01),
    "asgd": partial(torch.optim.ASGD, lr=0.1),
    "nadam": partial(torch.optim.NAdam, lr=0.01),
    "radam": partial(torch.optim.RAdam, lr=0.01),
    "rprop": partial(torch.optim.Rprop, lr=0.01),
}


def samples(shape: tuple[int, ...], steps: int) -> list[tuple[Tensor, Tensor]]:
    data = list(batches(steps, shape, torch.float64))
    return data if shape != TOKENS else [(x.abs().long().clamp(max=6), y) for x, y in data]


def train(particles: ol.Ensemble, make_optimizer, data, make_scheduler=None, **options):
    pf = ol.WeightedParticleFilter(particles, make_optimizer(particles.parameters()), **options)
    scheduler = make_scheduler(pf.optimizer) if make_scheduler else None
    for x, y in data:
        pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
        if scheduler is not None:
            scheduler.step()
    return pf


def assert_like_the_loop(network: str, make_optimizer, schedule=None, **options) -> None:
    make, shape = NETWORKS[network]
    particles = ol.Ensemble(make, 3, seed=2, **options).double()
    data = samples(shape, 5)
    modules, log_weights = loop(particles, make_optimizer, data, make_scheduler=schedule)
    pf = train(particles, make_optimizer, data, schedule)
    assert_same_networks(particles, modules, 1e-9)
    torch.testing.assert_close(pf.log_weights, log_weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_mlp_under_any_optimizer(name: str) -> None:
    assert_like_the_loop("MLP", OPTIMIZERS[name])


@pytest.mark.parametrize("chunk_size", [None, 2], ids=["whole", "in chunks"])
@pytest.mark.parametrize("network", NETWORKS)
def test_any_network_under_sgd(network: str, chunk_size: int | None) -> None:
    assert_like_the_loop(network, OPTIMIZERS["sgd"], chunk_size=chunk_size)


@pytest.mark.parametrize("network", NETWORKS)
def test_any_network_under_adamw_with_a_schedule_and_nobody_complains(network: str) -> None:
    schedule = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=4)
    # eps: where a gradient is rounding noise (a key's bias), Adam would make steps of it
    adamw = partial(torch.optim.AdamW, lr=0.01, weight_decay=0.05, eps=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "There is a performance drop")  # torch.vmap's own
        assert_like_the_loop(network, adamw, schedule)
        assert_like_the_loop(network, OPTIMIZERS["sgd"], schedule)


def test_every_optimizer_of_torch_equals_the_loop_or_is_refused() -> None:
    classes = [c for c in vars(torch.optim).values() if isinstance(c, type)]
    everything = {c for c in classes if issubclass(c, torch.optim.Optimizer)}
    others = {torch.optim.Optimizer, torch.optim.SparseAdam}  # the latter for sparse gradients
    rest = everything - others - {make.func for make in OPTIMIZERS.values()}
    assert rest == {torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Muon}
    particles = ol.Ensemble(lambda: nn.RMSNorm(6), 2)  # vectors: stacked, they are Muon's matrices
    for kind in rest:
        with pytest.raises(ValueError, match=f"^{kind.__name__} would mix stacked networks"):
            ol.WeightedParticleFilter(particles, kind(particles.parameters()))
    with pytest.raises(TypeError, match="optimizer must be a torch.optim.Optimizer, got str"):
        ol.WeightedParticleFilter(particles, "sgd")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("make", [mlp, cnn], ids=["mlp", "cnn"])
def test_clipping_is_per_particle(name: str, make) -> None:
    particles = ol.Ensemble(make, 4).double()
    scales = torch.tensor([0.1, 1.0, 3.0, 10.0])  # some are clipped, some not
    for parameter in particles.parameters():
        parameter.data.mul_(scales.view(-1, *[1] * (parameter.dim() - 1)))
    data = samples(IMAGES if make is cnn else VECTORS, 3)
    modules, _ = loop(particles, OPTIMIZERS[name], data, max_grad_norm=1.0)
    unclipped = copy.deepcopy(particles)
    train(particles, OPTIMIZERS[name], data, max_grad_norm=1.0)
    assert_same_networks(particles, modules, 1e-10)
    train(unclipped, OPTIMIZERS[name], data)
    pairs = zip(particles.parameters(), unclipped.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def test_dropout_in_chunks_is_that_in_one_piece() -> None:
    """n=5 in chunks of 2 leaves one network alone."""
    whole, chunked = (ol.Ensemble(dropout_mlp, 5, chunk_size=size) for size in (None, 2))
    filters = [train(p, OPTIMIZERS["sgd"], list(batches(3))) for p in (whole, chunked)]
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(chunked.state_dict()[name], tensor, rtol=0, atol=1e-6)
    weights = [pf.log_weights for pf in filters]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [mlp, cnn], ids=["mlp", "cnn"])
def test_one_particle_is_sgd_bit_for_bit(make) -> None:
    particles = ol.Ensemble(make, 1, seed=3)
    module = particles[0]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    pf = ol.GradientDescent(particles, torch.optim.SGD(particles.parameters(), lr=0.05))
    weighted_particles = copy.deepcopy(particles)
    weighted = ol.WeightedParticleFilter(
        weighted_particles, torch.optim.SGD(weighted_particles.parameters(), lr=0.05)
    )
    for x, y in batches(50, IMAGES if make is cnn else VECTORS):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
        pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
        weighted.step(lambda x=x, y=y: cross_entropy(weighted_particles(x), y))
    for name, tensor in module.state_dict().items():
        assert torch.equal(particles.state_dict()[name][0], tensor), name
        assert torch.equal(weighted_particles.state_dict()[name][0], tensor), name


@pytest.mark.parametrize("init", ["fresh", ol.Perturb(), ol.Perturb(base="fresh")], ids=str)
def test_a_particle_lives_the_same_life_among_5_and_among_50(init) -> None:
    """Whole trajectories, dropout included; 1e-6: products of other sizes round otherwise."""
    data = list(batches(5))
    few, many = (ol.Ensemble(dropout_mlp, n, init, seed=4) for n in (5, 50))
    for particles in (few, many):
        train(particles, OPTIMIZERS["sgd"], data)
    for name, tensor in few.state_dict().items():
        torch.testing.assert_close(many.state_dict()[name][:5], tensor, rtol=0, atol=1e-6)


def test_averaging_moves_as_the_weighted_filter_and_weighs_nothing() -> None:
    weighted, averaging = ol.Ensemble(mlp, 4), ol.Ensemble(mlp, 4)
    data = list(batches(5))
    train(weighted, OPTIMIZERS["sgd"], data)
    pf = ol.AveragingParticles(averaging, OPTIMIZERS["sgd"](averaging.parameters()))
    for x, y in data:
        info = pf.step(lambda x=x, y=y: cross_entropy(averaging(x), y))
    for name, tensor in weighted.state_dict().items():
        assert torch.equal(averaging.state_dict()[name], tensor)
    assert info.loss_after is None
    torch.testing.assert_close(pf.weights, torch.full((4,), 0.25, dtype=torch.float64))
    assert abs(pf.log_evidence.item()) < 1e-12


def test_the_compiled_step_is_the_step() -> None:
    eager, compiled = ol.Ensemble(dropout_mlp, 4), ol.Ensemble(dropout_mlp, 4)
    data = list(batches(4))
    pf_eager = train(eager, OPTIMIZERS["adam"], data)
    pf = ol.WeightedParticleFilter(compiled, OPTIMIZERS["adam"](compiled.parameters()))
    fast = pf.compile(lambda x, y: cross_entropy(compiled(x), y))
    for x, y in data:
        info = fast(x, y)
    for name, tensor in eager.state_dict().items():
        assert torch.equal(compiled.state_dict()[name], tensor)
    assert torch.equal(pf.log_weights, pf_eager.log_weights)
    assert torch.equal(info.log_weights, pf.log_weights)


# eps: where a gradient is rounding noise (a key's bias), these would make steps of it
CAREFUL = {
    **OPTIMIZERS,
    "adam": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.05, eps=1e-3),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, eps=1e-3),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "weighting"),
    [(name, "trapezoid") for name in ("sgd", "adam", "momentum", "rmsprop", "asgd")]
    + [("sgd", "linearized"), ("adam", "linearized"), ("momentum", "linearized")],
)
def test_three_closures_a_penalty_clipping_and_a_loss_scale(name: str, weighting: str) -> None:
    """All at once, written out for one network after another."""
    make_optimizer = CAREFUL[name]
    particles = ol.Ensemble(Encoder, 3, seed=2).double()
    modules = list(particles)
    data = samples(SEQUENCES, 9)
    data = [data[:3], data[3:6], data[6:]]
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
