"""What a run says while it goes on."""

import io

from lab.tests.experiments.tiny import tiny_cell

from orderless_lab.experiments.progress import GridProgress
from orderless_lab.experiments.record import CellRecord


def record(died_at=None):
    scores = {"accuracy": [[0.5, 0.5], [0.7, 0.8]]}
    place = {"benchmark": "tiny", "method": "gd", "order_index": 0, "order": [0, 1], "seed": 0}
    return CellRecord(**place, scores=scores, duration=2.0, died_at=died_at)


def test_without_a_terminal_there_is_a_line_for_every_cell(capsys):
    with GridProgress() as progress:
        progress.begin(1, 4)
        for method in ("gd", "wpf"):
            progress.start(tiny_cell(method))
            progress.tick(1)
            progress.done(tiny_cell(method), record())
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == "" and len(lines) == 2
    assert lines[0].startswith("[2/4] gd order 0 seed 0: average 75.00, 2.0 s, time left: 0:00:0")
    assert lines[1].startswith("[3/4] wpf order 0 seed 0: average 75.00")


def test_time_left_is_the_mean_of_what_was_done_here_times_what_is_left(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("orderless.cli.progress.time.monotonic", lambda: now[0])
    progress = GridProgress()
    now[0] += 5000  # for data that had to be collected first
    progress.begin(5, 15)  # five were finished before: they took no time now
    now[0] += 600
    progress.done(tiny_cell(), record())
    assert "time left: 1:30:00" in capsys.readouterr().err


def test_a_cell_that_broke_down_says_so(capsys):
    progress = GridProgress()
    progress.begin(0, 1)
    progress.done(tiny_cell("ewc"), record(died_at=12))
    assert "no finite network left at step 12" in capsys.readouterr().err


def test_on_a_terminal_there_is_one_line_for_all(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    now = [0.0]
    monkeypatch.setattr("orderless.cli.progress.time.monotonic", lambda: now[0])
    with GridProgress() as progress:
        progress.begin(1, 3)
        now[0] += 1.0
        progress.start(tiny_cell("wpf"))
        for _ in range(60):
            progress.tick(1)
        progress.done(tiny_cell("wpf"), record())
    shown = screen.getvalue()
    assert "wpf order 0 seed 0" in shown and "[1/3]" in shown
    assert "average" not in shown and "\n" not in shown


def test_one_grid_among_several_is_named(capsys):
    with GridProgress("lr=0.1 (2 of 3)") as report:
        report.begin(0, 1)
        report.done(tiny_cell("gd"), record())
    assert "[1/1] lr=0.1 (2 of 3): gd order 0 seed 0: average" in capsys.readouterr().err
