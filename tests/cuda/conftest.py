"""These tests need a CUDA device, `make test-cuda`; those of the kernels run on the CPU as well."""

from pathlib import Path

import torch

INTERPRETED = "test_kernels.py"  # Triton's interpreter runs the kernels
NEED_A_GPU = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {INTERPRETED}

collect_ignore_glob = [] if torch.cuda.is_available() else sorted(NEED_A_GPU)
