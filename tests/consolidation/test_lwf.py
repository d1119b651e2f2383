"""LwF: gradient 0 at equal models, and a plain implementation for one network."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import orderless as ol
from orderless.consolidation import LwF

COLUMNS = 6


def particles(n: int = 3, **options) -> ol.Ensemble:
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, COLUMNS)
    )
    return ol.Ensemble(make, n, seed=5, **options).double()


def inputs() -> torch.Tensor:
    return torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@torch.no_grad()
def wander(ensemble: ol.Ensemble) -> None:
    generator = torch.Generator().manual_seed(7)
    for p in ensemble.parameters():
        p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))


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
            torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-14)


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
        torch.testing.assert_close(penalty[i], expected)
        theirs = torch.autograd.grad(expected, list(network.parameters()))
        for ours, gradient in zip(gradients, theirs, strict=True):
            torch.testing.assert_close(ours[i], gradient)


def test_running_the_particles_again_leaves_their_buffers_alone():
    ensemble, x = particles(), inputs()
    lwf = LwF(ensemble)
    lwf.end_task()
    wander(ensemble)
    outputs = ensemble(x)
    buffers = {name: b.clone() for name, b in ensemble.named_buffers()}
    torch.testing.assert_close(lwf.penalty(x), lwf.penalty(x, outputs))
    for name, buffer in ensemble.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


def test_the_teacher_is_the_latest_old_self_and_does_not_move():
    ensemble, x = particles().eval(), inputs()
    lwf = LwF(ensemble)
    wander(ensemble)
    lwf.end_task()
    old = ensemble(x).detach()
    wander(ensemble)
    torch.testing.assert_close(lwf.teacher(x), old)
    assert not any(p.requires_grad for p in lwf.teacher.parameters())


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        LwF(particles(), temperature=0)
    lwf = LwF(particles())
    assert not lwf.penalty().any()
    lwf.end_task()
    with pytest.raises(ValueError, match="LwF needs the inputs of the batch"):
        lwf.penalty()


def test_a_pass_of_its_own_leaves_the_noise_of_later_passes_alone():
    # With learning rate 0 both evaluations of a step see the same networks and the same masks.
    make = lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))  # noqa: E731
    ensemble = ol.Ensemble(make, 2).double()
    lwf = LwF(ensemble)
    lwf.end_task()
    pf = ol.WeightedParticleFilter(ensemble, torch.optim.SGD(ensemble.parameters(), lr=0.0))
    loss, x, y = ol.per_particle(F.cross_entropy), inputs(), torch.arange(9) % 2
    info = pf.step(lambda: lwf.penalty(x) + loss(ensemble(x), y))
    assert torch.equal(info.loss_before, info.loss_after)
