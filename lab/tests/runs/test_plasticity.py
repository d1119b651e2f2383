"""Plasticity against hand-made activations and singular values."""

import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats

from orderless_lab import plasticity


def test_dormant_units_are_those_active_on_less_than_one_percent():
    activations = np.zeros((200, 4))
    activations[:, 1] = 1.0  # always active
    activations[0, 2] = 5.0  # on 0.5 % of the samples
    activations[:2, 3] = 5.0  # on exactly 1 %
    assert plasticity.dormant_share(activations) == 0.5


def test_effective_rank_of_orthonormal_columns_is_their_number():
    columns = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 8)))[0]
    assert plasticity.effective_rank(columns) == pytest.approx(8)
    assert plasticity.effective_rank(columns[:, :1] @ np.ones((1, 5))) == pytest.approx(1)
    assert plasticity.effective_rank(np.zeros((3, 2))) == 0.0
    # Singular values 3 and 1: shares 3/4 and 1/4.
    expected = np.exp(scipy.stats.entropy([0.75, 0.25]))
    assert plasticity.effective_rank(np.diag([3.0, 1.0])) == pytest.approx(expected)


@pytest.mark.slow
def test_the_effective_rank_of_a_cell_does_not_depend_on_the_number_of_cores():
    """numpy's own threads are as many as the environment says, and change the last digits."""
    code = (
        "import numpy as np\n"
        "from orderless.ensemble.device import one_thread\n"
        "from orderless_lab.plasticity import effective_rank\n"
        "draw = np.random.default_rng(0).normal\n"
        "with one_thread():\n"
        "    print([effective_rank(draw(size=size)) for size in [(900, 300), (400, 2000)]])\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(said) == 1, said
