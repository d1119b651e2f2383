"""These tests need a CUDA device: `make test-cuda` on a machine that has one."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
