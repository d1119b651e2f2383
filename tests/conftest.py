"""Where the tests find data, and how many threads they use."""

import os
from pathlib import Path

import torch

_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
if _DATA.is_dir():
    os.environ.setdefault("ORDERLESS_DATA", str(_DATA))

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # the kernels' own tests run them on the CPU

torch.set_num_threads(1)  # small tensors: a second thread would only wait for the first
