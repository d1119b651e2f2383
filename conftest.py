"""Where the tests find data, how many threads they use, what they count and what they lack."""

import gc
import os
import shutil
import signal
from collections import Counter
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
# Processes that tests start find this checkout, its tests' helpers and docs.tools, too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "src"), str(ROOT / "lab"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

_DATA = Path(__file__).resolve().parents[1] / "shared" / "data"
if _DATA.is_dir():
    os.environ.setdefault("ORDERLESS_DATA", str(_DATA))

# small tensors: a second thread would only wait for the first, here and in processes of tests
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton reads this once, when a conftest below imports it: the tests of kernels run on the CPU
if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"


# a shell without job control starts what runs in the background without Ctrl-C, which tests send
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    if getattr(config.option, "numprocesses", None):
        return  # processes of its own run the tests: this one does without torch
    import torch

    torch.set_num_threads(1)
    # tests kill processes, never the machine: files need not wait for the disk
    os.fsync = lambda descriptor: None


def pytest_collection_finish():
    """What was imported so far stays: the garbage collector need not look through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_draws():
    """A test that draws without a seed draws the same whichever tests ran before it."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def warm_workers(monkeypatch):
    """Worker processes of a run are forked from one that has everything loaded."""
    from tests.processes import warm_context

    monkeypatch.setattr("orderless_lab.runs.launch.get_context", warm_context)


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory):
    """Three CPUs on this machine as a Ray cluster, and the cache folder of its workers."""
    from orderless_lab.runs.ray import import_ray

    ray, cache = import_ray(), tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init("local", num_cpus=3, object_store_memory=2**27, **options)
    yield cache
    ray.shutdown()


@contextmanager
def skipped_without_envpool():
    """Where it is not on the path a test of ProcGen says so; where it is, an error is an error."""
    from orderless_lab.rl.runtime import ProcgenMissing

    try:
        yield
    except ProcgenMissing as missing:
        if find_spec("envpool") is not None:
            raise
        pytest.skip(str(missing))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    with skipped_without_envpool():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with skipped_without_envpool():
        return (yield)


def pytest_terminal_summary(terminalreporter):
    """Faults that tests injected and survived: `record_property`."""
    injected, survived = Counter(), 0
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, count in report.user_properties:
                    if name.startswith("fault: "):
                        injected[name.removeprefix("fault: ")] += count
                        survived += count * (outcome == "passed")
    if injected:
        parts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(injected.items()))
        total = injected.total()
        terminalreporter.write_line(f"faults injected: {total:,} ({parts}); survived: {survived:,}")
