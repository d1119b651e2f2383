"""N networks trained side by side, all counting the same: the paper's "averaging particles"."""

from __future__ import annotations

from .gradient import GradientFilter


class AveragingParticles(GradientFilter):
    """A deep ensemble: gradient steps, uniform weights over the particles that are alive.

    `log_evidence` stays 0: nothing is weighed, so nothing is evidence.
    """
