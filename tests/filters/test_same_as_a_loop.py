"""One filter over N networks is N networks with N optimizers."""

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
IMAGES = (4, 2, 8, 8)


def train(particles: ol.Ensemble, make_optimizer, data, make_scheduler=None, **options):
    pf = ol.WeightedParticleFilter(particles, make_optimizer(particles.parameters()), **options)
    scheduler = make_scheduler(pf.optimizer) if make_scheduler else None
    for x, y in data:
        pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
        if scheduler is not None:
            scheduler.step()
    return pf


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_mlp_under_any_optimizer_equals_the_loop(name: str) -> None:
    particles = ol.Ensemble(mlp, 4).double()
    data = list(batches(6, dtype=torch.float64))
    modules, log_weights = loop(particles, OPTIMIZERS[name], data)
    pf = train(particles, OPTIMIZERS[name], data)
    assert_same_networks(particles, modules, 1e-10)
    torch.testing.assert_close(pf.log_weights, log_weights, rtol=0, atol=1e-10)


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
def test_a_cnn_with_batch_norm_equals_the_loop_buffers_too(name: str) -> None:
    particles = ol.Ensemble(cnn, 3).double()
    data = list(batches(5, IMAGES, torch.float64))
    modules, log_weights = loop(particles, OPTIMIZERS[name], data)
    pf = train(particles, OPTIMIZERS[name], data)
    assert_same_networks(particles, modules, 1e-10)
    torch.testing.assert_close(pf.log_weights, log_weights, rtol=0, atol=1e-10)
    assert modules[0][1].num_batches_tracked.item() == 5


class Residual(nn.Module):
    """A shared block used twice, a keyword argument that changes the path, outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(6, 8)
        self.block = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU())
        self.gate = nn.Parameter(torch.ones(8))
        self.outlet = nn.Linear(8, 3, bias=False)

    def forward(self, x: Tensor, *, scale: float = 1.0, mask: Tensor | None = None):
        hidden = self.inlet(x)
        for _ in range(2):
            hidden = hidden + scale * self.gate * self.block(hidden)
        if mask is not None:
            hidden = hidden * mask
        return {"logits": self.outlet(hidden), "others": (hidden.mean(-1), hidden.square().sum())}


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_residual_net_with_an_odd_forward_equals_the_loop(name: str) -> None:
    particles = ol.Ensemble(Residual, 4).double()
    data = list(batches(4, dtype=torch.float64))
    mask = torch.rand(8, dtype=torch.float64)

    def loss(out, y: Tensor) -> Tensor:
        mean, size = out["others"]
        return F.cross_entropy(out["logits"], y) + mean.square().mean() + 0.01 * size

    modules, log_weights = loop(
        particles,
        OPTIMIZERS[name],
        data,
        loss=lambda module, x, y: loss(module(x, scale=0.5, mask=mask), y),
    )
    pf = ol.WeightedParticleFilter(particles, OPTIMIZERS[name](particles.parameters()))
    losses = ol.per_particle(loss)
    for x, y in data:
        pf.step(lambda x=x, y=y: losses(particles(x, scale=0.5, mask=mask), y))
    assert_same_networks(particles, modules, 1e-10)
    torch.testing.assert_close(pf.log_weights, log_weights, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_scheduler_works_and_nobody_complains(name: str) -> None:
    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3)

    particles = ol.Ensemble(mlp, 3).double()
    data = list(batches(6, dtype=torch.float64))
    modules, _ = loop(particles, OPTIMIZERS[name], data, make_scheduler=schedule)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(particles, OPTIMIZERS[name], data, make_scheduler=schedule)
    assert_same_networks(particles, modules, 1e-10)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("make", [mlp, cnn], ids=["mlp", "cnn"])
def test_clipping_is_per_particle(name: str, make) -> None:
    particles = ol.Ensemble(make, 4).double()
    with torch.no_grad():  # particles of very different gradients: some are clipped, some not
        for parameter in particles.parameters():
            parameter.mul_(
                torch.tensor([0.1, 1.0, 3.0, 10.0]).view(-1, *[1] * (parameter.dim() - 1))
            )
    data = list(batches(3, IMAGES if make is cnn else (4, 6), torch.float64))
    modules, _ = loop(particles, OPTIMIZERS[name], data, max_grad_norm=1.0)
    unclipped = copy.deepcopy(particles)
    train(particles, OPTIMIZERS[name], data, max_grad_norm=1.0)
    assert_same_networks(particles, modules, 1e-10)
    train(unclipped, OPTIMIZERS[name], data)
    pairs = zip(particles.parameters(), unclipped.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def test_several_closures_accumulate() -> None:
    particles = ol.Ensemble(mlp, 3).double()
    whole = copy.deepcopy(particles)
    (x1, y1), (x2, y2) = batches(2, dtype=torch.float64)
    pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    pf.step([lambda: cross_entropy(particles(x1), y1), lambda: cross_entropy(particles(x2), y2)])
    pf_whole = ol.WeightedParticleFilter(whole, torch.optim.SGD(whole.parameters(), lr=0.1))
    pf_whole.step(lambda: cross_entropy(whole(x1), y1) + cross_entropy(whole(x2), y2))
    for ours, theirs in zip(particles.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(pf.log_weights, pf_whole.log_weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [mlp, cnn, dropout_mlp], ids=["mlp", "cnn", "dropout"])
def test_in_chunks_as_in_one_piece(make) -> None:
    """Gradients, buffers, dropout and weights; n=5 in chunks of 2 leaves one network alone."""
    whole = ol.Ensemble(make, 5, seed=1)
    chunked = ol.Ensemble(make, 5, seed=1, chunk_size=2)
    data = list(batches(3, IMAGES if make is cnn else (4, 6)))
    pf_whole, pf_chunked = (train(p, OPTIMIZERS["sgd"], data) for p in (whole, chunked))
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(chunked.state_dict()[name], tensor, rtol=0, atol=1e-6)
    torch.testing.assert_close(pf_chunked.log_weights, pf_whole.log_weights, rtol=0, atol=1e-6)


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
    for x, y in batches(50, IMAGES if make is cnn else (4, 6)):
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
