"""Step for step against a plain implementation in torch alone.

With one particle PPO is PPO; with several, each is a plain learner on the mixture's experience, and
its weight is the product of what its losses say.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from lab.tests.toys import Corridor, Walker
from torch import Tensor

import orderless as ol
from orderless_lab.rl import PPO, PPOSettings
from orderless_lab.rl.keyed import permutation

T, E, EPOCHS, MINIBATCHES, GAMMA, LAMBDA = 24, 5, 3, 4, 0.95, 0.9


def normalized(values: Tensor) -> Tensor:
    return (values - values.mean()) / (values.std(unbiased=False) + 1e-8)


class PlainPPO:
    """Schulman et al. 2017 as everybody writes it: one network, lists, loops.

    Chance comes from outside (which actions were drawn, in which order samples are taken), so that
    two implementations can be compared. Where the actions are another policy's, of log-probability
    `behaviour`, each sample counts by how much likelier this network was to choose it, twice at
    most. `log_weight` sums -(L_old + L_new) / 2 over all steps; by policy, those of the first epoch
    and what the policy itself is worth, by an advantage that all learners share. `shares` has how
    much a sample counts and whether that was cut, for every minibatch.
    """

    def __init__(self, network: torch.nn.Module, clip_values: bool, by_policy: bool) -> None:
        self.network = network
        self.clip_values = clip_values
        self.by_policy = by_policy
        self.shares: list[tuple[float, float]] = []
        self.env = Corridor(E, limit=7)
        self.env.reset()
        self.optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        self.running = [0.0] * E
        self.seen: list[float] = []  # discounted returns
        self.ended = [False] * E
        self.log_weight = 0.0

    def scaled(self, reward: float) -> float:
        count = 1e-4 + len(self.seen)
        variance = (1e-4 + sum(g * g for g in self.seen)) / count - (sum(self.seen) / count) ** 2
        return max(-10.0, min(10.0, reward / (variance + 1e-8) ** 0.5))

    @torch.no_grad()
    def rollout(self, actions: Tensor) -> dict[str, Tensor]:
        steps = []
        for t in range(T):
            x = torch.from_numpy(self.env.observations).double()
            logits, v = self.network(x)
            _, reward, terminated, truncated, _ = self.env.step(actions[t].numpy())
            playing = [e for e in range(E) if not self.ended[e]]
            for e in playing:
                self.running[e] = GAMMA * self.running[e] + reward[e]
            self.seen += [self.running[e] for e in playing]
            scaled = [self.scaled(r) if e in playing else 0.0 for e, r in enumerate(reward)]
            step = {
                "x": x,
                "logp": logits.log_softmax(-1)[range(E), actions[t]],
                "v": v,
                "r": torch.tensor(scaled, dtype=torch.float64),
                "terminated": torch.from_numpy(terminated),
                "ended": torch.from_numpy(terminated | truncated),
                "ok": ~torch.tensor(self.ended),
            }
            steps.append(step)
            self.ended = step["ended"].tolist()
            self.running = [0.0 if self.ended[e] else self.running[e] for e in range(E)]
        data = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}
        last = self.network(torch.from_numpy(self.env.observations).double())[1]
        next_v = torch.cat([data["v"][1:], last.unsqueeze(0)])
        following = torch.zeros(E, dtype=torch.float64)
        advantages = []
        for t in reversed(range(T)):
            future = torch.where(data["terminated"][t], 0.0, next_v[t])
            delta = data["r"][t] + GAMMA * future - data["v"][t]
            carried = torch.where(data["ended"][t], 0.0, following)
            following = torch.where(data["ok"][t], delta + GAMMA * LAMBDA * carried, 0.0)
            advantages.insert(0, following)
        advantage = torch.stack(advantages)
        return {**data, "advantage": advantage, "target": advantage + data["v"]}

    def learn(self, samples: dict[str, Tensor], orders: list[Tensor]) -> None:
        self.shares = []
        for epoch, order in enumerate(orders):
            for index in order.chunk(MINIBATCHES):
                index = index[samples["ok"].flatten()[index]]  # no experience is thrown out
                batch = {name: rows.flatten(0, 1)[index] for name, rows in samples.items()}
                self.step(batch, counts=epoch == 0)

    def step(self, batch: dict[str, Tensor], counts: bool) -> None:
        before = self.loss(batch)
        energy = self.energy(batch)
        self.optimizer.zero_grad()
        before.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
        self.optimizer.step()
        with torch.no_grad():
            if not self.by_policy:
                self.log_weight -= float(before + self.loss(batch)) / 2
            elif counts:
                self.log_weight -= float(energy + self.energy(batch)) / 2

    def energy(self, batch: dict[str, Tensor]) -> Tensor:
        """The policy chooses what turned out well more often than the one that acted."""
        policy = torch.distributions.Categorical(logits=self.network(batch["x"])[0])
        share = policy.log_prob(batch["a"]).exp() / batch["mu"].exp()
        return -(share.clamp(max=2.0) * normalized(batch["shared"])).mean()

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits, v = self.network(batch["x"])
        policy = torch.distributions.Categorical(logits=logits)
        ratio = (policy.log_prob(batch["a"]) - batch["logp"]).exp()
        whole = batch["logp"].exp() / batch["mu"].exp()
        share = whole.clamp(max=2.0)
        self.shares.append((float(share.mean()), float((whole > 2.0).double().mean())))
        a = normalized(batch["advantage"])
        loss = -(share * torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)).mean()
        errors = (v - batch["target"]) ** 2
        if self.clip_values:
            old = batch["target"] - batch["advantage"]
            clipped = old + (v - old).clamp(-0.2, 0.2)
            errors = torch.max(errors, (clipped - batch["target"]) ** 2)
        return loss + 0.5 * 0.5 * errors.mean() - 0.01 * policy.entropy().mean()


def sample_orders(number: int) -> list[Tensor]:
    return [permutation(7, number, k, T * E, torch.device("cpu")) for k in range(EPOCHS)]


def assert_near(ours: Tensor, plain: Tensor) -> None:
    """float64, sums in another order."""
    torch.testing.assert_close(ours, plain, atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize(
    ("kind", "n", "clip_values", "weigh_by"),
    [
        (ol.GradientDescent, 1, True, "loss"),  # standard PPO
        (ol.WeightedParticleFilter, 1, False, "loss"),
        pytest.param(ol.WeightedParticleFilter, 3, True, "loss", marks=pytest.mark.slow),
        pytest.param(ol.WeightedParticleFilter, 3, False, "policy", marks=pytest.mark.slow),
    ],
)
def test_particles_are_plain_learners_on_the_mixtures_experience(
    kind: Any, n: int, clip_values: bool, weigh_by: Any
) -> None:
    particles = ol.Ensemble(Walker, n, seed=4).double()
    by_policy = weigh_by == "policy"
    plain = [PlainPPO(copy.deepcopy(particles[i]), clip_values, by_policy) for i in range(n)]
    optimizer = torch.optim.Adam(particles.parameters(), lr=1e-2)
    settings = PPOSettings(
        steps=T,
        epochs=EPOCHS,
        minibatches=MINIBATCHES,
        discount=GAMMA,
        trace=LAMBDA,
        clip_values=clip_values,
        weigh_by=weigh_by,
    )
    ppo = PPO(kind(particles, optimizer, max_grad_norm=0.5), Corridor(E, limit=7), settings, seed=7)
    truncated = 0.0
    weights = torch.full((n,), 1 / n, dtype=torch.float64)
    for number in range(8):
        rollout = ppo.collect()
        data = [each.rollout(rollout.actions) for each in plain]
        mixture = sum(w * each["logp"].exp() for w, each in zip(weights, data, strict=True))
        shared = sum(w * each["advantage"] for w, each in zip(weights, data, strict=True))
        assert_near(rollout.log_behaviour.exp(), mixture)
        assert torch.equal(rollout.valid, data[0]["ok"])
        advantages = rollout.advantages(GAMMA, LAMBDA)
        for i, (each, seen) in enumerate(zip(plain, data, strict=True)):
            assert_near(rollout.log_policies[i], seen["logp"])
            assert_near(rollout.values[i, :-1], seen["v"])
            assert_near(rollout.rewards, seen["r"])
            assert_near(advantages[i], seen["advantage"])
            chosen = {"a": rollout.actions, "mu": mixture.log(), "shared": shared}
            each.learn({**seen, **chosen}, sample_orders(number))
        info = ppo.update(rollout)
        means = torch.tensor([each.shares for each in plain], dtype=torch.float64).mean(1)
        assert_near(torch.stack([info.importance, info.truncated], 1), means)
        truncated += float(info.truncated.max())
        log_weights = [each.log_weight for each in plain]
        weights = torch.tensor(log_weights, dtype=torch.float64).softmax(0)
    assert (truncated > 0) == (n > 1)  # policies come apart, so that the limit of c is met
    assert weights.max() > 0.4  # not the uniform ones of the beginning
    assert_near(ppo.filter.log_weights.exp(), weights)
    for i, each in enumerate(plain):
        for name, tensor in each.network.state_dict().items():
            assert_near(particles.state_dict()[name][i], tensor)


def test_importance_and_ratio_are_one_before_the_first_step() -> None:
    particles = ol.Ensemble(Walker, 1, seed=4)
    filter = ol.GradientDescent(particles, torch.optim.SGD(particles.parameters(), lr=0.0))
    settings = PPOSettings(steps=16, epochs=1, minibatches=1)
    ppo = PPO(filter, Corridor(4), settings)
    rollout = ppo.collect()
    assert torch.equal(rollout.log_policies[0], rollout.log_behaviour)  # c = 1, to the bit
    info = ppo.update(rollout)
    assert info.importance.item() == 1.0 and info.clipped.item() == 0.0
    # r = 1 but for the rounding of a larger batch; a normalised advantage has mean 0
    assert abs(info.divergence.item()) < 1e-12 and abs(info.policy.item()) < 1e-6
