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


def start() -> nn.Parameter:
    return nn.Parameter(torch.zeros(5, dtype=torch.float64))


def run(optimizer: torch.optim.Optimizer, x: torch.Tensor, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        ((x - GOAL) ** 2).sum().div(2).backward()
        optimizer.step()


@pytest.fixture
def package(monkeypatch):
    """The package in float64: it keeps state and coefficients in torch's default type."""
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(reference_package, "erf_torch", reference_package.ERF_1994(128))
    yield reference_package
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam])
def test_with_its_erfi_it_is_the_package(package, base, tmp_path):
    """The package's erfi is 1 % low near 0."""
    ours = start()
    theirs = start()
    trac = TRAC(base([ours], lr=0.01))
    trac.erfi = package.erfi
    trac.unit = 1e-8 / float(package.erfi(torch.tensor(0.5, dtype=torch.float64).sqrt()))
    reference = package.start_trac(tmp_path / "log", base)([theirs], lr=0.01)
    for _ in range(60):
        run(trac, ours)
        run(reference, theirs)
        torch.testing.assert_close(trac.s[0], reference.state["_trac"]["s"], rtol=1e-9, atol=1e-18)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-15)


def test_erfi_equals_scipy_and_saturates():
    x = torch.cat([torch.logspace(-12, 1.4, 200), -torch.logspace(-3, 1, 50), torch.zeros(1)])
    x = x.double()
    erfi = Erfi(x.device)
    expected = torch.from_numpy(scipy.special.erfi(x.numpy()))
    torch.testing.assert_close(erfi(x), expected, rtol=1e-12, atol=0)
    huge = erfi(torch.tensor([30.0, 1e6, -1e6]).double())
    assert huge.isfinite().all()
    assert huge[0] > 1e290
    assert huge[2] == -huge[1]


def test_each_particle_equals_a_lone_run_over_all_groups():
    def adam(module):
        weights = [p for name, p in module.named_parameters() if name.endswith("weight")]
        biases = [p for name, p in module.named_parameters() if name.endswith("bias")]
        return TRAC(torch.optim.Adam([{"params": weights}, {"params": biases, "lr": 0.05}], lr=0.1))

    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    ensemble = ol.Ensemble(lambda: copy.deepcopy(network), 3, ol.Perturb(0.1, 0.1), seed=1).double()
    lone = [ensemble[i] for i in range(3)]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    goals = torch.randn(3, 8, 2, generator=generator, dtype=torch.float64)
    together = adam(ensemble)
    single = [adam(network) for network in lone]
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


def test_a_copy_goes_on_bit_for_bit():
    """That a run goes on from its file is tested in rl/test_policy_cells.py."""
    x = start()
    trac = TRAC(torch.optim.Adam([x], lr=0.01))
    run(trac, x, 5)
    twin = copy.deepcopy(trac)
    z = twin.param_groups[0]["params"][0]
    for one, parameter in ((trac, x), (twin, z)):
        run(one, parameter, 10)
    assert torch.equal(x, z)
    assert torch.equal(trac.s, twin.s)


def test_a_state_of_another_optimizer_is_refused():
    sgd = torch.optim.SGD([start()], lr=0.01)
    short = TRAC(torch.optim.SGD([start()], lr=0.01), betas=(0.9, 0.99))
    for state in (sgd.state_dict() | {"state": {}}, short.state_dict()):
        with pytest.raises(ValueError, match="'s' is"):
            TRAC(sgd).load_state_dict(state)


def test_it_is_an_optimizer_and_a_scheduler_drives_its_base():
    x = start()
    trac = TRAC(torch.optim.SGD([x], lr=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(trac, step_size=1, gamma=0.5)
    loss = trac.step(lambda: ((x - GOAL) ** 2).sum())
    assert loss.item() == pytest.approx(55.0)
    scheduler.step()
    assert trac.base.param_groups[0]["lr"] == 0.05


def test_a_network_without_a_finite_slope_stays_where_it_is():
    ensemble = ol.Ensemble(lambda: nn.Linear(2, 1), 3).double()
    trac = TRAC(torch.optim.Adam(ensemble.parameters(), lr=0.01))
    pf = ol.WeightedParticleFilter(ensemble, trac)
    x = torch.ones(4, 2).double()
    bad = torch.tensor([1.0, float("nan"), 1.0]).double()
    pf.step(lambda: ensemble(x).square().mean((1, 2)))
    weight = ensemble.get_parameter("weight")
    before = weight.detach().clone()
    tuned = trac.s.clone()
    info = pf.step(lambda: bad * ensemble(x).square().mean((1, 2)))
    assert info.alive.tolist() == [True, False, True]
    assert torch.equal(weight[1], before[1])
    assert torch.equal(trac.s[1], tuned[1])
    assert not torch.equal(weight[0], before[0])
    assert trac.s.isfinite().all()


def test_parameters_of_two_ensembles_are_refused():
    two = [ol.Ensemble(lambda: nn.Linear(2, 1), n) for n in (2, 3)]
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        TRAC(torch.optim.SGD([p for ensemble in two for p in ensemble.parameters()], lr=0.1))
