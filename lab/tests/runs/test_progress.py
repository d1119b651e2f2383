"""What a run says while it goes on."""

import io

from lab.tests.toys import tiny_cell

from orderless_lab.runs.cell import CellRecord
from orderless_lab.runs.launch import RunProgress


def record(died_at=None):
    scores = {"particles": [[0.5, 0.5]] * 2 + [[0.7, 0.8]]}
    place = {"benchmark": "tiny", "method": "gd", "order_index": 0, "order": [0, 1], "seed": 0}
    return CellRecord(**place, scores=scores, duration=2.0, died_at=died_at)


def test_there_is_a_line_for_every_cell_and_the_time_left_from_the_first(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("orderless.cli.progress.time.monotonic", lambda: now[0])
    progress = RunProgress()
    now[0] += 5000  # for data that had to be collected first
    progress.begin(5, 15)  # five were finished before: they took no time now
    now[0] += 600
    progress.start(tiny_cell("wpf"))
    progress.done(tiny_cell("wpf"), record(died_at=12))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("[6/15] domain: wpf order 0 seed 0: average 75.00, ")
    assert "no finite network left at step 12" in line and line.endswith("time left: 1:30:00")


def test_on_a_terminal_there_is_one_line_for_all(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    now = [0.0]
    monkeypatch.setattr("orderless.cli.progress.time.monotonic", lambda: now[0])
    with RunProgress() as progress:
        progress.begin(1, 3)
        now[0] += 1.0
        progress.start(tiny_cell("wpf"))
        now[0] += 1.0
        for _ in range(60):
            progress.tick(1)
        progress.done(tiny_cell("wpf"), record())
    shown = screen.getvalue()
    assert "wpf order 0 seed 0" in shown and "[1/3]" in shown and "step 50" in shown
    assert "average" not in shown and "\n" not in shown
