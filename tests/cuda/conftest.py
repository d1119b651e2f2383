"""Most of these tests need a CUDA device (`make test-cuda`)."""

from pathlib import Path

import torch

WITHOUT_A_GPU = {"test_kernels.py", "test_recordings.py"}  # Triton's interpreter runs the kernels
NEED_A_GPU = {path.name for path in Path(__file__).parent.glob("test_*.py")} - WITHOUT_A_GPU

collect_ignore_glob = [] if torch.cuda.is_available() else sorted(NEED_A_GPU)
