"""PPO of one network in stock PyTorch, in one file: the comparison in `benchmarks/ppo.py`.

It follows CleanRL's single-file PPO for ProcGen: one vector environment, a rollout in tensors on
the GPU, advantages in a loop over its steps, epochs of shuffled minibatches, Adam. For speed it
uses `torch.compile` for acting and for the loss with its gradients, and bfloat16 under autocast
with channels-last images.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orderless_lab.rl.procgen import ProcgenLevels
from orderless_lab.rl.rollout import RewardScaler
from orderless_lab.rl.settings import PPOSettings


class PlainPPO:
    """`collect` and `update`, round by round, with the settings of `orderless_lab.rl.PPO`."""

    def __init__(self, network: nn.Module, env: ProcgenLevels, settings: PPOSettings) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.to(self.device, memory_format=torch.channels_last)
        fused = self.device.type == "cuda"
        self.optimizer = torch.optim.Adam(network.parameters(), lr=5e-4, eps=1e-5, fused=fused)
        self.env, self.settings, self.steps = env, settings, 0
        self.scaler = RewardScaler(env.n_envs, settings.discount, settings.reward_limit)
        self.act = torch.compile(self._act, mode="reduce-overhead")
        self.loss = torch.compile(self._loss, mode="default")
        shape = (settings.steps, env.n_envs)
        frames = env.reset()[0]
        room = (*shape, *frames.shape[1:])
        self.frames = torch.zeros(room, dtype=torch.uint8, device=self.device)
        self.actions = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self.logs, self.values, self.rewards = torch.zeros((3, *shape), device=self.device)
        self.ended, self.valid = torch.zeros((2, *shape), dtype=torch.bool, device=self.device)

    def _outputs(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        images = frames.to(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16):
            logits, values = self.network(images)
        return logits.float().log_softmax(-1), values.float()

    def _act(self, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logs, values = self._outputs(frames)
        noise = -torch.empty_like(logs).exponential_().log()
        actions = (logs + noise).argmax(-1)
        return actions, logs.gather(-1, actions.unsqueeze(-1)).squeeze(-1), values

    @torch.no_grad()
    def collect(self) -> None:
        env = self.env
        for t in range(self.settings.steps):
            first = env.first.copy()
            self.frames[t] = torch.from_numpy(env.observations).to(self.device)
            actions, logs, values = self.act(self.frames[t])
            self.actions[t], self.logs[t], self.values[t] = actions, logs, values
            _, rewards, terminated, truncated, info = env.step(actions.cpu().numpy())
            scaled = self.scaler(rewards, first, info["valid"])
            self.rewards[t] = torch.from_numpy(scaled).to(self.device)
            self.ended[t] = torch.from_numpy(terminated | truncated).to(self.device)
            self.valid[t] = torch.from_numpy(info["valid"]).to(self.device)
            self.steps += env.n_envs
        self.last = self.act(torch.from_numpy(env.observations).to(self.device))[2].clone()

    @torch.no_grad()
    def _advantages(self) -> Tensor:
        s, found, after, ahead = self.settings, [], self.last, torch.zeros_like(self.last)
        for t in reversed(range(s.steps)):
            goes_on = (~self.ended[t]).float()
            delta = self.rewards[t] + s.discount * goes_on * after - self.values[t]
            ahead = delta + s.discount * s.trace * goes_on * ahead
            found.append(ahead)
            after = self.values[t]
        return torch.stack(found[::-1])

    def _loss(
        self, frames: Tensor, actions: Tensor, old: Tensor, gains: Tensor, values: Tensor,
        valid: Tensor,
    ) -> Tensor:  # fmt: skip
        s = self.settings
        logs, now = self._outputs(frames)
        ratio = (logs.gather(-1, actions.unsqueeze(-1)).squeeze(-1) - old).exp()
        share = valid.float() / valid.sum()
        centred = gains - (gains * share).sum()
        scaled = centred / ((centred.square() * share).sum().sqrt() + 1e-8)
        clipped = ratio.clamp(1 - s.clip, 1 + s.clip)
        policy = -torch.minimum(ratio * scaled, clipped * scaled)
        near = values + (now - values).clamp(-s.clip, s.clip)
        target = gains + values
        errors = torch.maximum((now - target).square(), (near - target).square())
        entropy = -(logs.exp() * logs).sum(-1)
        each = policy + 0.5 * s.value_coefficient * errors - s.entropy_coefficient * entropy
        return (each * share).sum()

    def update(self) -> None:
        gains = self._advantages()
        tensors = self.frames, self.actions, self.logs, gains, self.values, self.valid
        flat = [tensor.flatten(0, 1) for tensor in tensors]
        for _ in range(self.settings.epochs):
            order = torch.randperm(len(flat[1]), device=self.device)
            for index in order.chunk(self.settings.minibatches):
                self.optimizer.zero_grad(set_to_none=True)
                self.loss(*(tensor[index] for tensor in flat)).backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
                self.optimizer.step()
