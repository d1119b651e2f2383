"""Processes that begin with everything loaded: forked by one that has imported it once.

So that a test of what processes do does not pay seconds of imports for each of them. That those
which import everything themselves do the same is tested in
`lab/tests/system/faults/test_killed.py`.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext

# torch loads its compiler on the first optimizer step
PRELOAD = [
    "torch.distributed",
    "torch._dynamo",
    "orderless_lab.runs.grid",
]


def warm_context(method: str = "forkserver") -> BaseContext:
    """Takes the place of `multiprocessing.get_context`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context
