"""Building an ensemble, and getting networks in and out of it."""

import copy
import pickle

import numpy as np
import pytest
import torch
from tests.common import assert_identical, cross_entropy, gradient_filter, take_step
from tests.ensemble.networks import Shared, Tokens
from torch import Tensor, nn
from torch.optim import SGD
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import orderless as ol


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_any_kind_of_integer_will_do():
    assert ol.Ensemble(mlp, np.int64(3)).n == 3
    assert len(ol.Ensemble(mlp, torch.tensor(2))) == 2
    ours, same = ol.Ensemble(mlp, 2, seed=7), ol.Ensemble(mlp, 2, seed=np.int64(7))
    assert_identical(same.state_dict(), ours.state_dict())


NO_NUMBERS = {  # (which argument, what is given)
    **{f"n={n!r}": {"n": n} for n in (0, -1, 1.5, "3", None, float("nan"))},
    **{f"seed={seed!r}": {"n": 2, "seed": seed} for seed in (1.5, "a", None)},
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_n_and_a_seed_are_whole_numbers(name):
    what, _, given = name.partition("=")
    with pytest.raises(ValueError, match=f"{what} must be a whole number.*, got {given}"):
        ol.Ensemble(mlp, **NO_NUMBERS[name])
    if what == "seed":
        with pytest.raises(ValueError, match="seed must be a whole number"):
            ol.Ensemble.from_modules([mlp(), mlp()], seed=NO_NUMBERS[name]["seed"])


class Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu() if x.mean() * self.weight.mean() > 0 else x


class Writing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(len(x), 2)
        out[:] = super().forward(x)
        return out


@pytest.mark.parametrize(
    "make",
    [
        lambda: Branching(3, 3),
        lambda: Writing(3, 2),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=None)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)),
    ],
)
def test_a_network_that_vmap_cannot_run_is_named(make) -> None:
    with pytest.raises(RuntimeError, match=" cannot run for several particles at once") as caught:
        ol.Ensemble(make, 2)(torch.randn(5, 3))
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None  # whose traceback shows the line


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4), (4,)])
def test_inputs_of_another_width_are_named_without_the_particles(shape) -> None:
    with pytest.raises(RuntimeError, match="takes inputs of 3 values, got shape") as caught:
        ol.Ensemble(mlp, 2)(torch.randn(shape))
    assert str(caught.value).endswith(str(list(shape)))


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Anonymous(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (Nothing, {}, ValueError, "Nothing has no parameters"),
        (lambda: nn.Embedding(9, 4, sparse=True), {}, ValueError, "with sparse=False"),
        (lambda: nn.LazyLinear(3), {}, TypeError, "LazyLinear has lazy layers"),
        (lambda: nn.LazyLinear(3), {"init": ol.Perturb()}, TypeError, "has lazy layers"),
        (nn.LazyLinear(3), {}, TypeError, "has lazy layers"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d()), {}, TypeError, "lazy"),
        (lambda: 3, {}, TypeError, "must return an nn.Module, got int"),
        (Anonymous(), {}, TypeError, "'Anonymous' has parameters but no reset_parameters"),
        (mlp, {"init": "zeros"}, ValueError, "got 'zeros'"),
        (mlp, {"precision": "fp8"}, ValueError, "got 'fp8'"),
        (mlp, {"chunk_size": 0}, ValueError, "chunk_size must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_an_ensemble_is_named(make, options, error, message) -> None:
    with pytest.raises(error, match=message):
        ol.Ensemble(make, 2, **options)


ARCHITECTURES = {
    "at least one module": lambda: ol.Ensemble.from_modules([]),
    r"module 1 .* is \(2, 4\) there and \(2, 3\) here": lambda: ol.Ensemble.from_modules(
        [nn.Linear(3, 2), nn.Linear(4, 2)]
    ),
    "'bias' is not in both": lambda: ol.Ensemble.from_modules(
        [nn.Linear(3, 2), nn.Linear(3, 2, bias=False)]
    ),
    "another architecture": lambda: ol.Ensemble(mlp, 2).load_particle(0, nn.Linear(3, 2)),
}


@pytest.mark.parametrize("words", ARCHITECTURES)
def test_networks_of_different_architectures_are_refused(words):
    with pytest.raises(ValueError, match=words):
        ARCHITECTURES[words]()


def test_names_are_the_networks_own_and_tensors_have_a_leading_n() -> None:
    for make in (mlp, Tokens, Shared):
        particles, module = ol.Ensemble(make, 5), make()
        assert list(particles.state_dict()) == list(module.state_dict())
        for name, tensor in module.state_dict().items():
            assert particles.state_dict()[name].shape == (5, *tensor.shape)
        ours = [name for name, _ in particles.named_parameters()]
        assert ours == [name for name, _ in module.named_parameters()]


def test_parameters_know_their_particles_also_when_copied_moved_or_pickled() -> None:
    particles = ol.Ensemble(mlp, 5)
    copies = [copy.deepcopy(particles), pickle.loads(pickle.dumps(particles))]
    for e in (particles, *copies, copy.deepcopy(particles).double()):
        for parameter in e.parameters():
            assert type(parameter) is ol.ParticleParameter
            assert parameter.n_particles == 5
            assert parameter.is_leaf


def test_a_member_is_an_ordinary_module_of_its_own():
    particles = ol.Ensemble(mlp, 3)
    member = particles[1]
    assert type(member) is nn.Sequential
    assert all(type(p) is nn.Parameter for p in member.parameters())
    before = copy.deepcopy(particles.state_dict())
    member(torch.randn(5, 3)).sum().backward()
    SGD(member.parameters(), lr=0.1).step()
    assert_identical(particles.state_dict(), before)
    assert torch.equal(particles[-1][0].weight, particles[2][0].weight)
    assert len(list(particles)) == 3
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"particle {index} does not exist: there are 3"):
            particles[index]


def test_networks_survive_the_round_trip():
    modules = [mlp() for _ in range(4)]
    for module in modules:
        module(torch.randn(5, 3))  # statistics of its own
    particles = ol.Ensemble.from_modules(modules)
    other = ol.Ensemble(mlp, 4, seed=9)
    for i, module in enumerate(modules):
        other.load_particle(i, particles[i])
        assert_identical(particles[i].state_dict(), module.state_dict())
    assert_identical(other.state_dict(), particles.state_dict())
    modules[0][0].weight.data.zero_()
    assert not (particles.get_parameter("0.weight")[0] == 0).any()  # a copy was stacked


def test_a_shared_block_stays_shared() -> None:
    particles = ol.Ensemble(Shared, 3).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    particles(x)
    block, again = (particles.get_submodule(name) for name in ("block.1", "again.1"))
    assert block.running_mean is again.running_mean
    assert block.num_batches_tracked.tolist() == [3, 3, 3]
    member = particles[0]
    assert member.block is member.again
    tied = ol.Ensemble(Tokens, 3)
    for e in (tied, copy.deepcopy(tied)):
        assert e.get_parameter("outlet.weight") is e.get_parameter("embedding.weight")
        member = e[1]
        assert member.outlet.weight is member.embedding.weight


@pytest.mark.parametrize("name", ["n", "seed", "device", "template", "replay"])
def test_a_part_named_as_one_of_the_ensembles_own_is_refused(name: str) -> None:
    """`get_parameter` and `functional_call` would find the other one."""

    def make() -> nn.Module:
        network = nn.Module()
        network.add_module(name, nn.Linear(2, 2))
        return network

    with pytest.raises(ValueError, match=f"'{name}'.*nn.Sequential"):
        ol.Ensemble(make, 2)
    wrapped = ol.Ensemble(lambda: nn.Sequential(make()), 2)
    assert wrapped.get_parameter(f"0.{name}.weight").shape == (2, 2, 2)


def test_layers_keep_the_mode_they_were_made_in() -> None:
    def make() -> nn.Module:
        module = mlp()
        module[1].eval()
        return module

    particles = ol.Ensemble(make, 2)
    particles(torch.randn(5, 3))
    assert particles.get_buffer("1.num_batches_tracked").tolist() == [0, 0]
    particles.train()
    particles(torch.randn(5, 3))
    assert particles.get_buffer("1.num_batches_tracked").tolist() == [1, 1]
    assert not ol.Ensemble(lambda: mlp().eval(), 2).training


def test_a_loss_that_looks_at_values_is_computed_for_one_network_after_another() -> None:
    mean, variance = torch.randn(3, 5, 2, requires_grad=True), torch.rand(3, 5, 2)
    targets = torch.randn(5, 2)
    loss = nn.functional.gaussian_nll_loss  # looks whether a variance is negative
    outputs = {"mean": mean, "variance": variance}
    losses = ol.per_particle(lambda out, y: loss(out["mean"], y, out["variance"]))(outputs, targets)
    expected = torch.stack([loss(mean[i], targets, variance[i]) for i in range(3)])
    assert_close(losses, expected, rtol=0, atol=0)  # the very same calls
    own = targets + torch.randn(3, 1, 1)
    several = ol.per_particle(loss, in_dims=(0, 0, 0))(mean, own, variance)
    expected = torch.stack([loss(mean[i], own[i], variance[i]) for i in range(3)])
    assert_close(several, expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="negative"):
        ol.per_particle(loss, in_dims=0)(mean, own, -variance)


def test_losses_per_particle_are_each_networks_own():
    outputs, targets = torch.randn(3, 5, 4), torch.randint(0, 4, (5,))
    own_targets = torch.randint(0, 4, (3, 5))
    loss = nn.functional.cross_entropy
    smooth = cross_entropy(outputs, targets, label_smoothing=0.1)
    own = ol.per_particle(loss, in_dims=(0, 0))(outputs, own_targets)
    for i in range(3):
        assert_close(smooth[i], loss(outputs[i], targets, label_smoothing=0.1))
        assert_close(own[i], loss(outputs[i], own_targets[i]))
    half = cross_entropy(outputs.bfloat16(), targets)
    assert_close(half, cross_entropy(outputs.bfloat16().float(), targets))  # in float32
    nested = ol.per_particle(lambda out, y: loss(out["a"][0], y))
    assert_close(nested({"a": (outputs,)}, targets), cross_entropy(outputs, targets))
    squares = ol.per_particle(nn.MSELoss())(outputs, torch.zeros(5, 4))
    assert_close(squares, outputs.square().mean((1, 2)))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_network_that_runs_again_in_the_backward_pass_is_noticed(n: int, reentrant: bool) -> None:
    """It would run with the template's numbers instead of a particle's."""

    class Checkpointed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = self
            return checkpoint(second, first(x), use_reentrant=reentrant)

    make = lambda: Checkpointed(nn.Linear(3, 4), nn.Linear(4, 2))  # noqa: E731
    pf = gradient_filter(make, n, kind=ol.AveragingParticles)
    with pytest.raises((FloatingPointError, RuntimeError)):
        take_step(pf, torch.randn(6, 3), torch.randint(2, (6,)))


def test_a_chunk_is_computed_again_with_the_noise_of_the_network_itself():
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(7))

        def forward(self, x):
            return x * self.scale * torch.rand_like(x)

    particles = ol.Ensemble(Noisy, 3, chunk_size=2)
    outputs = particles(torch.randn(5, 7))
    (gradient,) = torch.autograd.grad(outputs.sum(), list(particles.parameters()))
    assert_close(gradient, outputs.sum(1).detach())  # linear in a scale of 1
