"""A discriminator that is trained to tell a policy's steps from demonstrated ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from rl_training.algorithms.parts.observer import Observer
from rl_training.data.datasets.demonstrations import Occupancy
from rl_training.models.discriminator import Discriminator, action_numbers
from rl_training.models.flat import Learner
from rl_training.types import Array, Metrics, SpaceInfo

_INPUT_CLIP = 10.0  # deviations


def discriminator_loss(expert_logit: Tensor, policy_logit: Tensor) -> Tensor:
    """-E_expert[log D] - E_policy[log(1 - D)] of logits `[B]` (Ho and Ermon 2016, eq. 17, where D is 1 - D)."""
    return softplus(-expert_logit).mean() + softplus(policy_logit).mean()


def gradient_penalty(logits: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """E[(|dl/dx| - 1)^2] for inputs `[B, F]` (Gulrajani et al. 2017, eq. 3, on logits)."""
    inputs = inputs.detach().requires_grad_()
    (slope,) = torch.autograd.grad(logits(inputs).sum(), inputs, create_graph=True)
    norm = (slope.square().sum(dim=-1) + 1e-12).sqrt()  # its own gradient at 0 is then 0, not NaN
    return (norm - 1.0).square().mean()


class TrainedDiscriminator:
    """The discriminator, its optimiser, and the normalization of its inputs.

    Observations are scaled by the statistics of the demonstrations and of the policy's steps: in demonstrations alone
    some columns may hardly vary; scaling would enlarge them until they alone told the two apart.
    """

    def __init__(self, network: Discriminator, info: SpaceInfo, device: torch.device) -> None:
        self.network = network.to(device)
        self.learner = Learner(self.network)
        self.observer = Observer(info, device, normalize="auto", clip=_INPUT_CLIP)
        self._info = info

    def learn(
        self,
        expert: Occupancy,
        policy: Occupancy,
        rng: np.random.Generator,
        *,
        batch_size: int,
        penalty_coef: float,
        learning_rate: float,
    ) -> Metrics:
        """Take one step on equally many transitions of expert and policy; returns metrics from before the step."""
        shown, made = (self._drawn(side, batch_size, rng) for side in (expert, policy))
        expert_logit, policy_logit = self.network.logits(torch.cat([shown, made])).chunk(2)
        share = self.observer.tensor(rng.random((batch_size, 1), dtype=np.float32))
        # Images are interpolated as features: a mixture of two images' pixels would mean nothing.
        penalty = gradient_penalty(self.network.logits, torch.lerp(made, shown, share))
        loss = discriminator_loss(expert_logit, policy_logit)
        self.learner.differentiate(loss + penalty_coef * penalty)
        self.learner.descend(learning_rate)
        with torch.no_grad():
            right = (expert_logit > 0.0).float().mean(), (policy_logit < 0.0).float().mean()
            seen = {
                "discriminator_loss": loss,
                "discriminator_accuracy": (right[0] + right[1]) / 2.0,
                "expert_accuracy": right[0],
                "policy_accuracy": right[1],
                "expert_logit_mean": expert_logit.mean(),
                "policy_logit_mean": policy_logit.mean(),
                "gradient_penalty": penalty,
            }
            return dict(zip(seen, torch.stack(list(seen.values())).tolist(), strict=True))

    def _drawn(self, side: Occupancy, size: int, rng: np.random.Generator) -> Tensor:
        obs, action, over = side.draw(size, rng)
        return self.network.inputs(*self._seen(obs, action), self.observer.tensor(over).float())

    def _seen(self, obs: Array, action: Array) -> tuple[Any, Tensor]:
        numbers = self.observer.tensor(action_numbers(action, self._info))
        return self.observer.tensors(self.observer.scaled(obs)), numbers

    def logits(self, obs: Array, action: Array) -> tuple[Array, Array]:
        """The logits of steps `[N]`, and the logit of a step after the end."""
        with torch.inference_mode():
            inputs = self._seen(obs, action)
            logit = self.network(*inputs, inputs[1].new_zeros(len(obs)))
            return logit.cpu().numpy(), self.network.after_the_end().cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        return {"learner": self.learner.state_dict(), "observer": self.observer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.observer.load_state_dict(state["observer"])
