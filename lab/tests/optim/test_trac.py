"""TRAC against the package trac-optimizer, scipy's erfi, and lone runs of single networks."""

import copy

import pytest
import scipy.special
import torch
import trac_optimizer.trac as reference_package
from torch import nn
from torch.nn.functional import mse_loss

import orderless as ol
from orderless_lab.optim import TRAC
from orderless_lab.optim.erfi import Erfi

GOAL = torch.arange(1.0, 6.0, dtype=torch.float64)
# sum of s at these steps, published with the method's description (the package with float32 state)
TRACE = {1: 1.008392e-07, 2: 6.000001e-08, 3: 9.652358e-08, 10: 7.612510e-07, 100: 2.043633}


def start() -> nn.Parameter:
    return nn.Parameter(torch.zeros(5, dtype=torch.float64))


def descend(x: torch.Tensor, goal: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    ((x - goal) ** 2).sum().div(2).backward()
    optimizer.step()


@pytest.fixture
def double_precision_reference(monkeypatch):
    """The package keeps its state and its coefficients in torch's default type."""
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(reference_package, "erf_torch", reference_package.ERF_1994(128))
    yield reference_package
    torch.set_default_dtype(torch.float32)


def with_the_packages_erfi(trac: TRAC) -> TRAC:
    """It is 1 % low near 0."""
    trac.erfi = reference_package.erfi
    trac.unit = 1e-8 / float(reference_package.erfi(torch.tensor(0.5, dtype=torch.float64).sqrt()))
    return trac


@pytest.mark.slow
@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam])
def test_with_its_erfi_it_is_the_package_for_100_steps(double_precision_reference, base, tmp_path):
    ours, theirs = start(), start()
    trac = with_the_packages_erfi(TRAC(base([ours], lr=0.01)))
    package = double_precision_reference.start_trac(tmp_path / "log", base)([theirs], lr=0.01)
    for _ in range(100):
        descend(ours, GOAL, trac)
        descend(theirs, GOAL, package)
        torch.testing.assert_close(trac.s[0], package.state["_trac"]["s"], rtol=1e-9, atol=1e-18)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-15)


def test_the_published_trace_is_reproduced(double_precision_reference):
    x = start()
    trac = with_the_packages_erfi(TRAC(torch.optim.SGD([x], lr=0.01)))
    for step in range(1, 101):
        descend(x, GOAL, trac)
        if step in TRACE:  # seven digits, the last of them single-precision noise
            assert trac.scale.item() == pytest.approx(TRACE[step], rel=2e-6)


def test_exact_erfi_gives_the_recursion_with_scipy():
    x, betas = start(), [0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999]
    trac = TRAC(torch.optim.SGD([x], lr=0.01))
    theta, v, sigma, s = [0.0] * 5, [0.0] * 6, [1e-8] * 6, [0.0] * 6
    for step in range(1, 31):
        descend(x, GOAL, trac)
        g = [t - a for t, a in zip(theta, GOAL.tolist(), strict=True)]
        delta = [t / (sum(s) + 1e-8) for t in theta]
        h = sum(d * b for d, b in zip(delta, g, strict=True))
        v = [beta**2 * a + h**2 for beta, a in zip(betas, v, strict=True)]
        sigma = [beta * a - h for beta, a in zip(betas, sigma, strict=True)]
        unit = 1e-8 / scipy.special.erfi(0.5**0.5)
        s = [
            unit * scipy.special.erfi(a / (2**0.5 * b**0.5 + 1e-8))
            for a, b in zip(sigma, v, strict=True)
        ]
        theta = [(d - 0.01 * b) * max(sum(s), 0.0) for d, b in zip(delta, g, strict=True)]
        torch.testing.assert_close(x.detach(), torch.tensor(theta).double(), rtol=1e-5, atol=0)
        assert trac.scale.item() == pytest.approx(sum(s), rel=1e-9)
        if step == 10:
            assert trac.scale.item() == pytest.approx(7.5473e-07, rel=1e-4)


def test_erfi_equals_scipy_and_saturates():
    x = torch.cat([torch.logspace(-12, 1.4, 200), -torch.logspace(-3, 1, 50), torch.zeros(1)])
    x = x.double()
    expected = torch.from_numpy(scipy.special.erfi(x.numpy()))
    erfi = Erfi(x.device)
    torch.testing.assert_close(erfi(x), expected, rtol=1e-12, atol=0)
    huge = erfi(torch.tensor([30.0, 1e6, -1e6]).double())
    assert huge.isfinite().all() and huge[0] > 1e290 and huge[2] == -huge[1]


def make_network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def adam(module: nn.Module) -> TRAC:
    groups = [
        {"params": [p for name, p in module.named_parameters() if name.endswith("weight")]},
        {
            "params": [p for name, p in module.named_parameters() if name.endswith("bias")],
            "lr": 0.05,
        },
    ]
    return TRAC(torch.optim.Adam(groups, lr=0.1))


def test_each_particle_equals_a_lone_run_over_all_groups():
    ensemble = ol.Ensemble(make_network, 3, seed=1).double()
    lone = [ensemble[i] for i in range(3)]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    goals = torch.randn(3, 8, 2, generator=generator, dtype=torch.float64)
    together, single = adam(ensemble), [adam(network) for network in lone]
    assert together.s.shape == (3, 6) and single[0].s.shape == (1, 6)
    for _ in range(30):
        together.zero_grad()
        ((ensemble(x) - goals) ** 2).mean((1, 2)).sum().backward()
        together.step()
        for i in range(3):
            single[i].zero_grad()
            mse_loss(lone[i](x), goals[i]).backward()
            single[i].step()
    assert len(set(together.scale.tolist())) == 3
    for i in range(3):
        torch.testing.assert_close(together.s[i], single[i].s[0], rtol=1e-6, atol=0)
        for p, q in zip(ensemble.parameters(), lone[i].parameters(), strict=True):
            torch.testing.assert_close(p[i], q, rtol=1e-7, atol=1e-9)


def test_ordinary_parameters_beside_particles_count_as_one_network_more():
    ensemble, x = ol.Ensemble(lambda: nn.Linear(2, 1), 2).double(), start()
    alone = start()
    mixed = TRAC(torch.optim.SGD([*ensemble.parameters(), x], lr=0.01))
    single = TRAC(torch.optim.SGD([alone], lr=0.01))
    assert mixed.s.shape == (3, 6)
    for _ in range(20):
        mixed.zero_grad()
        ((x - GOAL) ** 2).sum().div(2).backward()
        ensemble(torch.ones(1, 2).double()).square().sum().backward()
        mixed.step()
        descend(alone, GOAL, single)
    assert torch.equal(x, alone)


def run(trac: TRAC, x: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        descend(x, GOAL, trac)


def test_a_loaded_state_goes_on_bit_for_bit(tmp_path):
    x, y = start(), start()
    trac, other = (TRAC(torch.optim.Adam([p], lr=0.01)) for p in (x, y))
    run(trac, x, 5)
    ol.save(tmp_path / "trac.safetensors", trac)
    with torch.no_grad():
        y.copy_(x)
    run(other, y, 1)
    with torch.no_grad():
        y.copy_(x)
    ol.load(tmp_path / "trac.safetensors", into=other)
    assert other.param_groups is other.base.param_groups and other.state is other.base.state
    twin = copy.deepcopy(trac)
    (z,) = (p for group in twin.param_groups for p in group["params"])
    for one, parameter in ((trac, x), (other, y), (twin, z)):
        run(one, parameter, 10)
    assert torch.equal(x, y) and torch.equal(x, z) and torch.equal(trac.s, other.s)


def test_a_state_keeps_its_references_when_another_is_loaded():
    optimizers = []
    for seed in range(2):
        torch.manual_seed(seed)
        net = nn.Linear(3, 2)
        optimizers.append(TRAC(torch.optim.SGD(net.parameters(), lr=0.1)))
        net(torch.ones(4, 3)).square().sum().backward()
        optimizers[-1].step()
    state = optimizers[0].state_dict()
    before = copy.deepcopy(state["state"]["trac"]["references"])
    optimizers[0].load_state_dict(optimizers[1].state_dict())
    assert all(map(torch.equal, state["state"]["trac"]["references"], before))


def test_states_that_do_not_fit_are_refused():
    x = start()
    sgd = torch.optim.SGD([x], lr=0.01)
    with pytest.raises(ValueError, match="this state has no 'trac' in it"):
        TRAC(sgd).load_state_dict(torch.optim.SGD([x], lr=0.01).state_dict())
    short = TRAC(torch.optim.SGD([x], lr=0.01), betas=(0.9, 0.99))
    with pytest.raises(ValueError, match=r"'s' is \(1, 2\) there and \(1, 6\) here"):
        TRAC(sgd).load_state_dict(short.state_dict())


def test_it_is_an_optimizer_and_a_scheduler_drives_its_base():
    x = start()
    base = torch.optim.SGD([x], lr=0.1)
    trac = TRAC(base)
    assert isinstance(trac, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(trac, step_size=1, gamma=0.5)
    loss = trac.step(lambda: ((x - GOAL) ** 2).sum())
    assert loss.item() == pytest.approx(55.0)
    scheduler.step()
    assert base.param_groups[0]["lr"] == 0.05
    trac.zero_grad()
    assert x.grad is None


def test_it_moves_a_weighted_filter_and_dead_particles_stay():
    ensemble = ol.Ensemble(lambda: nn.Linear(2, 1), 3).double()
    trac = TRAC(torch.optim.Adam(ensemble.parameters(), lr=0.01))
    pf = ol.WeightedParticleFilter(ensemble, trac)
    x = torch.ones(4, 2).double()
    bad = torch.tensor([1.0, float("nan"), 1.0]).double()
    pf.step(lambda: ensemble(x).square().mean((1, 2)))
    weights, tuned = dict(ensemble.named_parameters())["weight"].clone(), trac.s.clone()
    info = pf.step(lambda: bad * ensemble(x).square().mean((1, 2)))
    assert info.alive.tolist() == [True, False, True]
    now = dict(ensemble.named_parameters())["weight"]
    assert torch.equal(now[1], weights[1]) and torch.equal(trac.s[1], tuned[1])
    assert not torch.equal(trac.s[0], tuned[0]) and trac.s.isfinite().all()


def test_a_network_without_a_finite_slope_stays_where_it_is():
    x = start()
    trac = TRAC(torch.optim.SGD([x], lr=0.01))
    run(trac, x, 3)
    before, tuned = x.detach().clone(), trac.sigma.clone()
    x.grad = torch.full_like(x, float("nan"))
    trac.step()
    assert torch.equal(x, before) and torch.equal(trac.sigma, tuned)


def test_groups_added_later_join_and_strangers_are_refused():
    x, y = start(), start()
    trac = TRAC(torch.optim.SGD([x], lr=0.01))
    run(trac, x, 2)
    trac.add_param_group({"params": [y], "lr": 0.02})
    assert len(trac.base.param_groups) == 2
    descend(torch.cat([x, y]), torch.cat([GOAL, GOAL]), trac)
    assert y.detach().any()
    ensemble = ol.Ensemble(lambda: nn.Linear(2, 1), 3)
    with pytest.raises(ValueError, match="belong to another network"):
        trac.add_param_group({"params": list(ensemble.parameters())})
    assert len(trac.param_groups) == 2


def test_bad_settings_are_refused_in_a_sentence():
    x = start()
    with pytest.raises(TypeError, match="base_optimizer must be a torch.optim.Optimizer, got list"):
        TRAC([x])
    sgd = torch.optim.SGD([x], lr=0.01)
    with pytest.raises(ValueError, match="betas must be numbers between 0 and 1"):
        TRAC(sgd, betas=(1.0,))
    with pytest.raises(ValueError, match="s_prev and eps must be positive"):
        TRAC(sgd, eps=0.0)
    two = [ol.Ensemble(lambda: nn.Linear(2, 1), n) for n in (2, 3)]
    both = torch.optim.SGD([p for e in two for p in e.parameters()], lr=0.1)
    with pytest.raises(ValueError, match=r"got parameters of \[2, 3\] particles"):
        TRAC(both)
