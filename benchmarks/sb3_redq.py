"""REDQ as a user of Stable-Baselines3 would write it: its SAC with another `train`.

Environments, replay, networks, optimisers and the loop around them are the library's; the critics are modules that are
called one after the other. It is a separate file, since the library may not be installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.utils import polyak_update
from torch.nn import functional

SUBSET = 2  # critics that a target uses


class REDQ(SAC):  # type: ignore[misc]
    """Every gradient step updates all critics and their target networks, the last one the actor too."""

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer, self.ent_coef_optimizer])
        losses = []
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size)
            losses.append(self._improve_critics(batch))
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
        self._improve_actor(batch)
        self._n_updates += gradient_steps
        self.logger.record("train/critic_loss", np.mean(losses))

    def _improve_critics(self, batch: Any) -> float:
        with torch.no_grad():
            action, log_prob = self.actor.action_log_prob(batch.next_observations)
            critic = self.critic_target
            features = critic.extract_features(batch.next_observations, critic.features_extractor)
            inputs = torch.cat([features, action], dim=1)
            chosen = np.random.choice(len(critic.q_networks), SUBSET, replace=False)
            values = torch.cat([critic.q_networks[index](inputs) for index in chosen], dim=1)
            value = values.min(dim=1, keepdim=True).values - self.log_ent_coef.exp() * log_prob.reshape(-1, 1)
            target = batch.rewards + (1 - batch.dones) * self.gamma * value
        guesses = self.critic(batch.observations, batch.actions)
        loss: Any = 0.5 * sum(functional.mse_loss(guess, target) for guess in guesses)
        self._descend(self.critic.optimizer, loss)
        return float(loss.item())

    def _improve_actor(self, batch: Any) -> None:
        """Update the actor with the mean of all critics, not their minimum; then the entropy coefficient."""
        action, log_prob = self.actor.action_log_prob(batch.observations)
        value = torch.cat(self.critic(batch.observations, action), dim=1).mean(dim=1)
        self._descend(self.actor.optimizer, (self.log_ent_coef.exp().detach() * log_prob - value).mean())
        self._descend(self.ent_coef_optimizer, -(self.log_ent_coef * (log_prob.detach() + self.target_entropy)).mean())

    @staticmethod
    def _descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
