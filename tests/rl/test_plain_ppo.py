"""With one particle, PPO is PPO: step for step against a plain implementation in torch alone."""

from __future__ import annotations

import copy

import pytest
import torch
from corridor import Corridor, Walker
from torch import Tensor

import orderless as ol
from orderless.rl import PPO, PPOSettings
from orderless.rl.keyed import permutation

T, E, EPOCHS, MINIBATCHES, GAMMA, LAMBDA = 24, 5, 3, 4, 0.95, 0.9


class PlainPPO:
    """Schulman et al. 2017 as everybody writes it: one network, lists, loops.

    Chance comes from outside (which actions were drawn, in which order samples are taken), so that
    two implementations can be compared.
    """

    def __init__(self, network: torch.nn.Module, clip_values: bool) -> None:
        self.network, self.clip_values, self.env = network, clip_values, Corridor(E)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        self.env.reset()
        self.running, self.seen = [0.0] * E, []
        self.ended = [False] * E

    def scaled(self, reward: float, e: int) -> float:
        count, total = 1e-4 + len(self.seen), sum(self.seen)
        variance = (1e-4 + sum(g * g for g in self.seen)) / count - (total / count) ** 2
        return max(-10.0, min(10.0, reward / (variance + 1e-8) ** 0.5))

    @torch.no_grad()
    def rollout(self, actions: Tensor) -> dict[str, Tensor]:
        record: dict[str, list[Tensor]] = {
            k: [] for k in ("x", "logp", "v", "r", "end", "stop", "ok")
        }
        for t in range(T):
            x = torch.from_numpy(self.env.observations).double()
            logits, v = self.network(x)
            logp = logits.log_softmax(-1)[range(E), actions[t]]
            _, reward, terminated, truncated, _ = self.env.step(actions[t].numpy())
            ok = [not ended for ended in self.ended]
            for e in range(E):
                if ok[e]:
                    self.running[e] = GAMMA * self.running[e] + reward[e]
            self.seen += [self.running[e] for e in range(E) if ok[e]]
            r = [self.scaled(reward[e], e) if ok[e] else 0.0 for e in range(E)]
            self.ended = (terminated | truncated).tolist()
            self.running = [0.0 if self.ended[e] else self.running[e] for e in range(E)]
            rows = (x, logp, v, r, terminated, terminated | truncated, ok)
            for name, row in zip(record, rows, strict=True):
                record[name].append(torch.as_tensor(row))
        last = self.network(torch.from_numpy(self.env.observations).double())[1]
        record["v"].append(last)
        return {name: torch.stack(rows) for name, rows in record.items()}

    def round(self, actions: Tensor, orders: list[Tensor]) -> dict[str, Tensor]:
        data = self.rollout(actions)
        advantages = torch.zeros(T, E, dtype=torch.float64)
        following = torch.zeros(E, dtype=torch.float64)
        for t in reversed(range(T)):
            going_on = 1.0 - data["end"][t].double()
            delta = data["r"][t] + GAMMA * going_on * data["v"][t + 1] - data["v"][t]
            following = delta + GAMMA * LAMBDA * (1.0 - data["stop"][t].double()) * following
            following = following * data["ok"][t]
            advantages[t] = following
        targets = (advantages + data["v"][:-1]).flatten()
        flat = {name: data[name].flatten(0, 1) for name in ("x", "logp", "ok")}
        for order in orders:
            for index in order.chunk(MINIBATCHES):
                index = index[flat["ok"][index]]  # what is no experience is thrown out
                self.step(flat, actions.flatten(), advantages.flatten(), targets, index)
        return data

    def step(
        self, flat: dict[str, Tensor], actions: Tensor, advantages: Tensor, targets: Tensor, index
    ) -> None:
        logits, v = self.network(flat["x"][index])
        policy = torch.distributions.Categorical(logits=logits)
        ratio = (policy.log_prob(actions[index]) - flat["logp"][index]).exp()
        a = advantages[index]
        a = (a - a.mean()) / (a.std(unbiased=False) + 1e-8)
        loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
        errors = (v - targets[index]) ** 2
        if self.clip_values:
            old = targets[index] - advantages[index]
            clipped = old + (v - old).clamp(-0.2, 0.2)
            errors = torch.max(errors, (clipped - targets[index]) ** 2)
        loss = loss + 0.5 * 0.5 * errors.mean() - 0.01 * policy.entropy().mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
        self.optimizer.step()


@pytest.mark.parametrize("weighted", [False, True], ids=["descent", "filter"])
@pytest.mark.parametrize("clip_values", [True, False])
def test_one_particle_is_standard_ppo(clip_values: bool, weighted: bool) -> None:
    particles = ol.Ensemble(Walker, 1, seed=4).double()
    plain = PlainPPO(copy.deepcopy(particles[0]), clip_values)
    optimizer = torch.optim.Adam(particles.parameters(), lr=1e-2)
    kind = ol.WeightedParticleFilter if weighted else ol.GradientDescent
    settings = PPOSettings(
        steps=T,
        epochs=EPOCHS,
        minibatches=MINIBATCHES,
        discount=GAMMA,
        trace=LAMBDA,
        clip_values=clip_values,
    )
    ppo = PPO(kind(particles, optimizer, max_grad_norm=0.5), Corridor(E), settings, seed=7)
    for number in range(4):
        rollout = ppo.collect()
        orders = [permutation(7, number, k, T * E, torch.device("cpu")) for k in range(EPOCHS)]
        data = plain.round(rollout.actions.clone(), orders)
        # float64, sums in another order
        torch.testing.assert_close(rollout.log_policies[0], data["logp"], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(rollout.values[0], data["v"], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(rollout.rewards, data["r"], atol=1e-9, rtol=1e-9)
        assert torch.equal(rollout.valid, data["ok"])
        info = ppo.update(rollout)
        assert info.importance.item() == 1.0 and info.truncated.item() == 0.0
    for name, tensor in plain.network.state_dict().items():
        ours = particles.state_dict()[name][0]
        torch.testing.assert_close(ours, tensor, atol=1e-8, rtol=1e-8)


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
