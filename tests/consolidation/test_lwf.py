"""LwF: gradient 0 at equal models, and a plain implementation for one network."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.common import assert_identical, batches, cross_entropy, dropout_mlp, gradient_filter
from tests.consolidation import tiny
from tests.consolidation.tiny import task, wander
from torch import nn
from torch.optim import SGD
from torch.testing import assert_close

import orderless as ol
from orderless.consolidation import LwF

COLUMNS = 6


def particles() -> ol.Ensemble:
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, COLUMNS)
    )
    return tiny.particles(make=make)


def inputs() -> torch.Tensor:
    return task(0)[0]


def plain(student: torch.Tensor, teacher: torch.Tensor, old, seen, temperature) -> torch.Tensor:
    """Distillation as van de Ven writes it: zeros for classes the teacher did not know."""
    target = torch.zeros(len(teacher), len(seen), dtype=teacher.dtype)
    places = [seen.index(column) for column in old]
    target[:, places] = F.softmax(teacher[:, old] / temperature, 1)
    return -(target * F.log_softmax(student[:, seen] / temperature, 1)).sum(1).mean()


def test_gradient_is_zero_at_equal_models():
    ensemble = particles().eval()
    lwf = LwF(ensemble, strength=5.0)
    wander(ensemble)
    lwf.end_task()
    x = inputs()
    for active in (None, torch.tensor([0, 1]), [torch.tensor([0, 1]), torch.tensor([2, 3])]):
        lwf.begin_task(active)
        penalty = lwf.penalty(x, ensemble(x))
        assert (penalty > 0).all()
        for gradient in torch.autograd.grad(penalty.sum(), list(ensemble.parameters())):
            assert gradient.abs().max() <= 1e-14


@pytest.mark.parametrize(
    ("active", "seen", "terms"),
    [
        (None, None, [(list(range(COLUMNS)), list(range(COLUMNS)))]),
        (torch.tensor([3, 1]), None, [([3, 1], [3, 1])]),
        ([torch.tensor([0, 1]), torch.tensor([2, 3])], None, [([0, 1],) * 2, ([2, 3],) * 2]),
        (torch.tensor([0, 1]), torch.tensor([0, 1, 4, 5]), [([0, 1], [0, 1, 4, 5])]),
    ],
)
def test_penalty_and_gradient_equal_a_plain_implementation(active, seen, terms):
    ensemble, x = particles().eval(), inputs()
    lwf = LwF(ensemble, strength=3.0, temperature=2.0)
    lwf.end_task()
    teachers = [ensemble[i](x).detach() for i in range(3)]
    wander(ensemble)
    lwf.begin_task(active, seen, scale=2.0)
    penalty = lwf.penalty(x, ensemble(x))
    gradients = torch.autograd.grad(penalty.sum(), list(ensemble.parameters()))
    for i in range(3):
        network = ensemble[i]
        expected = 6.0 * sum(plain(network(x), teachers[i], *term, 2.0) for term in terms)
        assert_close(penalty[i], expected)
        theirs = torch.autograd.grad(expected, list(network.parameters()))
        assert_close([gradient[i] for gradient in gradients], [*theirs])


def test_running_the_particles_again_leaves_their_buffers_alone():
    ensemble, x = particles(), inputs()
    lwf = LwF(ensemble)
    lwf.end_task()
    wander(ensemble)
    outputs = ensemble(x)
    buffers = {name: b.clone() for name, b in ensemble.named_buffers()}
    assert_close(lwf.penalty(x), lwf.penalty(x, outputs))
    assert_identical(dict(ensemble.named_buffers()), buffers)


def test_the_teacher_is_the_latest_old_self_and_does_not_move():
    ensemble, x = particles().eval(), inputs()
    lwf = LwF(ensemble)
    wander(ensemble)
    lwf.end_task()
    old = ensemble(x).detach()
    wander(ensemble)
    assert_close(lwf.teacher(x), old)
    assert not any(p.requires_grad for p in lwf.teacher.parameters())


def test_a_pass_of_its_own_leaves_the_noise_of_later_passes_alone():
    # With learning rate 0 both evaluations of a step see the same networks and the same masks.
    pf = gradient_filter(dropout_mlp, optimizer=partial(SGD, lr=0.0))
    lwf = LwF(pf.particles)
    lwf.end_task()
    x, y = next(batches(1))
    info = pf.step(lambda: lwf.penalty(x) + cross_entropy(pf.particles(x), y))
    assert torch.equal(info.loss_before, info.loss_after)
