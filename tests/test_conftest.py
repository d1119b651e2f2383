"""Tests of ProcGen say where it is not installed; other errors of theirs stay errors."""

import conftest
import pytest

from orderless_lab.rl.runtime import ProcgenMissing


@pytest.mark.parametrize(("there", "outcome"), [(None, "skip"), ("a spec", "fail")])
def test_without_envpool_a_test_of_procgen_is_skipped_with_the_reason(there, outcome, monkeypatch):
    monkeypatch.setattr(conftest, "find_spec", lambda name: there)
    kind = pytest.skip.Exception if outcome == "skip" else ProcgenMissing
    with pytest.raises(kind, match="needs the package envpool"), conftest.skipped_without_envpool():
        raise ProcgenMissing("ProcGen needs the package envpool, which is not installed")
