"""What a run says while it goes on."""

import io
import re

from rich.console import Console
from tiny import tiny_cell

from orderless.experiments.progress import GridProgress, OnceOfAKind


def record(died_at=None):
    return {"scores": {"accuracy": [[0.5, 0.5], [0.7, 0.8]]}, "duration": 2.0, "died_at": died_at}


def test_without_a_terminal_there_is_a_line_for_every_cell(capsys):
    with GridProgress() as progress:
        progress.report.begin(1, 4)
        for method in ("gd", "wpf"):
            progress.report.start(tiny_cell(method))
            progress.report.tick(1)
            progress.report.done(tiny_cell(method), record())
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == "" and len(lines) == 2
    assert lines[0].startswith("[2/4] gd order 0 seed 0: average 75.00, 2.0 s, time left: 0:00:0")
    assert lines[1].startswith("[3/4] wpf order 0 seed 0: average 75.00")


def test_time_left_is_the_mean_of_what_was_done_here_times_what_is_left(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("orderless.experiments.progress.time.monotonic", lambda: now[0])
    progress = GridProgress()
    progress.report.begin(5, 15)  # five were finished before: they took no time now
    now[0] += 600
    progress.report.done(tiny_cell(), record())
    assert "time left: 1:30:00" in capsys.readouterr().err


def test_a_cell_that_broke_down_says_so(capsys):
    progress = GridProgress()
    progress.report.begin(0, 1)
    progress.report.done(tiny_cell("ewc"), record(died_at=12))
    assert "no finite network left at step 12" in capsys.readouterr().err


def test_on_a_terminal_there_is_one_bar_and_no_lines(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("orderless.experiments.progress.Console", lambda **options: console)
    with GridProgress() as progress:
        progress.report.begin(0, 2)
        progress.report.start(tiny_cell("wpf"))
        for _ in range(60):
            progress.report.tick(1)
        progress.report.done(tiny_cell("wpf"), record())
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "wpf order 0 seed 0" in shown and "1/2" in shown and "average" not in shown


def test_a_kind_of_warning_is_said_once(capsys):
    say = OnceOfAKind()
    for count in (3, 20):
        say(UserWarning(f"{count} of 20 particles are certain"), UserWarning, "file.py", 1)
    say(UserWarning("something else"), UserWarning, "file.py", 1)
    assert capsys.readouterr().err.splitlines() == [
        "orderless: warning (said once): 3 of 20 particles are certain",
        "orderless: warning (said once): something else",
    ]
