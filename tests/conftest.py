"""Where the tests find data, how many threads they use, and what they count."""

import os
from collections import Counter
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
# Processes that tests start find this checkout, its tests' helpers and docs.tools, too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
if _DATA.is_dir():
    os.environ.setdefault("ORDERLESS_DATA", str(_DATA))

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # the kernels' own tests run them on the CPU

torch.set_num_threads(1)  # small tensors: a second thread would only wait for the first


def pytest_terminal_summary(terminalreporter):
    """Faults that tests injected and survived, and cases of the fuzz: `record_property`."""
    counted, passed = Counter(), Counter()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, count in report.user_properties:
                    if name.startswith(("fault: ", "fuzz: ")):
                        counted[name] += count
                        passed[name] += count * (outcome == "passed")
    for kind, what in (("fault: ", "faults injected"), ("fuzz: ", "fuzz cases")):
        names = sorted(name for name in counted if name.startswith(kind))
        if names:
            parts = ", ".join(f"{counted[name]:,} {name.removeprefix(kind)}" for name in names)
            all_of, well = sum(counted[n] for n in names), sum(passed[n] for n in names)
            terminalreporter.write_line(f"{what}: {all_of:,} ({parts}); survived: {well:,}")
