"""Fisher information against closed forms and plain per-sample loops, in float64."""

import copy

import pytest
import torch
from tests.common import assert_identical, normal
from torch import nn
from torch.testing import assert_close

import orderless as ol
from orderless.consolidation import fisher_information
from orderless.consolidation.fisher import SquaredGradients

CLASSES = 3


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, (3, 1), dilation=(1, 2), bias=False),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.LayerNorm(32),
        nn.Linear(32, CLASSES),
    )


class Shared(nn.Module):
    """Everything that the fast product must not be used for: reuse, rows, other uses, groups."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.rows = nn.Linear(2, 2)
        self.read = nn.Linear(4, 4)
        self.grouped = nn.Conv2d(2, 2, 1, groups=2)
        self.head = nn.Linear(4, CLASSES, bias=False)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        x = self.rows(x.view(-1, 2, 2)).flatten(1)
        x = self.read(x) + self.read.weight.sum(0)
        return self.head(self.grouped(x.view(-1, 2, 2, 1)).flatten(1))


class FixedRows(nn.Module):
    """A layer with as many rows as samples in a small batch, though its rows are no samples."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("queries", torch.eye(rows, 4))
        self.scale = nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(x * self.scale(self.queries).sum(0)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(2, 3, batch_first=True)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.head(self.memory(x.view(-1, 2, 2))[0][:, -1])


class Words(nn.Module):
    """Attention, several rows a sample, entries of an Embedding (one of them not trained)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 4, padding_idx=0)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.RMSNorm(4)
        self.rows = nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        x = self.words((4 * x).abs().long().clamp(max=5))
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(torch.tanh(self.rows(x)).mean(1))


class Tied(nn.Module):
    """Weights in two layers, also in different ways, and gradients scaled by frequency."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scaled = nn.Embedding(4, 4), nn.Embedding(4, 4, scale_grad_by_freq=True)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, CLASSES, bias=False)
        self.table = nn.Linear(4, 4, bias=False)
        self.table.weight = self.words.weight

    def forward(self, x):
        entries = (2 * x).abs().long().clamp(max=3)
        x = torch.tanh(self.words(entries) + self.scaled(entries)).mean(1)
        return self.head(self.table(self.second(torch.tanh(self.first(x)))))


def many_convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2, padding="same", padding_mode="reflect"),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Flatten(2),
        nn.Conv1d(4, 4, 3, stride=2, groups=4),
        nn.BatchNorm1d(4),
        nn.Unflatten(2, (2, 2, -1)),
        nn.Conv3d(4, 2, (1, 2, 3), padding=(0, 1, 0)),
        nn.Flatten(),
        nn.Linear(12, CLASSES),
    )


def data(*shape: int, count: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(count, *shape, seed=1, dtype=torch.float64), torch.arange(count) % CLASSES


def loop(module: nn.Module, x, y, kind: str, active=None) -> dict[str, torch.Tensor]:
    """The definition, one sample and one class at a time."""
    module.eval()
    columns = list(range(CLASSES)) if active is None else active.tolist()
    parameters = dict(module.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for sample, label in zip(x, y, strict=True):
        log_p = module(sample.unsqueeze(0))[0][columns].log_softmax(-1)
        for place, column in enumerate(columns):
            share = log_p[place].exp().item() if kind == "exact" else float(column == label)
            gradients = torch.autograd.grad(
                log_p[place], list(parameters.values()), retain_graph=True, allow_unused=True
            )
            for name, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    total[name] += share * gradient.square() / len(x)
    return total


def assert_like_the_loop(fisher, particles, x, y, kind="exact", active=None) -> None:
    for i, network in enumerate(particles):
        expected = loop(network, x, y, kind, active)
        assert_close({name: value[i] for name, value in fisher.items()}, expected)


def test_exact_fisher_of_softmax_regression_is_its_closed_form():
    # log p_c has gradient (1[k=c] - p_k) x_j, so F_kj = E_x p_k (1 - p_k) x_j^2.
    particles = ol.Ensemble(lambda: nn.Linear(4, CLASSES), n=3).double()
    x, y = data(4)
    fisher = fisher_information(particles, (x, y))
    p = particles(x).softmax(-1).detach()
    spread = p * (1 - p)
    assert_close(fisher["weight"], torch.einsum("nbk,bj->nkj", spread, x**2) / 7)
    assert_close(fisher["bias"], spread.mean(1))


NETWORKS = {
    "mlp": (mlp, data(4)),
    "convolutional": (convolutional, data(1, 8, 8)),
    "shared": (Shared, data(4)),
    "one fixed row": (lambda: FixedRows(1), data(4)),
    "two fixed rows": (lambda: FixedRows(2), data(4)),
    "recurrent": (Recurrent, data(4)),
    "slopes": (lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU(5), nn.Linear(5, 3)), data(4)),
    "words": (Words, data(3)),
    "tied": (Tied, data(3)),
    "many convolutions": (many_convolutions, data(2, 5, 5)),
    "bounded entries": (
        lambda: nn.Sequential(nn.Embedding(7, 4, max_norm=1.0), nn.Flatten(), nn.Linear(8, 3)),
        (torch.arange(14).view(7, 2) % 5, torch.arange(7) % CLASSES),
    ),
}


@pytest.mark.parametrize("kind", ["exact", "empirical"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_fisher_equals_a_loop_over_samples(name, n, kind):
    make, (x, y) = NETWORKS[name]
    particles = ol.Ensemble(make, n).double()
    particles(x)  # BatchNorm statistics other than 0 and 1, and entries within their bounds
    batches = [(x[:1], y[:1]), (x[1:], y[1:])]
    fisher = fisher_information(particles, batches, kind=kind)
    assert_like_the_loop(fisher, particles, x, y, kind)


def test_half_precision_changes_the_fisher_by_its_rounding_only():
    particles = ol.Ensemble(convolutional, 2)
    x, y = (tensor.float() if tensor.is_floating_point() else tensor for tensor in data(1, 8, 8))
    whole = fisher_information(particles, (x, y))
    particles.precision = "bf16"
    for name, half in fisher_information(particles, (x, y)).items():
        # bfloat16 rounds to 2^-9; a square of a chain of a few such products is off by more
        assert (half - whole[name]).norm() < 0.05 * whole[name].norm(), name


def test_frozen_parameters_have_none_unless_they_are_named():
    particles = ol.Ensemble(convolutional, 2).double()
    x, y = data(1, 8, 8)
    whole = fisher_information(particles, (x, y))
    particles.get_parameter("0.weight").requires_grad_(False)
    part = fisher_information(particles, (x, y))
    named = fisher_information(particles, (x, y), names=["0.weight", "7.bias"])
    assert part.keys() == whole.keys() - {"0.weight"} and named.keys() == {"0.weight", "7.bias"}
    assert_close(part | named, whole)
    assert not particles.get_parameter("0.weight").requires_grad
    assert particles.get_parameter("7.weight").requires_grad


@pytest.mark.parametrize("kind", ["exact", "empirical"])
def test_masked_outputs_count_as_no_classes(kind):
    particles = ol.Ensemble(mlp, 2).double()
    x, _ = data(4)
    y, active = torch.arange(7) % 2 * 2, torch.tensor([0, 2])
    fisher = fisher_information(particles, (x, y), kind=kind, active=active)
    assert_like_the_loop(fisher, particles, x, y, kind, active)


def test_linear_and_convolution_layers_take_the_fast_product():
    particles = ol.Ensemble(convolutional, 2).double()
    names = [name for name, _ in particles.named_parameters()]
    with particles.evaluating():
        squares = SquaredGradients(
            particles, names, lambda x: x.log_softmax(-1), data(1, 8, 8)[0][:1]
        )
    assert [*squares.layers] == ["0", "1", "3", "6", "7"] and not squares.elsewhere


def test_sampled_fisher_tends_to_the_exact_one():
    # One label per sample: repeating each sample k times shrinks the error as 1/sqrt(k).
    particles = ol.Ensemble(lambda: nn.Linear(4, CLASSES), n=2).double()
    x, y = data(4)
    many = x.repeat(3000, 1), y.repeat(3000)
    sampled = fisher_information(particles, many, kind="sampled")
    exact = fisher_information(particles, (x, y))
    assert_close(sampled["weight"], exact["weight"], rtol=0.05, atol=0.01)


def test_sampled_labels_depend_neither_on_n_nor_on_batches():
    x, y = data(4)
    parts = [(x[:2], y[:2]), (x[2:], y[2:])]
    make = [ol.Ensemble(mlp, n, seed=3).double() for n in (1, 3)]
    one = fisher_information(make[0], parts, kind="sampled")
    three = fisher_information(make[1], (x, y), kind="sampled")
    other = fisher_information(make[1], (x, y), kind="sampled", draw=1)
    assert_close(one["0.weight"][0], three["0.weight"][0])
    assert not torch.allclose(three["0.weight"], other["0.weight"])


def test_batches_limits_and_chunks_of_particles_do_not_change_the_result():
    x, y = data(1, 8, 8)
    particles = ol.Ensemble(convolutional, 3).double()
    whole = fisher_information(particles, (x[:5], y[:5]))
    batches = [(x[:3], y[:3]), (x[3:], y[3:])]
    assert_close(fisher_information(particles, iter(batches), samples=5), whole)
    particles.chunk_size = 2
    assert_close(fisher_information(particles, (x[:5], y[:5])), whole)


def test_class_scores_can_be_one_of_several_outputs():
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy, self.value = mlp(), nn.Linear(4, 1)

        def forward(self, x):
            return self.policy(x), self.value(x)

    particles = ol.Ensemble(Policy, 2).double()
    x, y = data(4)
    fisher = fisher_information(particles, (x, y), logits=lambda outputs: outputs[0])
    assert fisher["value.weight"].abs().max() == 0
    policies = [network.policy for network in particles]
    of_policies = {
        name.removeprefix("policy."): f for name, f in fisher.items() if "policy" in name
    }
    assert_like_the_loop(of_policies, policies, x, y)


def everything(particles: ol.Ensemble) -> dict[str, object]:
    """All that an ensemble, and torch's generator, may not lose."""
    return {
        "state": copy.deepcopy(particles.state_dict()),
        "gradients": [p.grad.clone() for p in particles.parameters()],
        "modes": [layer.training for layer in particles.modules()],
        "trained": [p.requires_grad for p in particles.parameters()],
        "noise": (torch.get_rng_state(), particles.noise_counter.clone()),
    }


@pytest.mark.parametrize("kind", ["exact", "sampled", "empirical"])
def test_nothing_changes_but_the_result(kind):
    particles = ol.Ensemble(convolutional, 2).double()
    particles.template[1].eval()  # a flag of its own, to be kept
    x, y = data(1, 8, 8)
    particles(x).sum().backward()
    before = everything(particles)
    fisher_information(particles, [(x[:3], y[:3]), (x[3:], y[3:])], kind=kind)
    assert_identical(everything(particles), before)


X, Y = data(4)
MISTAKES = {
    "kind": ((X, Y), {"kind": "exactly"}, "kind must be one of exact, sampled, empirical"),
    "nothing": ([], {}, "holds no samples"),
    "an empty batch": ((X[:0], Y[:0]), {}, "holds no samples"),
    "inputs alone": (X, {}, r"data must be two tensors .* a tensor of shape \[7, 4\]"),
    "three tensors": ((X, Y, Y), {}, "data must be two tensors .* or batches of such"),
    "other lengths": ((X, Y[:3]), {}, "data must be two tensors .* or batches of such"),
    "single samples": ([(X[0], Y[0])], {}, "data must be two tensors .* or batches of such"),
    "a masked label": (
        (X, Y),
        {"kind": "empirical", "active": torch.tensor([0, 1])},
        r"label 2 is not an output column that counts: \[0, 1\]",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_sentences(name):
    given, options, words = MISTAKES[name]
    with pytest.raises((ValueError, TypeError), match=words):
        fisher_information(ol.Ensemble(mlp, 2).double(), given, **options)
