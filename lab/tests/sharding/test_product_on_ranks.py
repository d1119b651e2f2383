"""The product of task posteriors says the same whatever the number of ranks."""

from functools import partial

import pytest
import torch
from lab.tests.sharding.processes import on_ranks
from tests.product.tasks import convolutional, cross_entropy, five_tasks

import orderless as ol

pytestmark = pytest.mark.slow


def make(group):
    particles = ol.Ensemble(convolutional, 5, seed=0, group=group)
    return ol.PosteriorProduct(particles, partial(torch.optim.SGD, lr=0.1), weights="evidence")


def summed(outputs, y):
    return len(y) * cross_entropy(outputs, y)


def work(group):
    """Two tasks, a step of a third, and one task taken away from a sum."""
    pf, tasks = make(group), five_tasks()
    for x, y in tasks[:2]:
        pf.step(lambda x=x, y=y: cross_entropy(pf.particles(x), y))
        pf.end_task((x, y), loss=summed)
    x, y = tasks[2]
    pf.step(lambda: cross_entropy(pf.particles(x), y))
    return {
        "predict": pf.predict(x),
        "weights": pf.weights,
        "evidence": pf.particle_log_evidence,
        "doubled": (pf + pf - pf).predict(x),
        "state": pf.state_dict(),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(2, tmp_path_factory.mktemp("ranks"), work)


def test_two_ranks_say_what_one_process_says(ranks):
    one = work(None)
    for name in ("predict", "weights", "evidence", "doubled"):
        for rank in ranks:
            # float32 training, in kernels chosen by how many particles there are
            torch.testing.assert_close(rank[name], one[name], rtol=1e-5, atol=1e-5)
    assert len(set(one["weights"].tolist())) == 5


def test_one_process_goes_on_where_two_ranks_stopped(ranks):
    resumed, (x, y) = make(None), five_tasks()[2]
    resumed.load_state_dict(ranks[0]["state"])
    assert resumed.tasks == 2 and int(resumed.steps) == 1
    torch.testing.assert_close(resumed.predict(x), ranks[0]["predict"], rtol=1e-6, atol=1e-6)
    resumed.end_task((x, y), loss=summed)
    assert resumed.tasks == 3
