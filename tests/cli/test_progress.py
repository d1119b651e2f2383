"""What a long command says while it goes on."""

import io

import pytest

from orderless.cli.progress import Countdown, OnceOfAKind


@pytest.fixture
def now(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("orderless.cli.progress.time.monotonic", lambda: clock[0])
    return clock


def test_a_countdown_says_a_plain_line_now_and_then(now, capsys):
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


def test_fewer_than_before_are_of_something_else_whose_number_may_be_unknown(now, capsys):
    with Countdown(every=0.0) as progress:
        for done in (0, 10):
            now[0] += 1.0
            progress.tell(done, 40, "a.gz")
        progress.tell(5, None, "b.gz")
        now[0] += 1.0
        progress.tell(6, 8, "b.gz")
    assert capsys.readouterr().err.splitlines()[1:] == [
        "[10/40] a.gz, time left: 0:00:03",
        "[5] b.gz",
        "[6/8] b.gz, time left: 0:00:02",
    ]


def test_on_a_terminal_one_line_is_written_over_and_taken_away(now, monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    with Countdown() as progress:
        for done in (3, 4):
            now[0] += 1.0
            progress.tell(done, 8, f"run {done}")
    first, second, last = (line.strip() for line in screen.getvalue().split("\r")[1::2])
    assert first == "[3/8] run 3" and second == "[4/8] run 4, time left: 0:00:04" and last == ""
    assert "\n" not in screen.getvalue()


def test_a_kind_of_warning_is_said_once_and_some_tell_numbers_apart(capsys):
    class OfAFile(UserWarning):
        numbers_tell_apart = True

    say = OnceOfAKind()
    for count in (3, 20):
        say(UserWarning(f"{count} of 20 particles are certain"), UserWarning, "file.py", 1)
    for number in (1, 2, 2):
        say(OfAFile(f"{number}.json is damaged"))
    assert capsys.readouterr().err.splitlines() == [
        "orderless: warning (said once): 3 of 20 particles are certain",
        "orderless: warning (said once): 1.json is damaged",
        "orderless: warning (said once): 2.json is damaged",
    ]
