"""Filters say the same whatever the number of ranks; neither 2 nor 3 goes into 7 particles."""

from functools import partial

import pytest
import torch
from lab.tests.sharding.problems import (
    SOLVERS,
    N,
    adam,
    consolidate,
    solve,
    train,
    wpf,
)
from lab.tests.sharding.processes import on_ranks
from torch import Tensor
from torch.utils._pytree import tree_flatten_with_path

import orderless as ol

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one():
    return solve(None)


MANY = [pytest.param(count, marks=pytest.mark.sweep) for count in (4, 5, 6, 7)]


@pytest.fixture(scope="module", params=[2, 3, *MANY])
def ranks(request, tmp_path_factory):
    """The results of every rank."""
    return on_ranks(request.param, tmp_path_factory.mktemp("ranks"), solve)


def leaves(result):
    return {str(path): leaf for path, leaf in tree_flatten_with_path(result)[0]}


def assert_same(result, expected, *, bits):
    """Sums of float32 may be taken in another order, which 1e-6 allows for."""
    result, expected = leaves(result), leaves(expected)
    assert result.keys() == expected.keys()
    within = 0.0 if bits else 1e-6
    for name, value in expected.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(
                result[name], value, rtol=within, atol=within, equal_nan=True, msg=name
            )
        else:
            assert result[name] == value, name


@pytest.mark.parametrize("name", SOLVERS)
def test_results_do_not_depend_on_the_number_of_ranks(name, one, ranks):
    assert_same(ranks[0][name], one[name], bits=False)


@pytest.mark.parametrize("name", SOLVERS)
def test_every_rank_gives_the_same_answers(name, ranks):
    def said(result):
        return {k: v for k, v in result.items() if k not in ("state", "held", "before", "after")}

    for other in ranks[1:]:
        assert_same(said(other[name]), said(ranks[0][name]), bits=True)


def test_the_problems_are_problems(one):
    """Or the tests above would compare what never changes."""
    dead = one["wpf with Adam, the first rank's particles dead"]
    assert dead["alive"].tolist() == [False] * 3 + [True] * 4
    steps = [v for k, v in leaves(dead["state"]["optimizer"]).items() if "step" in k]
    assert steps and all(step == 6 for step in steps)
    assert one["averaging with TRAC, one dead"]["alive"].sum() == N - 1
    assert one["wpf, tempered"]["temperature"] < 1
    assert one["none left"]["said"].startswith("no particle is left")


def test_when_no_particle_is_left_nothing_has_changed(ranks):
    for rank in ranks:
        assert rank["none left"]["said"].startswith("no particle is left")
    assert_same(ranks[0]["none left"]["after"], ranks[0]["none left"]["before"], bits=True)


# ------------------------------------------------------------------ another number of ranks

RESUMED = {
    "make_filter": partial(wpf, optimizer=adam),
    "hold": partial(consolidate, ol.SI),
    "spoil": (0, 1, 2),
}


def part(group, start, stop):
    return train(group, **RESUMED, start=start, stop=stop)


@pytest.mark.parametrize("before, after", [(3, 2), (2, 1), (1, 3)])
def test_a_saved_state_goes_on_with_another_number_of_ranks(before, after, tmp_path):
    def run(ranks, *args):
        if ranks == 1:
            return part(None, *args)
        return on_ranks(ranks, tmp_path / str(ranks), part, *args)[0]

    half = run(before, None, 4)
    saved = ol.load(ol.save(tmp_path / "half", {k: half[k] for k in ("state", "held")}))
    assert_same(run(after, (4, saved), 6), part(None, None, 6), bits=False)
