"""The core needs torch, numpy and safetensors; nothing of any extra, nor Triton."""

import subprocess
import sys

import pytest

EXTRAS = ["typer", "rich", "mlxtend", "matplotlib", "sklearn", "scipy"]
EXTRAS += ["envpool", "PyQt5", "ray", "triton"]

LEARN = """
import torch, torch.nn.functional as F, orderless as ol
from orderless_lab import experiments, methods, report, rl, scenarios
for room in (experiments, methods, report, rl, scenarios):
    assert all(hasattr(room, name) for name in room.__all__)
particles = ol.Ensemble(lambda: torch.nn.Linear(3, 2), n=4, seed=0)
filter = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
x, y, loss = torch.ones(5, 3), torch.zeros(5, dtype=torch.long), ol.per_particle(F.cross_entropy)
info = filter.compile(lambda x, y: loss(particles(x), y))(x, y)
assert (info.loss_after < info.loss_before).all() and filter.predict(x).shape == (5, 2)
ol.save("state.st", filter.state_dict())
filter.load_state_dict(ol.load("state.st"))
try:
    ol.ExactClassifier
except ImportError as error:
    assert "pip install" in str(error)
else:
    raise AssertionError("scikit-learn was not out of reach")
"""


@pytest.mark.slow
def test_the_core_works_where_no_extra_is_installed(tmp_path):
    hide = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))"  # None: cannot be imported
    command = [sys.executable, "-c", hide + LEARN]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
