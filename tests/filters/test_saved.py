"""States of filters: those of the first version load and go on; a senseless one changes nothing."""

import copy

import pytest
import torch
from tests.filters.oracles import assert_identical, batches, cross_entropy, mlp, whole_state
from tests.filters.saved.make import HERE, KINDS, learn, make, states
from torch.utils._pytree import tree_leaves

import orderless as ol


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_saved_by_the_first_version_goes_on_as_it_did_there(kind: str) -> None:
    saved = ol.load(HERE / f"{kind.replace(' ', '_')}.safetensors")
    pf, consolidation = make(kind)
    pf.load_state_dict(saved["begun"]["filter"])
    if consolidation is not None:
        consolidation.load_state_dict(saved["begun"]["si"])
    learn(pf, slice(2, 4))
    ended = states(pf, consolidation)
    assert len(tree_leaves(ended)) == len(tree_leaves(saved["ended"]))
    for ours, theirs in zip(tree_leaves(ended), tree_leaves(saved["ended"]), strict=True):
        if isinstance(theirs, torch.Tensor):  # 1e-6: another machine's products round otherwise
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        else:
            assert ours == theirs


def filters() -> dict:
    particles = [ol.Ensemble(mlp, 3) for _ in range(3)]
    adam = torch.optim.Adam(particles[0].parameters(), lr=0.01)
    trac = ol.TRAC(torch.optim.SGD(particles[2].parameters(), lr=0.1))
    return {
        "adam": ol.WeightedParticleFilter(particles[0], adam),
        "gaussian sum": ol.GaussianSumFilter(particles[1], sigma2=0.1, curvature="diagonal"),
        "trac": ol.WeightedParticleFilter(particles[2], trac),
    }


def put(state: dict, path: str, value: object) -> None:
    *way, last = path.split("/")
    for key in way:
        state = state[int(key) if key.isdigit() else key]
    state[last] = value


BAD = [torch.zeros(2), torch.zeros(7, 7), "x", None, {}, [1]]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        *[("adam", n) for n in ("log_weights", "alive", "steps", "seed", "optimizer")],
        *[("adam", f"particles/{n}") for n in ("0.weight", "2.bias")],
        *[
            ("adam", f"optimizer/{n}")
            for n in ("state/0/exp_avg", "param_groups", "param_groups/0/lr")
        ],
        ("gaussian sum", "precision"),
        *[("trac", f"optimizer/state/trac/{n}") for n in ("s", "sigma", "references")],
    ],
)
def test_a_state_with_one_senseless_part_changes_nothing(kind: str, path: str) -> None:
    pf, other = filters()[kind], filters()[kind]
    x, y = next(batches(1))
    for each, count in ((pf, 2), (other, 3)):
        for _ in range(count):
            each.step(lambda p=each.particles: cross_entropy(p(x), y))
    before = whole_state(pf)
    for value in BAD:
        state = copy.deepcopy(other.state_dict())
        put(state, path, value)
        try:
            pf.load_state_dict(state)
        except (ValueError, TypeError):
            assert_identical(whole_state(pf), before)
        else:
            pytest.fail(f"{path} = {value!r} was taken over")


def test_weights_that_are_no_numbers_are_refused() -> None:
    pf = filters()["adam"]
    state = copy.deepcopy(pf.state_dict())
    state["log_weights"][1] = torch.nan
    with pytest.raises(ValueError, match="are not numbers"):
        pf.load_state_dict(state)


@pytest.mark.parametrize("kind", [*KINDS, "trac"])
def test_a_state_does_not_follow_the_filter(kind: str) -> None:
    pf = filters()["trac"] if kind == "trac" else make(kind)[0]
    learn(pf, slice(0, 2))
    state = pf.state_dict()
    before = copy.deepcopy(state)
    learn(pf, slice(2, 4))
    assert_identical(state, before)
    pf.load_state_dict(state)
    assert_identical(pf.state_dict(), before)
