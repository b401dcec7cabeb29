"""A custom network, used as `model: custom_model:SharedTorso`.

Run this file, or name the class on the command line, from this folder:

    rl-training train ppo env_id=CartPole-v1 model=custom_model:SharedTorso n_steps=128 total_timesteps=10000
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rl_training import PPO
from rl_training.algorithms.base import ModelConfig
from rl_training.types import SpaceInfo


class SharedTorso(nn.Module):
    """Policy and value read the same layer-normalised features.

    It is called once with the spaces and the model settings of the config. `forward` takes observations `[B, ...]` and
    returns the policy's parameters `[B, P]` and values `[B]`. For `n` discrete actions, P is n: one logit for each. For
    continuous actions of size `n`, P is 2 n: the means, then the log standard deviations.
    """

    def __init__(self, info: SpaceInfo, model: ModelConfig) -> None:
        super().__init__()
        width = model.sizes_of("policy")[0]
        self.torso = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(info.input_shape), width), nn.LayerNorm(width), nn.SiLU()
        )
        self.action = nn.Linear(width, info.action_size)
        self.value = nn.Linear(width, 1)
        # Unlike in the default network, the spread of continuous actions depends on the observation here.
        self.log_std = nn.Linear(width, info.action_size) if info.action_kind == "continuous" else None

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.torso(obs)
        params = self.action(features)
        if self.log_std is not None:
            params = torch.cat([params, self.log_std(features).clamp(-3.0, 1.0)], dim=-1)
        return params, self.value(features).squeeze(-1)


if __name__ == "__main__":
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        agent = PPO(env_id, model="custom_model:SharedTorso", n_steps=128, hidden_sizes=[32]).learn(4_000)
        print(f"{env_id}: return {agent.evaluate(10).mean:.1f} after {agent.num_timesteps} steps")
