"""The product of task posteriors: exact where it says so, and without an order everywhere."""

import itertools

import pytest
import torch
from tests.product.tasks import (
    convolutional,
    cross_entropy,
    five_tasks,
    learn,
    learned,
    mlp,
    product,
    same_bits,
)
from torch import Tensor, nn

import orderless as ol

squared_error = ol.per_particle(lambda output, y: 0.5 * (output - y).square().sum())


def regression(tasks: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    real = {"generator": generator, "dtype": torch.float64}
    return [(torch.randn(60, 4, **real), torch.randn(60, 2, **real)) for _ in range(tasks)]


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
        torch.testing.assert_close(found, ridge, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- no order


@pytest.mark.slow
@pytest.mark.parametrize("make_model", [mlp, convolutional])
def test_orders_of_five_tasks_give_the_same_bits(make_model) -> None:
    """Each task is trained anew in every order, from a start that training has moved away from."""
    first = learned(range(5), make_model=make_model)
    for order in itertools.islice(itertools.permutations(range(5)), 19, None, 20):
        assert same_bits(learned(order, make_model=make_model), first), order


@pytest.mark.slow
def test_sums_of_all_orders_have_the_same_bits() -> None:
    """The same claim without training, which is quick enough for all 120."""
    alone = [learned([task]) for task in range(5)]
    first = sum(alone[1:], start=alone[0])
    for order in itertools.permutations(range(5)):
        tasks = [alone[task] for task in order]
        assert same_bits(sum(tasks[1:], start=tasks[0]), first), order


def test_the_sum_of_all_changes_has_no_order_either() -> None:
    """Merged networks around the anchor "sum", in two orders, and after a task is taken away."""
    first = learned([0, 1, 2], anchor="sum")
    less = learned([1, 3, 2, 0], anchor="sum") - learned([3], anchor="sum")
    assert same_bits(first, learned([2, 0, 1], anchor="sum")) and same_bits(first, less)
    assert not same_bits(first, learned([0, 1, 2]))


def test_before_the_first_task_the_start_answers_also_in_the_middle_of_a_task() -> None:
    pf, (x, y) = product(), five_tasks()[0]
    with pf.particles.evaluating():
        before = pf.particles(x)
    pf.step(lambda: cross_entropy(pf.particles(x), y))
    torch.testing.assert_close(pf.outputs(x), before, rtol=0, atol=0)


def test_a_prediction_without_the_present_task_says_so(recwarn) -> None:
    pf, (x, y) = product(), five_tasks()[0]
    pf.predict(x)
    pf.step(lambda: cross_entropy(pf.particles(x), y))
    assert not recwarn
    with pytest.warns(UserWarning, match="1 steps since the last end_task are not in this"):
        pf.predict(x)
    pf.end_task((x, y))
    pf.predict(x)
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


def test_it_goes_on_from_a_file_in_the_middle_of_a_task(tmp_path) -> None:
    tasks = five_tasks()
    x, y = tasks[1]

    def begin(pf: ol.PosteriorProduct) -> None:
        learn(pf, tasks[0])
        pf.step(lambda: cross_entropy(pf.particles(x[:8]), y[:8]))

    def finish(pf: ol.PosteriorProduct) -> None:
        pf.step(lambda: cross_entropy(pf.particles(x[8:]), y[8:]))
        pf.end_task(tasks[1])
        learn(pf, tasks[2])

    through, saved = product(convolutional), product(convolutional)
    begin(through)
    begin(saved)
    ol.save(tmp_path / "product.safetensors", saved)
    resumed = product(convolutional)
    ol.load(tmp_path / "product.safetensors", into=resumed)
    finish(through)
    finish(resumed)
    assert same_bits(through, resumed)


def test_compiled_steps_are_steps() -> None:
    by_step = learned([0, 1])
    pf = product()
    fast = pf.compile(lambda x, y: cross_entropy(pf.particles(x), y))
    for x, y in five_tasks()[:2]:
        for start in (0, 8, 16):
            fast(x[start : start + 8], y[start : start + 8])
        pf.end_task((x, y))
    assert same_bits(pf, by_step)


def test_batches_of_pairs_are_the_task() -> None:
    x, y = five_tasks()[0]
    merged = []
    for data in ((x, y), [(x[:10], y[:10]), (x[10:], y[10:])]):
        pf = product()
        pf.step(lambda pf=pf: cross_entropy(pf.particles(x), y))
        pf.end_task(data)
        merged.append(torch.cat([p.flatten() for p in pf.networks.parameters()]))
    # float64 sums in another order, rounded to float32 weights
    torch.testing.assert_close(merged[0], merged[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("left", [0.0, torch.nan, torch.inf])
@pytest.mark.parametrize("make_model", [mlp, convolutional])
def test_a_particle_that_dies_in_a_task_counts_for_nothing(make_model, left) -> None:
    """Whatever its parameters and running statistics have become."""
    pf, (x, y) = product(make_model, n=3), five_tasks()[0]
    poison = torch.tensor([0.0, torch.nan, 0.0])
    pf.step(lambda: cross_entropy(pf.particles(x), y) + poison)
    for tensor in pf.particles.state_dict().values():
        if tensor.is_floating_point():
            tensor[1] += left
    pf.end_task((x, y))
    assert pf.predict(x).isfinite().all()
    assert pf.weights.tolist() == [0.5, 0.0, 0.5]
    learn(pf, five_tasks()[1])
    assert pf.alive.tolist() == [True, False, True]
    without = pf - learned_by_hand(make_model, poison)
    assert without.alive.all() and same_bits(without, learned([1], make_model=make_model, n=3))


def learned_by_hand(make_model, poison: Tensor) -> ol.PosteriorProduct:
    pf, (x, y) = product(make_model, n=3), five_tasks()[0]
    pf.step(lambda: cross_entropy(pf.particles(x), y) + poison)
    pf.end_task((x, y))
    return pf
