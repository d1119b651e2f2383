r"""PPO's loss for N particles on the experience of their mixture.

For particle i, with mu the behaviour policy at collection and pi_i,old the particle's own then,

    c = min(pi_i,old(a|s) / mu(a|s), 2)          the importance weight of mu's sample
    r = pi_i(a|s) / pi_i,old(a|s)                the change of the particle's policy since then
    L_i = -E[c min(r A_i, clip(r, 1 - eps, 1 + eps) A_i)]
          + k_V E[(V_i - R_i)^2] / 2 - k_H E[H(pi_i)]

A_i is normalised to mean 0 and variance 1 over the minibatch, R_i = A_i + V_i,old before that. With
`clip_values`, the squared error is the larger of those of V_i and of V_i,old + clip(V_i - V_i,old).
All means are over `valid` transitions. For N = 1, mu is pi_old, c is 1 and this is the loss of
Schulman et al. 2017.

With `weigh_by="policy"` the particles still move by L_i, whose value is a poor measure of how good
a policy is, and are weighted by

    U_i = -E[min(pi_i(a|s) / mu(a|s), 2) A]

with one advantage A shared by all particles, so that a particle gains weight by making good actions
likely and not by having a value function with small errors.
"""

import torch
from torch import Tensor

from orderless.ensemble import Ensemble

from .networks import policy_and_values
from .settings import PPOSettings

# Recorded per particle: three terms that add up to the loss, then diagnostics.
TERMS = ("policy", "value", "entropy")
RECORDED = (*TERMS, "importance", "truncated", "clipped", "divergence", "energy")


class Surrogate:
    """`loss(*minibatch) -> [N]`, as `filter.compile` takes it.

    A minibatch is `(observations [B, ...], actions [B], log_old [N, B], log_behaviour [B],
    advantages [N, B], targets [N, B], shared [B], valid [B], counts [])`; `shared` is the advantage
    common to all particles, and `counts` is 1 if this minibatch counts for U, else 0.

    With `weigh_by="policy"` the result is `(U, L)`: U for the weights, and beside it the loss L
    whose gradient the filter must add as a penalty.

    What belongs to a particle `[N, B]` is read from row `lineage[i]`, if particle i may have become
    a copy of another since it was collected.

    Every evaluation adds to `sums` `[len(RECORDED), N]` and `evaluations`, in place and on the
    device, so that a recorded graph can.
    """

    def __init__(
        self, particles: Ensemble, settings: PPOSettings, lineage: Tensor | None = None
    ) -> None:
        self.particles = particles
        self.settings = settings
        self.lineage = lineage
        shape = len(RECORDED), particles.n
        device = particles.device
        self.sums = torch.zeros(shape, dtype=torch.float64, device=device)
        self.evaluations = torch.zeros((), dtype=torch.float64, device=device)

    def clear(self) -> None:
        self.sums.zero_()
        self.evaluations.zero_()

    def means(self) -> dict[str, Tensor]:
        """Means over evaluations since `clear`, each `[N]`."""
        return dict(zip(RECORDED, self.sums / self.evaluations.clamp(min=1), strict=True))

    def __call__(
        self,
        observations: Tensor,
        actions: Tensor,
        log_old: Tensor,
        log_behaviour: Tensor,
        advantages: Tensor,
        targets: Tensor,
        shared: Tensor,
        valid: Tensor,
        counts: Tensor,
    ) -> Tensor | tuple[Tensor, Tensor]:
        s = self.settings
        if self.lineage is not None:  # which a step may change between its two evaluations
            log_old = log_old[self.lineage]
            advantages = advantages[self.lineage]
            targets = targets[self.lineage]
        logits, values = policy_and_values(self.particles(observations))
        log_policies = logits.log_softmax(-1)  # [N, B, A]
        chosen = actions.expand(len(log_policies), -1).unsqueeze(-1)
        log_new = log_policies.gather(-1, chosen).squeeze(-1)

        whole = (log_old - log_behaviour).exp()
        importance = whole.clamp(max=s.importance_limit)
        log_ratio = log_new - log_old
        ratio = log_ratio.exp()
        bounded = ratio.clamp(1 - s.clip, 1 + s.clip)
        advantage = normalized(advantages, valid)
        gain = importance * torch.minimum(ratio * advantage, bounded * advantage)
        policy = -mean(gain, valid)

        errors = (values - targets).square()
        if s.clip_values:
            old = targets - advantages
            near = old + (values - old).clamp(-s.clip, s.clip)
            errors = torch.maximum(errors, (near - targets).square())
        value = s.value_coefficient * 0.5 * mean(errors, valid)
        # an action that a network rules out by a logit of -inf adds 0, not 0 * -inf
        bounded_below = log_policies.clamp(min=torch.finfo(log_policies.dtype).min)
        randomness = -(log_policies.exp() * bounded_below).sum(-1)
        entropy = -s.entropy_coefficient * mean(randomness, valid)

        with torch.no_grad():
            now = (log_new - log_behaviour).exp().clamp(max=s.importance_limit)
            energy = -counts * mean(now * normalized(shared, valid), valid)
            samples = (
                importance,
                (whole > s.importance_limit).to(ratio.dtype),
                (bounded != ratio).to(ratio.dtype),
                ratio - 1 - log_ratio,
            )
            diagnostics = [mean(sample, valid) for sample in samples]
            self.sums.add_(torch.stack([policy, value, entropy, *diagnostics, energy]).double())
            self.evaluations.add_(1)
        loss = policy + value + entropy
        if s.weigh_by == "loss":
            return loss
        # 0 L has a gradient of 0, and is NaN where L is not finite: such a particle dies
        return energy + 0.0 * loss, loss


def mean(values: Tensor, valid: Tensor) -> Tensor:
    """The mean over valid samples: `[..., B]` and `[B]` -> `[...]`."""
    return torch.where(valid, values, 0.0).sum(-1) / valid.sum().clamp(min=1)


def normalized(advantages: Tensor, valid: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the valid samples of the last axis."""
    centred = advantages - mean(advantages, valid).unsqueeze(-1)
    deviation = mean(centred.square(), valid).sqrt().unsqueeze(-1)
    return centred / (deviation + 1e-8)
