"""How far one has to read to follow one batch."""

import sys
from pathlib import Path

from lab.tests.toys import network as model
from lab.tests.toys import points as scenario

import orderless
from orderless_lab.methods import METHODS, Setup
from orderless_lab.suites import SupervisedSettings as Settings

ROOT = str(Path(orderless.__file__).parent)
MOST = 15


def test_a_batch_of_ewc_over_weighted_particles_enters_few_files() -> None:
    tasks = scenario("task")
    setup = Setup(tasks, Settings(particles=3), lambda: model(tasks.outputs), seed=0)
    learner = METHODS["ewc+wpf"].build(setup)
    for seen in ([0], [0, 1]):
        learner.begin_task(seen)
        x, y = tasks.train_set(seen[-1])
        learner.learn(x[:4], y[:4])
        learner.end_task()
    x, y = tasks.train_set(2)
    learner.begin_task([0, 1, 2])  # from the second task on there is a penalty
    files: set[str] = set()

    def note(frame, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            files.add(frame.f_code.co_filename.removeprefix(ROOT))

    sys.setprofile(note)
    try:
        learner.learn(x[:4], y[:4])
    finally:
        sys.setprofile(None)
    assert len(files) <= MOST, sorted(files)
