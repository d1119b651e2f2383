"""Victims: a process that has everything loaded and warm forks one for every line it reads.

So that a kill hits the work itself, and does not pay seconds of imports first.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import torch
from lab.tests.toys import compute

from orderless_lab.runs import Store, StoreError

FULL = 3  # exit status of a victim that said in a sentence that it could not write


class Zygote:
    """The parent's side. `run` starts a victim, perhaps kills it, and gives its exit status."""

    def __init__(self, methods: tuple[str, ...]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, ",".join(methods)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, folder: Path, *, kill_after: float | None = None, **order: int | None) -> int:
        """Status as of `subprocess`: -9 for a victim that was killed.

        Args:
            kill_after: seconds.
            order: `event`, to die by its own hand at its so manieth file operation; `limit`, to be
                allowed no file larger than so many bytes.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        stdin.write(json.dumps({"folder": str(folder), **order}).encode() + b"\n")
        stdin.flush()
        victim = int(stdout.readline())
        if kill_after is not None and not select.select([stdout], [], [], kill_after)[0]:
            os.kill(victim, signal.SIGKILL)
        return int(stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def die_at(event: int) -> None:
    """Kill -9 itself just before its so manieth opening, renaming or removal of a file."""
    left = [event]

    def hook(name: str, arguments: tuple) -> None:
        if name in ("open", "os.rename", "os.remove"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def suffer(methods: tuple[str, ...], folder: str, event: int | None, limit: int | None) -> int:
    """The victim's life; its exit status."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if event is not None:
        die_at(event)
    try:
        compute(Store(folder), *methods, checkpoint_every=0.0)
    except StoreError as error:
        assert "finished cells are safe" in str(error), error
        return FULL
    return 0


def main(methods: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        compute(Store(folder), *methods)  # warms up
    for line in sys.stdin:
        order = {"event": None, "limit": None, **json.loads(line)}
        victim = os.fork()
        if victim == 0:
            status = 1
            try:
                status = suffer(methods, **order)
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        print(victim, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]), flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1].split(",")))
