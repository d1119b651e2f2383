"""The product of task posteriors: its settings, where it works, and the cost of `end_task`.

    python benchmarks/product.py sweep splitmnist domain hidden=400 hidden=1000,product_lr=0.3
    python benchmarks/product.py map [lr] [size] [tasks]
    python benchmarks/product.py cost
    python benchmarks/product.py head

Everything except `head` is scored on a held-out tenth of the training data. Every result is
printed, and added to --out as JSON, as soon as it is known. `sweep` tries settings as `orderless
run --set` takes them and prints the best. The --networks train side by side on the same batches,
each from its own initialisation. A setting that diverges is reported.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orderless_lab.methods import METHODS, Setup
from orderless_lab.methods.learners.exact import backbone_features
from orderless_lab.methods.learners.product import ProductLearner
from orderless_lab.methods.settings import RunSettings
from orderless_lab.suites import Scenario, SplitCIFAR100, SplitMNIST, Task, find_suite
from timing import machine

parser = argparse.ArgumentParser(description="Measure the product of task posteriors.")
parser.add_argument("what", choices=("sweep", "map", "cost", "head"))
parser.add_argument("choices", nargs="*")
parser.add_argument("--data", default=None, help="folder of MNIST and CIFAR-100")
parser.add_argument("--out", type=Path, default=Path("product.json"))
parser.add_argument("--networks", type=int, default=3)
parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing after this time")
parser.add_argument("--source", default="full", help='"embedded" for 5,000 digits')
parser.add_argument("--width", type=int, default=4096, help="width of the head's hidden layer")
parser.add_argument("--few", type=int, default=None, help="use only the first FEW tasks")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
args = parser.parse_intermixed_args()

BEGUN, HELD_OUT = time.perf_counter(), 0.1
Maker = Callable[[], nn.Module]
points: list[dict] = []


def note(**point: object) -> None:
    points.append(point)
    print(" ".join(f"{name}={value}" for name, value in point.items()), flush=True)
    content = {
        "kind": f"product {args.what}",
        "device": machine(torch.device(args.device)),
        "points": points,
    }
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def in_time(choices: Iterable) -> Iterator:
    """The choices that can start before --seconds have passed."""
    for choice in choices:
        if time.perf_counter() - BEGUN > args.seconds:
            print("out of time")
            return
        yield choice


def clock() -> float:
    if args.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def settings_of(benchmark: str, text: str = "") -> RunSettings:
    source = {"source": args.source} if benchmark == "splitmnist" else {}
    settings = (
        find_suite(benchmark)
        .preset("table1")
        .settings.changed(validation=HELD_OUT, particles=args.networks, **source)
    )
    return settings.with_text(text.split(",") if text else [])


def trained(
    scenario: Scenario, settings: RunSettings, make_model: Maker, merge: bool = True
) -> tuple[ProductLearner, float, float]:
    """The learner after all tasks, seconds of training, seconds of `end_task`.

    Without `merge`, networks continue from task to task, as in gradient descent.
    """
    learner = METHODS["product+particles"].build(Setup(scenario, settings, make_model, 0))
    begun, ends = clock(), 0.0
    for task in range(len(scenario)):
        learner.begin_task(list(range(task + 1)))
        for x, y in scenario.batches(
            task, batch_size=settings.batch_size, epochs=settings.epochs, seed=0
        ):
            learner.learn(x, y)
        if merge:
            before = clock()
            learner.end_task()
            ends += clock() - before
    return learner, clock() - begun - ends, ends


@torch.no_grad()
def accuracy(learner: ProductLearner, merge: bool = True) -> list[float]:
    """Accuracy of every network in % of held-out data, averaged over tasks."""
    scenario, found = learner.scenario, []
    for task in range(len(scenario)):
        x, y = scenario.test_set(task)
        if merge:
            parts = [learner.outputs(part, task) for part in x.split(2000)]
        else:
            with learner.filter.particles.evaluating():
                parts = [learner.filter.particles(part) for part in x.split(2000)]
        found.append((torch.cat(parts, 1).argmax(-1) == y).double().mean(1))
    return (100 * torch.stack(found).mean(0)).tolist()


def score(scenario: Scenario, settings: RunSettings, make_model: Maker, merge: bool = True) -> dict:
    try:
        learner, training, ends = trained(scenario, settings, make_model, merge)
        learner.check()
        found = accuracy(learner, merge)
    except (ValueError, FloatingPointError) as error:
        return {"diverged": str(error).partition(":")[0]}
    mean = sum(found) / len(found)
    return {"accuracy": round(mean, 2), "networks": [round(a, 2) for a in found]} | {
        "seconds": round(training + ends, 1)
    }


def sweep(benchmark: str, kind: str, *texts: str) -> None:
    """Try settings of `orderless run`; the best are written next to --out as its options."""
    suite = find_suite(benchmark)
    best = (-1.0, "")
    for text in in_time(texts):
        settings = settings_of(benchmark, text)
        scenario = suite.load(kind, settings, 0, args.data, args.device)
        scenario = scenario.with_tasks(scenario.tasks[: args.few])
        found = score(scenario, settings, suite.network(scenario, settings))
        note(benchmark=benchmark, scenario=kind, settings=text, **found)
        best = max(best, (found.get("accuracy", -1.0), text))
        options = " ".join(f"--set {change}" for change in best[1].split(",") if change)
        args.out.with_suffix(".chosen").write_text(options + "\n", encoding="utf-8")
    note(benchmark=benchmark, scenario=kind, chosen=best[1], accuracy=best[0])


def mlp(inputs: int, width: int, depth: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for before in [inputs] + [width] * (depth - 1):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def mnist(kind: str) -> Scenario:
    return SplitMNIST(
        kind, root=args.data, source=args.source, validation=HELD_OUT, device=args.device
    )


def draw_map(*parts: str) -> None:
    parts = parts or ("lr", "size", "tasks")
    base = settings_of("splitmnist")
    if "lr" in parts:
        for kind, passes, lr in in_time(
            (kind, passes, lr)
            for passes in (1, 3, 10)
            for lr in (0.01, 0.03, 0.1, 0.3)
            for kind in ("domain", "class")
        ):
            scenario = mnist(kind)
            settings = base.changed(product_lr=lr, epochs=passes)
            found = score(scenario, settings, lambda s=scenario: mlp(784, 400, 2, s.outputs))
            note(map="lr", scenario=kind, lr=lr, passes=passes, **found)
    if "size" in parts:
        for kind, depth, width in in_time(
            (kind, depth, width)
            for depth in (1, 2, 3)
            for width in (100, 400, 1000, 2000)
            for kind in ("domain", "class")
        ):
            scenario = mnist(kind)
            make_model = lambda s=scenario, w=width, d=depth: mlp(784, w, d, s.outputs)  # noqa: E731
            note(
                map="size",
                scenario=kind,
                width=width,
                depth=depth,
                **score(scenario, base, make_model),
            )
    if "tasks" in parts:
        for name, scenario in in_time(divisions()):
            for merge in (True, False):
                found = score(scenario, base, lambda: mlp(784, 400, 2, 10), merge)
                note(map="tasks", tasks=len(scenario), division=name, merged=merge, **found)


def divisions() -> Iterator[tuple[str, Scenario]]:
    """All ten digits under one head, divided into tasks in several ways."""
    whole = mnist("class")
    parts = [whole.train_set(t) + whole.test_set(t) for t in range(len(whole))]
    x, y, x_test, y_test = (torch.cat(column) for column in zip(*parts, strict=True))
    mixed = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    x, y = x[mixed], y[mixed]
    everyone = x_test, y_test

    def scenario(
        rows: Iterable[Tensor], change: Callable[[Tensor, int], Tensor] | None = None
    ) -> Scenario:
        change = change or (lambda images, task: images)
        return Scenario(
            [
                Task(change(x[own], t), y[own], change(everyone[0], t), everyone[1], str(t))
                for t, own in enumerate(rows)
            ]
        )

    places = torch.arange(len(x), device=x.device)
    for count in (1, 2, 5, 10, 20, 50):
        yield "at random", scenario(places.chunk(count))
    for count in (2, 5, 10):
        yield "by digit", scenario((y * count // 10 == t).nonzero()[:, 0] for t in range(count))
    for degrees in (15, 45, 90):
        yield (
            f"turned by {degrees} more",
            scenario(places.chunk(5), lambda images, task, d=degrees: turned(images, d * task)),
        )
    yield "pixels permuted", scenario(places.chunk(5), permuted)


def turned(images: Tensor, degrees: float) -> Tensor:
    angle = math.radians(degrees)
    turn = [[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]]
    matrix = torch.tensor([turn], device=images.device)
    square = images.reshape(-1, 1, 28, 28)
    grid = F.affine_grid(matrix, [1, 1, 28, 28], align_corners=False)
    return F.grid_sample(square, grid.expand(len(square), -1, -1, -1), align_corners=False)


def permuted(images: Tensor, task: int) -> Tensor:
    places = torch.randperm(784, generator=torch.Generator().manual_seed(task))
    return images.flatten(1)[:, places.to(images.device)]


def cost() -> None:
    """Time three passes and `end_task` for 1 and 20 networks; the second of two runs counts."""
    scenario = mnist("domain")
    for n in in_time((1, 20)):
        settings = settings_of("splitmnist").changed(epochs=3, particles=n)
        make_model = lambda: mlp(784, 400, 2, 2)  # noqa: E731
        for _ in range(2):
            learner, training, ends = trained(scenario, settings, make_model)
        before = clock()
        _ = learner.filter.networks
        note(
            networks=n,
            training_s=round(training, 3),
            end_task_s=round(ends, 3),
            share=round(ends / training, 4),
            reading_s=round(clock() - before, 3),
        )


def head() -> None:
    """Learn CIFAR-100 in 20 tasks by one hidden layer on a frozen network; scored on test data.

    Passes and learning rate were chosen on held-out training data.
    """
    whole = SplitCIFAR100("class", root=args.data, device=args.device)
    tasks = whole.with_tasks(whole.tasks[: args.few]).mapped(backbone_features("lite2"))
    settings = settings_of("splitcifar100", "optimizer=adam,adam_lr=1e-4,epochs=3")
    make_model = lambda: mlp(math.prod(tasks.input_shape), args.width, 1, tasks.outputs)  # noqa: E731
    for merge in in_time((True, False)):
        way = "product" if merge else "one after another"
        note(way=way, width=args.width, **score(tasks, settings, make_model, merge))


COMMANDS = {"sweep": sweep, "map": draw_map, "cost": cost, "head": head}
if __name__ == "__main__":
    COMMANDS[args.what](*args.choices)
