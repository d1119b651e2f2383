"""The product of task posteriors: exact where it says so, and without an order everywhere."""

import itertools

import pytest
import torch
from tests.common import cross_entropy, normal, take_step
from tests.product.tasks import (
    convolutional,
    five_tasks,
    learn,
    learned,
    mlp,
    product,
    same_bits,
)
from torch import Tensor, nn
from torch.testing import assert_close

import orderless as ol

X, Y = five_tasks()[0]

squared_error = ol.per_particle(lambda output, y: 0.5 * (output - y).square().sum())


def regression() -> list[tuple[Tensor, Tensor]]:
    numbers = normal(3, 60, 6, dtype=torch.float64)
    return [(task[:, :4], task[:, 4:]) for task in numbers]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_one_linear_layer_is_the_ridge_solution_on_all_data(order: tuple[int, ...]) -> None:
    """Under squared error, after full-batch descent to its minimum on every task."""
    p_0 = 0.7
    tasks = regression()
    particles = ol.Ensemble(lambda: nn.Linear(4, 2).double(), 2)
    starts = particles[0], particles[1]
    make_optimizer = lambda p: torch.optim.SGD(p, lr=1 / 60)  # noqa: E731
    pf = ol.PosteriorProduct(particles, make_optimizer, prior_precision=p_0, link="identity")
    for task in order:
        x, y = tasks[task]
        for _ in range(80):
            pf.step(lambda x=x, y=y: squared_error(particles(x), y))
        pf.end_task((x, y))
    x, y = (torch.cat(parts) for parts in zip(*tasks, strict=True))
    a = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    for i in range(2):
        w_0, found = (
            torch.cat([layer.weight.T, layer.bias[None]]) for layer in (starts[i], pf.networks[i])
        )
        ridge = torch.linalg.solve(p_0 * torch.eye(5).double() + a.T @ a, p_0 * w_0 + a.T @ y)
        # descent ends about 1e-13 from its minimum; the sums add nothing to that
        assert_close(found, ridge, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- no order


@pytest.mark.slow
@pytest.mark.parametrize("make_model", [mlp, convolutional])
def test_orders_of_five_tasks_give_the_same_bits(make_model) -> None:
    """Each task is trained anew in every order, from a start that training has moved away from."""
    first = learned(range(5), make_model=make_model)
    for order in itertools.islice(itertools.permutations(range(5)), 19, None, 20):
        assert same_bits(learned(order, make_model=make_model), first), order


def test_the_sum_of_all_changes_has_no_order_either() -> None:
    """Merged networks around the anchor "sum", in two orders, and after a task is taken away."""
    first = learned([0, 1, 2], anchor="sum")
    less = learned([1, 3, 2, 0], anchor="sum") - learned([3], anchor="sum")
    assert same_bits(first, learned([2, 0, 1], anchor="sum")) and same_bits(first, less)
    assert not same_bits(first, learned([0, 1, 2]))


def test_a_prediction_in_the_middle_of_a_task_is_without_it_and_says_so(recwarn):
    """Before the first task the start answers."""
    pf = product()
    with pf.particles.evaluating():
        before = pf.particles(X)
    pf.predict(X)
    take_step(pf, X, Y)
    assert not recwarn
    assert torch.equal(pf.outputs(X), before)
    with pytest.warns(UserWarning, match="1 steps since the last end_task are not in this"):
        pf.predict(X)
    pf.end_task((X, Y))
    pf.predict(X)
    assert not recwarn


def test_reading_does_not_disturb_a_task() -> None:
    quiet, read = product(convolutional), product(convolutional)
    for task in five_tasks()[:2]:
        learn(quiet, task)
        read.predict(task[0])
        learn(read, task)
        read.predict(task[0])
    assert same_bits(quiet, read)


# ---------------------------------------------------------------------- algebra and state


def test_a_sum_has_the_tasks_of_both_and_a_difference_leaves_no_trace() -> None:
    whole = learned(range(5), make_model=convolutional)
    left = learned([3, 0], make_model=convolutional)
    right = learned([4, 1, 2], make_model=convolutional)
    assert same_bits(left + right, whole) and (left + right).tasks == 5
    assert same_bits(whole - right, left) and (whole - right).samples == 48
    nothing = whole - left - right
    assert nothing.tasks == 0 and same_bits(nothing, product(convolutional))


def test_a_sum_can_go_on_learning_by_itself() -> None:
    tasks = five_tasks()
    both = learned([0]) + learned([1])
    learn(both, tasks[2])
    assert same_bits(both, learned([2, 1, 0]))


def test_a_state_loaded_into_a_sum_leaves_the_noise_of_its_terms_alone() -> None:
    tasks, pf = five_tasks(), product()
    total, state = pf + product(), product().state_dict()
    total.load_state_dict({**state, "first_draw": state["first_draw"] + 7})
    learn(pf, tasks[0])
    learn(pf, tasks[1])  # begins where every task begins, dropout's draws included
    assert same_bits(pf, learned((0, 1)))


def test_it_goes_on_from_a_file_in_the_middle_of_a_task(tmp_path):
    tasks = five_tasks()
    x, y = tasks[1]
    through, resumed = product(convolutional), product(convolutional)
    learn(through, tasks[0])
    take_step(through, x[:8], y[:8])
    ol.save(tmp_path / "product.safetensors", through)
    ol.load(tmp_path / "product.safetensors", into=resumed)
    for pf in (through, resumed):
        take_step(pf, x[8:], y[8:])
        pf.end_task(tasks[1])
        learn(pf, tasks[2])
    assert same_bits(through, resumed)


def test_compiled_steps_are_steps():
    pf = product()
    fast = pf.compile(lambda x, y: cross_entropy(pf.particles(x), y))
    for x, y in five_tasks()[:2]:
        for batch in zip(x.split(8), y.split(8), strict=True):
            fast(*batch)
        pf.end_task((x, y))
    assert same_bits(pf, learned([0, 1]))


def test_batches_of_pairs_are_the_task():
    merged = []
    for data in ((X, Y), [(X[:10], Y[:10]), (X[10:], Y[10:])]):
        pf = product()
        take_step(pf, X, Y)
        pf.end_task(data)
        merged.append(pf.networks.state_dict())
    # float64 sums in another order, rounded to float32 weights
    assert_close(*merged, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("left", [0.0, torch.nan, torch.inf])
@pytest.mark.parametrize("make_model", [mlp, convolutional])
def test_a_particle_that_dies_in_a_task_counts_for_nothing(make_model, left):
    """Whatever its parameters and running statistics have become."""
    poison = torch.tensor([0.0, torch.nan, 0.0])

    def poisoned(left: float) -> ol.PosteriorProduct:
        pf = product(make_model, n=3)
        pf.step(lambda: cross_entropy(pf.particles(X), Y) + poison)
        for tensor in pf.particles.state_dict().values():
            if tensor.is_floating_point():
                tensor[1] += left
        pf.end_task((X, Y))
        return pf

    pf = poisoned(left)
    assert pf.predict(X).isfinite().all()
    assert pf.weights.tolist() == [0.5, 0.0, 0.5]
    learn(pf, five_tasks()[1])
    assert pf.alive.tolist() == [True, False, True]
    without = pf - poisoned(0.0)
    assert without.alive.all() and same_bits(without, learned([1], make_model=make_model, n=3))
