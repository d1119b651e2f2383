"""A filter in a scenario, against plain PyTorch loops over one network."""

import copy
from abc import ABC, abstractmethod

import pytest
import torch
import torch.nn.functional as F
from lab.tests.toys import network as model
from lab.tests.toys import points as scenario

from orderless.consolidation import EWC, SI, LwF
from orderless.ensemble import Ensemble
from orderless.filters import AveragingParticles, BootstrapParticleFilter, GradientDescent
from orderless_lab.methods.learners import Learner, Reservoir
from orderless_lab.methods.learners.learner import heaviest_representation

LR = 0.1
ORDER = [2, 0, 1]


def make_learner(kind, n=1, consolidation=None, **options):
    tasks = scenario(kind)
    particles = Ensemble(lambda: model(tasks.outputs), n, seed=1)
    optimizer = torch.optim.SGD(particles.parameters(), lr=LR)
    filter = (GradientDescent if n == 1 else AveragingParticles)(particles, optimizer)
    if consolidation is not None:
        options["consolidation"] = consolidation(particles)
    return Learner(tasks, filter, **options)


def columns(kind, seen, task):
    """Which outputs count, written down once more."""
    if kind == "domain":
        return [0, 1]
    tasks = [task] if kind == "task" else seen
    return sorted(c for t in tasks for c in (2 * t, 2 * t + 1))


def cross_entropy(scores, y, used):
    """-log of the softmax over the used columns, at the label."""
    place = torch.tensor([used.index(int(label)) for label in y])
    return F.cross_entropy(scores[:, used], place)


# ------------------------------------------------------------------ which outputs count


@pytest.mark.parametrize("kind", ["domain", "task", "class"])
@pytest.mark.parametrize("seen", [[2], [2, 0], [2, 0, 1]])
def test_the_loss_is_a_plain_cross_entropy_over_the_active_columns(kind, seen):
    learner = make_learner(kind, n=3)
    networks = [learner.filter.particles[i] for i in range(3)]
    x, y = learner.scenario.train_set(seen[-1])
    learner.begin_task(seen)
    info = learner.learn(x, y)
    used = columns(kind, seen, seen[-1])
    for i, network in enumerate(networks):
        expected = cross_entropy(network(x), y, used)
        assert info.loss_before[i].item() == pytest.approx(expected.item(), rel=1e-5)
    before = torch.stack([network[2].weight for network in networks])
    after = learner.filter.particles.state_dict()["2.weight"]
    changed = (after != before).any(2).any(0)
    assert changed.tolist() == [c in used for c in range(learner.scenario.outputs)]


@pytest.mark.parametrize("kind", ["domain", "task", "class"])
def test_answers_leave_out_what_is_out_of_the_question(kind):
    learner = make_learner(kind, n=2)
    x, _ = learner.scenario.test_set(1)
    learner.begin_task([2, 0])
    outputs = learner.outputs(x, 1)
    used = columns(kind, [2, 0], 1)
    for c in range(learner.scenario.outputs):
        if c in used:
            assert torch.equal(outputs[..., c], learner.filter.outputs(x)[..., c])
        else:
            assert outputs[..., c].isneginf().all()


def test_before_anything_is_seen_every_class_is_possible():
    learner = make_learner("class")
    assert learner.outputs(torch.zeros(2, 4), 0).isfinite().all()


@pytest.mark.parametrize("kind", ["domain", "task", "class"])
def test_joint_batches_count_each_samples_own_columns(kind):
    learner = make_learner(kind, joint=True)
    network = learner.filter.particles[0]
    learner.begin_task(ORDER)
    x, y, task = next(learner.scenario.joint_batches(ORDER, batch_size=18, seed=0))
    assert len(task.unique()) == 3
    info = learner.learn(x, y, task)
    each = [
        cross_entropy(network(x[b : b + 1]), y[b : b + 1], columns(kind, ORDER, int(task[b])))
        for b in range(len(y))
    ]
    assert info.loss_before.item() == pytest.approx(torch.stack(each).mean().item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["domain", "task", "class"])
def test_replay_is_a_loop_over_batches_with_old_samples_in_them(kind):
    learner = make_learner(kind, replay=Reservoir(8, 5))
    network = learner.filter.particles[0]
    optimizer, memory = torch.optim.SGD(network.parameters(), lr=LR), Reservoir(8, 5)
    for k, task in enumerate(ORDER):
        learner.begin_task(ORDER[: k + 1])
        for x, y in learner.scenario.batches(task, batch_size=4, seed=0):
            learner.learn(x, y)
            xs, ys, tasks = memory.mix(x, y, torch.full_like(y, task))
            each = [
                cross_entropy(
                    network(xs[b : b + 1]),
                    ys[b : b + 1],
                    columns(kind, ORDER[: k + 1], int(tasks[b])),
                )
                for b in range(len(ys))
            ]
            optimizer.zero_grad()
            torch.stack(each).mean().backward()
            optimizer.step()
    assert_same(learner, network)


def assert_same(learner, network):
    ours = learner.filter.particles[0].state_dict()
    for name, value in network.state_dict().items():
        # float32, the same sums in another order over a few dozen steps
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=2e-6)


# ------------------------------------------------------------------ consolidation


class ByHand(ABC):
    """What the literature says, for one network; `penalty` joins the loss from the second task."""

    def __init__(self, network):
        self.network = network

    @abstractmethod
    def penalty(self, kind, x, seen): ...

    def moved(self, before):
        """After a step, with the parameters before it; only SI looks."""
        return None

    @abstractmethod
    def end_task(self, kind, tasks, seen): ...


class EwcByHand(ByHand):
    strength, samples = 3.0, 7

    def __init__(self, network):
        super().__init__(network)
        self.anchors = []

    def penalty(self, kind, x, seen):
        total = torch.zeros(())
        for fisher, center in self.anchors:  # one for every past task
            for name, parameter in self.network.named_parameters():
                total = total + (fisher[name] * (parameter - center[name]).square()).sum()
        return self.strength / 2 * total

    def end_task(self, kind, tasks, seen):
        x, _ = tasks.train_set(seen[-1])
        used, named = columns(kind, seen, seen[-1]), dict(self.network.named_parameters())
        fisher = {name: torch.zeros_like(p) for name, p in named.items()}
        for b in range(self.samples):
            log_p = F.log_softmax(self.network(x[b : b + 1])[0, used], 0)
            for c in range(len(used)):
                grads = torch.autograd.grad(log_p[c], list(named.values()), retain_graph=True)
                for name, grad in zip(named, grads, strict=True):
                    fisher[name] += log_p[c].exp().detach() * grad.square() / self.samples
        self.anchors.append((fisher, {name: p.detach().clone() for name, p in named.items()}))


class SiByHand(ByHand):
    strength, xi = 2.0, 0.1

    def __init__(self, network):
        super().__init__(network)
        named = dict(network.named_parameters())
        self.path = {name: torch.zeros_like(p) for name, p in named.items()}
        self.omega = {name: torch.zeros_like(p) for name, p in named.items()}
        self.center = {name: p.detach().clone() for name, p in named.items()}

    def penalty(self, kind, x, seen):
        return self.strength * sum(
            (self.omega[name] * (p - self.center[name]).square()).sum()
            for name, p in self.network.named_parameters()
        )

    def moved(self, before):
        for name, p in self.network.named_parameters():
            self.path[name] -= p.grad * (p.detach() - before[name])

    def end_task(self, kind, tasks, seen):
        for name, p in self.network.named_parameters():
            now = p.detach().clone()
            self.omega[name] += self.path[name] / ((now - self.center[name]) ** 2 + self.xi)
            self.center[name], self.path[name] = now, torch.zeros_like(now)


class LwfByHand(ByHand):
    strength, temperature = 1.5, 2.0

    def penalty(self, kind, x, seen):
        with torch.no_grad():
            target = self.teacher(x) / self.temperature
        scores, past = self.network(x) / self.temperature, seen[:-1]

        def distil(asked, spread):
            """Cross entropy of the teacher on `asked`; the student shares among `spread`."""
            log_student = scores[:, asked] - scores[:, spread].logsumexp(1, keepdim=True)
            return -(target[:, asked].softmax(1) * log_student).sum(1).mean()

        if kind == "domain":
            return self.strength * len(past) * distil([0, 1], [0, 1])
        if kind == "task":
            heads = [columns(kind, seen, old) for old in past]
            return self.strength * sum(distil(head, head) for head in heads)
        return self.strength * distil(columns(kind, past, 0), columns(kind, seen, 0))

    def end_task(self, kind, tasks, seen):
        self.teacher = copy.deepcopy(self.network)


@pytest.mark.parametrize("kind", ["domain", "task", "class"])
@pytest.mark.parametrize(
    ("by_hand", "consolidation"),
    [
        (EwcByHand, lambda particles: EWC(particles, 3.0, fisher_samples=7)),
        (SiByHand, lambda particles: SI(particles, 2.0)),
        (LwfByHand, lambda particles: LwF(particles, 1.5)),
    ],
)
def test_consolidation_is_a_hand_written_loop_over_one_network(kind, by_hand, consolidation):
    # penalties in the gradient, as the literature has them; closed steps have tests of their own
    learner = make_learner(kind, consolidation=consolidation, closed=False)
    network = learner.filter.particles[0]
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    hand = by_hand(network)
    for k, task in enumerate(ORDER):  # the third task tells a sum over the past from a last one
        seen = ORDER[: k + 1]
        learner.begin_task(seen)
        for x, y in learner.scenario.batches(task, batch_size=4, seed=0, epochs=2):
            learner.learn(x, y)
            loss = cross_entropy(network(x), y, columns(kind, seen, task))
            if k:
                loss = loss + hand.penalty(kind, x, seen)
            optimizer.zero_grad()
            loss.backward()
            before = {name: p.detach().clone() for name, p in network.named_parameters()}
            optimizer.step()
            hand.moved(before)
        learner.end_task()
        hand.end_task(kind, learner.scenario, seen)
        assert_same(learner, network)


def test_a_filter_without_gradients_takes_no_consolidation():
    tasks = scenario("domain")
    particles = Ensemble(lambda: model(tasks.outputs), 2)
    filter = BootstrapParticleFilter(particles, perturbation=0.1, variant="paper")
    with pytest.raises(TypeError, match="BootstrapParticleFilter takes no gradient steps"):
        Learner(tasks, filter, consolidation=EWC(particles, 1.0))


def test_a_network_without_linear_layers_is_represented_by_its_outputs():
    particles = Ensemble(lambda: torch.nn.Conv2d(1, 2, 3), 2)
    filter = AveragingParticles(particles, torch.optim.SGD(particles.parameters(), lr=LR))
    x = torch.randn(5, 1, 4, 4)
    seen, weights = heaviest_representation(filter, x)
    torch.testing.assert_close(seen, particles[0](x).flatten(1).detach())
    assert [p.shape for p in weights] == [(2, 1, 3, 3), (2,)]
