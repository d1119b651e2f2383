"""One filter over N networks is N networks with N optimizers: a plain loop, in float64."""

import copy
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.common import (
    assert_identical,
    assert_like_the_loop,
    assert_same_networks,
    batches,
    cnn,
    cross_entropy,
    dropout_mlp,
    gradient_filter,
    mlp,
    train,
)
from tests.ensemble.networks import NETWORKS, inputs
from torch import Tensor, nn, optim
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import orderless as ol

OPTIMIZERS = {
    "sgd": partial(optim.SGD, lr=0.1),
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9),
    "dampened": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.3),
    "nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "weight decay": partial(optim.SGD, lr=0.1, weight_decay=0.1),
    "maximize": partial(optim.SGD, lr=0.1, maximize=True),
    "adam": partial(optim.Adam, lr=0.01),
    "amsgrad": partial(optim.Adam, lr=0.01, amsgrad=True),
    "adamw": partial(optim.AdamW, lr=0.01, weight_decay=0.1),
    "rmsprop": partial(optim.RMSprop, lr=0.01),
    "adagrad": partial(optim.Adagrad, lr=0.1),
    "adadelta": partial(optim.Adadelta, lr=0.1),
    "adamax": partial(optim.Adamax, lr=0.01),
    "asgd": partial(optim.ASGD, lr=0.1),
    "nadam": partial(optim.NAdam, lr=0.01),
    "radam": partial(optim.RAdam, lr=0.01),
    "rprop": partial(optim.Rprop, lr=0.01),
}


@pytest.mark.parametrize("max_grad_norm", [None, 1.0], ids=["", "clipped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_mlp_under_any_optimizer(name, max_grad_norm):
    """Gradients of very different sizes: some are clipped, some not."""
    particles = ol.Ensemble(mlp, 3, seed=2).double()
    scales = torch.tensor([0.1, 1.0, 10.0])
    for parameter in particles.parameters():
        parameter.data.mul_(scales.view(-1, *[1] * (parameter.dim() - 1)))
    data = list(batches(5, dtype=torch.float64))
    assert_like_the_loop(particles, data, OPTIMIZERS[name], max_grad_norm=max_grad_norm)


def waves(outputs: object, _: Tensor) -> Tensor:
    """A loss of whatever a network returns."""
    return sum(leaf.sin().mean() for leaf in tree_leaves(outputs))


# eps: where a gradient is rounding noise (a key's bias), Adam would make steps of it
ADAMW = partial(optim.AdamW, lr=0.01, weight_decay=0.05, eps=1e-3)
COSINE = partial(optim.lr_scheduler.CosineAnnealingLR, T_max=4)
WAYS = {
    "sgd": ({}, {}),
    "sgd in chunks": ({"chunk_size": 2}, {}),
    "sgd with a schedule": ({}, {"make_scheduler": COSINE}),
    "adamw with a schedule": ({}, {"make_optimizer": ADAMW, "make_scheduler": COSINE}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "network",
    ["mlp", "batch norm", "shared block", "transformer", "recurrent"]
    + ["tied embedding", "bags of tokens", "bilinear", "conv3d", "spectrum"],
)
def test_any_network_learns_as_alone_and_nobody_complains(network, way):
    (make, shape), (options, training) = NETWORKS[network], WAYS[way]
    particles = ol.Ensemble(make, 3, seed=2, **options).double()
    data = [(inputs(shape, seed), torch.zeros(1)) for seed in range(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "There is a performance drop")  # torch.vmap's own
        assert_like_the_loop(particles, data, loss=waves, **training)


def test_every_optimizer_of_torch_equals_the_loop_or_is_refused():
    classes = [c for c in vars(optim).values() if isinstance(c, type)]
    everything = {c for c in classes if issubclass(c, optim.Optimizer)}
    others = {optim.Optimizer, optim.SparseAdam}  # the latter for sparse gradients
    rest = everything - others - {make.func for make in OPTIMIZERS.values()}
    assert rest == {optim.Adafactor, optim.LBFGS, optim.Muon}
    particles = ol.Ensemble(lambda: nn.RMSNorm(6), 2)  # vectors: stacked, they are Muon's matrices
    for kind in rest:
        with pytest.raises(ValueError, match=f"^{kind.__name__} would mix stacked networks"):
            ol.WeightedParticleFilter(particles, kind(particles.parameters()))
    with pytest.raises(TypeError, match="optimizer must be a torch.optim.Optimizer, got str"):
        ol.WeightedParticleFilter(particles, "sgd")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [mlp, cnn], ids=["mlp", "cnn"])
def test_one_particle_is_sgd_bit_for_bit(make):
    plain = gradient_filter(make, 1, kind=ol.GradientDescent)
    weighted = gradient_filter(make, 1)
    module = plain.particles[0]
    optimizer = OPTIMIZERS["sgd"](module.parameters())
    data = list(batches(50, (4, 2, 8, 8) if make is cnn else (4, 6)))
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    for pf in (plain, weighted):
        train(pf, data)
        assert_same_networks(pf.particles, [module], 0)


@pytest.mark.parametrize("init", ["fresh", ol.Perturb(), ol.Perturb(base="fresh")], ids=str)
@pytest.mark.parametrize("chunk_size", [None, 7], ids=["whole", "in chunks"])
def test_a_particle_lives_the_same_life_among_5_and_among_50(init, chunk_size):
    """Whole trajectories, dropout included; 1e-6: products of other sizes round otherwise."""
    few, many = ol.Ensemble(dropout_mlp, 5, init), ol.Ensemble(dropout_mlp, 50, init)
    many.chunk_size = chunk_size  # which leaves one network alone
    for particles in (few, many):
        optimizer = OPTIMIZERS["sgd"](particles.parameters())
        train(ol.WeightedParticleFilter(particles, optimizer), batches(5))
    first = {name: tensor[:5] for name, tensor in many.state_dict().items()}
    assert_close(first, dict(few.state_dict()), rtol=0, atol=1e-6)


def test_averaging_moves_as_the_weighted_filter_and_weighs_nothing():
    weighted, averaging = gradient_filter(), gradient_filter(kind=ol.AveragingParticles)
    train(weighted, batches(5))
    *_, info = train(averaging, batches(5))
    assert_identical(averaging.particles.state_dict(), weighted.particles.state_dict())
    assert info.loss_after is None
    assert_close(averaging.weights, torch.full((3,), 1 / 3, dtype=torch.float64))
    assert abs(averaging.log_evidence.item()) < 1e-12


def test_the_compiled_step_is_the_step():
    eager, compiled = (gradient_filter(dropout_mlp, 4, OPTIMIZERS["adam"]) for _ in range(2))
    train(eager, batches(4))
    fast = compiled.compile(lambda x, y: cross_entropy(compiled.particles(x), y))
    for x, y in batches(4):
        info = fast(x, y)
    assert_identical(compiled.state_dict(), eager.state_dict())
    assert torch.equal(info.log_weights, compiled.log_weights)


@pytest.mark.parametrize("weighting", ["trapezoid", "linearized"])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "rmsprop", "asgd"])
def test_three_closures_a_penalty_clipping_and_a_loss_scale(name, weighting):
    """All at once, written out for one network after another. The closures fill one buffer: the x
    of the first is gone when the last is called."""
    make_optimizer = OPTIMIZERS[name]
    options = {"loss_scale": 1.5, "max_grad_norm": 0.7, "dtype": torch.float64}
    pf = gradient_filter(mlp, 3, make_optimizer, weighting=weighting, **options)
    pf.loss_scale += 1.0  # may be changed at any time
    modules = copy.deepcopy(list(pf.particles))
    data = list(batches(9, dtype=torch.float64))
    data = [data[:3], data[3:6], data[6:]]
    buffer = torch.empty(4, 6, dtype=torch.float64)

    def closure(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(pf.particles(buffer.copy_(x)), y)

    def sizes() -> Tensor:
        return sum(p.square().flatten(1).sum(1) for p in pf.particles.parameters())

    for parts in data:
        pf.step([partial(closure, x, y) for x, y in parts], penalty=sizes)
    log_weights = []
    for module in modules:
        optimizer, log_weight = make_optimizer(module.parameters()), 0.0
        parameters = list(module.parameters())
        for parts in data:
            before = sum(F.cross_entropy(module(x), y) for x, y in parts)
            slope = torch.autograd.grad(before, parameters, retain_graph=True)
            optimizer.zero_grad()
            (before + sum(p.square().sum() for p in parameters)).backward()
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
    assert_same_networks(pf.particles, modules, 1e-9)
    expected = torch.tensor(log_weights, dtype=torch.float64).log_softmax(0)
    assert_close(pf.log_weights, expected, rtol=0, atol=1e-9)
