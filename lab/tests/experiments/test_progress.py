"""What a run says while it goes on."""

import io
import re

from lab.tests.experiments.tiny import tiny_cell
from rich.console import Console

from orderless_lab.experiments.progress import Countdown, GridProgress, OnceOfAKind
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
    monkeypatch.setattr("orderless_lab.experiments.progress.time.monotonic", lambda: now[0])
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


def test_on_a_terminal_there_is_one_bar_and_no_lines(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("orderless_lab.experiments.progress.Console", lambda **options: console)
    with GridProgress() as progress:
        progress.begin(0, 2)
        progress.start(tiny_cell("wpf"))
        for _ in range(60):
            progress.tick(1)
        progress.done(tiny_cell("wpf"), record())
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "wpf order 0 seed 0" in shown and "1/2" in shown and "average" not in shown


def test_one_grid_among_several_is_named(capsys):
    with GridProgress("lr=0.1 (2 of 3)") as report:
        report.begin(0, 1)
        report.done(tiny_cell("gd"), record())
    assert "[1/1] lr=0.1 (2 of 3): gd order 0 seed 0: average" in capsys.readouterr().err


def test_a_countdown_says_a_plain_line_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("orderless_lab.experiments.progress.time.monotonic", lambda: now[0])
    with Countdown(every=5.0) as progress:
        for done in range(10, 21):  # ten were finished before: they took no time now
            progress.tell(done, 20, f"run {done}")
            now[0] += 2.0
        now[0] += 2.0
        progress.tell(25, 20, "beyond")  # whole rounds may pass the mark
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "[13/20] run 13, time left: 0:00:14",
        "[16/20] run 16, time left: 0:00:08",
        "[19/20] run 19, time left: 0:00:02",
        "[25/20] beyond, time left: 0:00:00",
    ]


def test_bytes_are_told_in_megabytes_also_where_nobody_knows_how_many(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("orderless_lab.experiments.progress.time.monotonic", lambda: now[0])
    with Countdown(bytes=True, every=0.0) as progress:
        progress.tell(0, 4_000_000, "a.gz", name="a.gz")
        now[0] += 1.0
        progress.tell(1_000_000, 4_000_000, "a.gz", name="a.gz")
        progress.tell(500_000, None, "b.gz", name="b.gz")
    assert capsys.readouterr().err.splitlines() == [
        "[0.0 MB/4.0 MB] a.gz, time left: ?",
        "[1.0 MB/4.0 MB] a.gz, time left: 0:00:03",
        "[0.5 MB] b.gz, time left: ?",
    ]


def test_on_a_terminal_a_countdown_is_a_bar(monkeypatch, capsys):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("orderless_lab.experiments.progress.Console", lambda **options: console)
    with Countdown(every=0.0) as progress:
        progress.tell(3, 8, "rb seed 0 order 3")
        progress.tell(4, 8, "rb seed 0 order 4")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "rb seed 0 order 4" in shown and "4/8" in shown and "time left: 0:00:0" in shown
    assert capsys.readouterr().err == ""


def test_a_kind_of_warning_is_said_once(capsys):
    say = OnceOfAKind()
    for count in (3, 20):
        say(UserWarning(f"{count} of 20 particles are certain"), UserWarning, "file.py", 1)
    say(UserWarning("something else"), UserWarning, "file.py", 1)
    assert capsys.readouterr().err.splitlines() == [
        "orderless: warning (said once): 3 of 20 particles are certain",
        "orderless: warning (said once): something else",
    ]
