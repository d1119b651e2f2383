"""What a long command says while it goes on."""

import io
import re

from rich.console import Console

from orderless.cli.progress import Countdown, OnceOfAKind


def test_a_countdown_says_a_plain_line_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("orderless.cli.progress.time.monotonic", lambda: now[0])
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
    monkeypatch.setattr("orderless.cli.progress.time.monotonic", lambda: now[0])
    with Countdown(bytes=True, every=0.0) as progress:
        progress.tell(0, 4_000_000, "a.gz", name="a.gz")
        now[0] += 1.0
        progress.tell(1_000_000, 4_000_000, "a.gz", name="a.gz")
        progress.tell(500_000, None, "b.gz", name="b.gz")
    assert capsys.readouterr().err.splitlines() == [
        "[0.0 MB/4.0 MB] a.gz",
        "[1.0 MB/4.0 MB] a.gz, time left: 0:00:03",
        "[0.5 MB] b.gz",
    ]


def test_on_a_terminal_a_countdown_is_a_bar(monkeypatch, capsys):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("orderless.cli.progress.Console", lambda **options: console)
    with Countdown(every=0.0) as progress:
        progress.tell(3, 8, "run 0 order 3")
        progress.tell(4, 8, "run 0 order 4")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "run 0 order 4" in shown and "4/8" in shown and "time left: 0:00:0" in shown
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


def test_a_kind_of_warning_may_tell_its_numbers_apart(capsys):
    class OfAFile(UserWarning):
        numbers_tell_apart = True

    say = OnceOfAKind()
    for number in (1, 2, 2):
        say(OfAFile(f"{number}.json is damaged"))
    assert len(capsys.readouterr().err.splitlines()) == 2
