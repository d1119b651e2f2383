"""Step for step against a plain implementation in torch alone.

With one particle PPO is PPO; with several, each is a plain learner on the mixture's experience, and
its weight is the product of what its losses say.
"""

from __future__ import annotations

import copy

import pytest
import torch
from lab.tests.rl.toys import Corridor, Walker
from torch import Tensor

import orderless as ol
from orderless_lab.rl import PPO, PPOSettings
from orderless_lab.rl.keyed import permutation

T, E, EPOCHS, MINIBATCHES, GAMMA, LAMBDA = 24, 5, 3, 4, 0.95, 0.9


class PlainPPO:
    """Schulman et al. 2017 as everybody writes it: one network, lists, loops.

    Chance comes from outside (which actions were drawn, in which order samples are taken), so that
    two implementations can be compared. Where the actions are another policy's, of log-probability
    `behaviour`, each sample counts by how much likelier this network was to choose it, twice at
    most. `log_weight` sums -(L_old + L_new) / 2 over all steps.
    """

    def __init__(self, network: torch.nn.Module, clip_values: bool) -> None:
        self.network = network
        self.clip_values = clip_values
        self.env = Corridor(E)
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
        return {**data, "next_v": torch.cat([data["v"][1:], last.unsqueeze(0)])}

    def learn(
        self, data: dict[str, Tensor], actions: Tensor, behaviour: Tensor, orders: list[Tensor]
    ) -> None:
        following = torch.zeros(E, dtype=torch.float64)
        advantages = []
        for t in reversed(range(T)):
            future = torch.where(data["terminated"][t], 0.0, data["next_v"][t])
            delta = data["r"][t] + GAMMA * future - data["v"][t]
            carried = torch.where(data["ended"][t], 0.0, following)
            following = torch.where(data["ok"][t], delta + GAMMA * LAMBDA * carried, 0.0)
            advantages.insert(0, following)
        advantage = torch.stack(advantages)
        samples = {**data, "a": actions, "mu": behaviour, "advantage": advantage}
        samples["target"] = advantage + data["v"]
        for order in orders:
            for index in order.chunk(MINIBATCHES):
                index = index[data["ok"].flatten()[index]]  # what is no experience is thrown out
                self.step({name: rows.flatten(0, 1)[index] for name, rows in samples.items()})

    def step(self, batch: dict[str, Tensor]) -> None:
        before = self.loss(batch)
        self.optimizer.zero_grad()
        before.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
        self.optimizer.step()
        with torch.no_grad():
            self.log_weight -= float(before + self.loss(batch)) / 2

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits, v = self.network(batch["x"])
        policy = torch.distributions.Categorical(logits=logits)
        ratio = (policy.log_prob(batch["a"]) - batch["logp"]).exp()
        share = (batch["logp"].exp() / batch["mu"].exp()).clamp(max=2.0)
        a = batch["advantage"]
        a = (a - a.mean()) / (a.std(unbiased=False) + 1e-8)
        loss = -(share * torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)).mean()
        errors = (v - batch["target"]) ** 2
        if self.clip_values:
            old = batch["target"] - batch["advantage"]
            clipped = old + (v - old).clamp(-0.2, 0.2)
            errors = torch.max(errors, (clipped - batch["target"]) ** 2)
        return loss + 0.5 * 0.5 * errors.mean() - 0.01 * policy.entropy().mean()


def make_settings(**changes: bool) -> PPOSettings:
    numbers = {"steps": T, "epochs": EPOCHS, "minibatches": MINIBATCHES}
    return PPOSettings(**numbers, discount=GAMMA, trace=LAMBDA, **changes)  # type: ignore[arg-type]


def weights_of(learners: list[PlainPPO]) -> Tensor:
    return torch.tensor([each.log_weight for each in learners], dtype=torch.float64).softmax(0)


def sample_orders(number: int) -> list[Tensor]:
    return [permutation(7, number, k, T * E, torch.device("cpu")) for k in range(EPOCHS)]


@pytest.mark.parametrize(("clip_values", "weighted"), [(True, False), (False, True)])
def test_one_particle_is_standard_ppo(clip_values: bool, weighted: bool) -> None:
    particles = ol.Ensemble(Walker, 1, seed=4).double()
    plain = PlainPPO(copy.deepcopy(particles[0]), clip_values)
    optimizer = torch.optim.Adam(particles.parameters(), lr=1e-2)
    kind = ol.WeightedParticleFilter if weighted else ol.GradientDescent
    settings = make_settings(clip_values=clip_values)
    ppo = PPO(kind(particles, optimizer, max_grad_norm=0.5), Corridor(E), settings, seed=7)
    for number in range(4):
        rollout = ppo.collect()
        data = plain.rollout(rollout.actions)
        # float64, sums in another order
        torch.testing.assert_close(rollout.log_policies[0], data["logp"], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(rollout.values[0, :-1], data["v"], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(rollout.rewards, data["r"], atol=1e-9, rtol=1e-9)
        assert torch.equal(rollout.valid, data["ok"])
        plain.learn(data, rollout.actions, data["logp"], sample_orders(number))
        info = ppo.update(rollout)
        assert info.importance.item() == 1.0 and info.truncated.item() == 0.0
    for name, tensor in plain.network.state_dict().items():
        ours = particles.state_dict()[name][0]
        torch.testing.assert_close(ours, tensor, atol=1e-8, rtol=1e-8)


@pytest.mark.slow
def test_several_particles_are_plain_learners_on_the_mixtures_experience() -> None:
    particles = ol.Ensemble(Walker, 3, seed=4).double()
    plain = [PlainPPO(copy.deepcopy(particles[i]), clip_values=True) for i in range(3)]
    optimizer = torch.optim.Adam(particles.parameters(), lr=1e-2)
    filter = ol.WeightedParticleFilter(particles, optimizer, max_grad_norm=0.5)
    ppo = PPO(filter, Corridor(E), make_settings(), seed=7)
    truncated = 0.0
    for number in range(8):
        rollout = ppo.collect()
        weights = weights_of(plain)
        data = [each.rollout(rollout.actions) for each in plain]
        mixture = sum(w * each["logp"].exp() for w, each in zip(weights, data, strict=True))
        torch.testing.assert_close(rollout.log_behaviour.exp(), mixture, atol=1e-9, rtol=1e-8)
        for each, seen in zip(plain, data, strict=True):
            each.learn(seen, rollout.actions, mixture.log(), sample_orders(number))
        truncated += float(ppo.update(rollout).truncated.max())
    assert truncated > 0  # policies have come apart, so that the limit of c was met
    weights = weights_of(plain)
    torch.testing.assert_close(filter.log_weights.exp(), weights, atol=1e-8, rtol=1e-7)
    assert weights.max() > 0.4  # and they are not the uniform ones of the beginning
    for i, each in enumerate(plain):
        for name, tensor in each.network.state_dict().items():
            ours = particles.state_dict()[name][i]
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
