"""The tiny benchmark is that of the experiments' own tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
