"""An ensemble's forward and backward are its members' own, whatever the network."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.ensemble.networks import NETWORKS, inputs
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map

import orderless as ol

WAYS = {
    "fast": {},
    "chunked": {"chunk_size": 2},
    "one by one": {"chunk_size": 1},
}


def assert_like_members(particles: ol.Ensemble, *args, in_dims=None, **kwargs) -> None:
    """Outputs, gradients and buffers against one member after another."""
    members = [particles[i] for i in range(particles.n)]
    pairs = list(zip(args, in_dims or [None] * len(args), strict=True))
    given = [[a if d is None else a.select(d, i) for a, d in pairs] for i in range(particles.n)]
    expected = [member(*own, **kwargs) for member, own in zip(members, given, strict=True)]
    outputs = particles(*args, in_dims=in_dims, **kwargs)
    stacked = tree_map(lambda *parts: torch.stack(parts), *expected)
    for ours, theirs in zip(tree_leaves(outputs), tree_leaves(stacked), strict=True):
        assert_close(ours, theirs, rtol=0, atol=1e-10)
    sum(leaf.sin().sum() for leaf in tree_leaves(outputs)).backward()
    sum(leaf.sin().sum() for leaf in tree_leaves(stacked)).backward()
    for i, member in enumerate(members):
        for name, parameter in member.named_parameters():
            ours = particles.get_parameter(name).grad
            if parameter.grad is None:
                assert ours is None or (ours[i] == 0).all(), name
            else:
                assert_close(ours[i], parameter.grad, rtol=0, atol=1e-10, msg=name)
        for name, buffer in member.named_buffers():
            ours = particles.get_buffer(name)[i]
            assert_close(ours, buffer, rtol=0, atol=1e-10, msg=name)


# Chunks recompute activations through autograd's hooks, which torch.func.grad does not allow.
CASES = [
    pytest.param(name, way, marks=[pytest.mark.slow] * (way == "one by one"))
    for name in NETWORKS
    for way in WAYS
    if name != "torch.func inside" or "chunk_size" not in WAYS[way]
]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_any_network_in_any_way(name: str, way: str) -> None:
    make, shape = NETWORKS[name]
    particles = ol.Ensemble(make, 4, **WAYS[way]).double()
    assert_like_members(particles, inputs(shape))
    if name not in ("plain batch norm", "filters"):  # those have no other mode
        particles.eval()
        particles.zero_grad()
        assert_like_members(particles, inputs(shape))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["mlp", "conv", "grouped first", "batch norm first", "pool first"])
def test_inputs_of_their_own(name: str, way: str) -> None:
    make, shape = NETWORKS[name]
    particles = ol.Ensemble(make, 4, **WAYS[way]).double()
    x = inputs((4, *shape))
    assert_like_members(particles, x, in_dims=(0,))
    particles = ol.Ensemble(make, 4, **WAYS[way]).double()
    assert_like_members(particles, x.movedim(0, 2).contiguous(), in_dims=(2,))
    assert_close(particles(x, per_particle=True), particles(x, in_dims=0))


class Attend(nn.Module):
    """Queries, keys and values of any number of leading dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.shift = nn.Linear(4, 12), nn.Parameter(torch.randn(5, 5))

    def forward(self, x: Tensor, mask: Tensor | None, own: bool, **options: bool) -> Tensor:
        q, k, v = self.inlet(x).chunk(3, -1)
        if own:  # a mask that is every particle's own
            mask = self.shift if mask is None else mask + self.shift
        return F.scaled_dot_product_attention(q, k, v, mask, **options)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("mask", [None, (5, 5), (1, 5), (2, 5, 5), (3, 1, 5, 5)], ids=str)
@pytest.mark.parametrize("lead", [(), (2,), (3, 2), (2, 3, 2)], ids=str)
def test_attention_of_any_shape_with_any_mask(lead, mask, own) -> None:
    if mask is not None and len(mask) - 2 > len(lead):
        mask = mask[-2:]
    particles = ol.Ensemble(Attend, 3).double()
    given = None if mask is None else inputs(mask)
    assert_like_members(particles, inputs((*lead, 5, 4)), mask=given, own=own)
    if mask is None and not own:
        particles.zero_grad()
        causal = {"mask": None, "own": False, "is_causal": True}
        assert_like_members(particles, inputs((*lead, 5, 4)), **causal)


class Options(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(3, 2)

    def forward(self, x, scale: Tensor, double: bool = False, shift: Tensor | None = None):
        y = self.inlet(x["left"] + x["right"][0]) * scale
        y = 2 * y if double else y
        return (y if shift is None else y + shift), [{"y": y}]


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_nested_inputs_keywords_and_things_that_are_not_tensors(chunk_size: int | None) -> None:
    particles = ol.Ensemble(Options, 3, chunk_size=chunk_size)
    x = {"left": torch.randn(3, 4, 3), "right": (torch.randn(3, 4, 3),)}
    scale, shift = torch.randn(3), torch.randn(3, 2)
    ours, rest = particles(x, scale, double=True, shift=shift, per_particle=True)
    no_shift, _ = particles(x, scale, True, None, per_particle=True)
    mixed, _ = particles(x, scale[0], in_dims=(0, None))
    for i in range(3):
        own = tree_map(lambda t, i=i: t[i], x)
        expected, parts = particles[i](own, scale[i], double=True, shift=shift[i])
        assert_close(ours[i], expected)
        assert_close(rest[0]["y"][i], parts[0]["y"])
        assert_close(no_shift[i], particles[i](own, scale[i], True)[0])
        assert_close(mixed[i], particles[i](own, scale[0])[0])


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_inputs_for_another_number_of_particles_are_refused(n: int, chunk_size) -> None:
    particles = ol.Ensemble(lambda: nn.Linear(3, 2), n, chunk_size=chunk_size)
    with pytest.raises(ValueError, match=rf"needs {n} entries along axis 0, got shape \(8, 5, 3\)"):
        particles(torch.randn(8, 5, 3), per_particle=True)
    with pytest.raises(ValueError, match="in_dims has 2 entries for 1 inputs"):
        particles(torch.randn(5, 3), in_dims=(0, None))
    with pytest.raises(ValueError, match="must be nested like the inputs"):
        particles({"x": torch.randn(n, 5, 3), "scale": 2.0}, in_dims=({"x": 0},))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float64, torch.float16])
def test_an_input_of_the_wrong_type_is_an_error_as_in_torch(dtype):
    """Pixels that nobody converted must not be multiplied by weights rounded to integers."""
    with pytest.raises(RuntimeError):
        ol.Ensemble(lambda: nn.Linear(3, 2), 4)(torch.ones(5, 3).to(dtype))


def test_an_empty_batch_is_an_empty_result_and_another_device_is_named():
    particles = ol.Ensemble(lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), 4)
    assert particles(torch.zeros(0, 3)).shape == (4, 0, 2)
    with pytest.raises(ValueError, match="on meta but the particles are on cpu"):
        particles(torch.zeros(5, 3, device="meta"))


@pytest.mark.parametrize("name", ["mlp", "conv", "batch norm", "recurrent", "transformer"])
def test_one_particle_is_the_network_bit_for_bit(name):
    make, shape = NETWORKS[name]
    particles = ol.Ensemble(make, 1)
    module = particles[0]
    x = inputs(shape).float()
    assert torch.equal(particles(x)[0], module(x))


def kept_bytes(make: Callable[[], nn.Module], x: Tensor, **options: object) -> list[int]:
    """The sizes of what autograd keeps between a forward and a backward pass."""
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    particles = ol.Ensemble(make, 10, **options)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        assert particles(x).requires_grad
    return list(kept.values())


def test_chunks_keep_no_activations():
    """Between forward and backward a chunked ensemble holds less than the activations."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 512), nn.Tanh(), nn.Linear(512, 1))

    x = torch.randn(64, 2)
    assert sum(kept_bytes(make, x, chunk_size=1)) < sum(kept_bytes(make, x)) / 10


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_inputs_that_all_share_are_kept_once(precision):
    x = torch.randn(512, 64)
    assert max(kept_bytes(lambda: nn.Linear(64, 1), x, precision=precision)) <= x.nbytes


def test_second_derivatives_are_right() -> None:
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    particles = ol.Ensemble(lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)), 3)
    particles.double()
    members = [copy.deepcopy(particles[i]) for i in range(3)]

    def curvature(outputs: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        return slope.square().sum()

    (ours,) = torch.autograd.grad(curvature(particles(x)), particles.get_parameter("0.weight"))
    total = curvature(torch.stack([m(x) for m in members]))
    theirs = torch.autograd.grad(total, [m[0].weight for m in members])
    assert_close(ours, torch.stack(theirs))


@pytest.mark.parametrize("name", ["mlp", "pool first"])
def test_transforms_around_an_ensemble(name: str) -> None:
    make, shape = NETWORKS[name]
    particles, x = ol.Ensemble(make, 3).double(), inputs(shape)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(particles, parameters, (x,)).square().sum()

    parameters = dict(particles.named_parameters())
    slopes = torch.func.grad(loss)(parameters)
    expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
    for ours, theirs in zip(slopes.values(), expected, strict=True):
        assert_close(ours, theirs)
    one_by_one = torch.vmap(lambda sample: particles(sample.unsqueeze(0)), out_dims=1)(x)
    assert_close(one_by_one.squeeze(2), particles(x))
