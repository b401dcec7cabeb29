"""ScaleZero (arXiv:2509.07945) on UniZero (arXiv:2406.10667): one transformer world model that plans in several tasks.

Losses along windows of real steps. The transformer reads a window once, with the true observation at every step
(teacher forcing), and everything it says there is compared with what was seen or searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import EncodedModelConfig, dense_weights, setting
from rl_training.algorithms.gumbel_muzero import GumbelSearchConfig
from rl_training.algorithms.layers import ACTIVATION_HELP, Activation, LayerSizes, NetworkNames, widths_help
from rl_training.algorithms.muzero import MuZeroConfig, divergence
from rl_training.algorithms.parts.model_inference import support_of
from rl_training.algorithms.parts.task_windows import Heads, TaskGoals
from rl_training.models.adapters import AdapterShape
from rl_training.models.experts import Routing, balance_loss
from rl_training.models.scalezero import LatentNorm, WorldShape
from rl_training.models.transformer import TransformerShape
from rl_training.models.trunk import EncoderShape
from rl_training.types import SpaceInfo

_NETWORKS: NetworkNames = {"representation": ()}


class ScaleZeroModelConfig(EncodedModelConfig):
    """A transformer that all tasks share, and an encoder and heads for each."""

    hidden_sizes: LayerSizes = setting((64,), widths_help(_NETWORKS), probe=(8,))
    activation: Activation = setting("silu", ACTIVATION_HELP, probe="tanh")
    width: int = setting(64, "Size of tokens and latents; a multiple of `heads` and of `latent_group`.", ge=1, probe=16)
    layers: int = setting(2, "Layers of the transformer.", ge=1, probe=1)
    heads: int = setting(2, "Attention heads of a layer.", ge=1, probe=1)
    context_length: int = setting(4, "Steps that a token sees, its own included.", ge=1, probe=1)
    expert_size: int = setting(128, "Hidden width of every expert.", ge=1, probe=8)
    experts: int = setting(
        4, "Experts that the router of a layer chooses from, besides the shared one; 0: a dense layer.", ge=0, probe=0
    )
    latent_norm: LatentNorm = setting(
        "simnorm", "Latents are distributions in groups, or normalised to mean 0 and variance 1.", probe="layer_norm"
    )
    latent_group: int = setting(8, "Size of such a group.", ge=2, live_when={"latent_norm": "simnorm"}, probe=4)
    adapter_rank: int = setting(8, "Rank of the adapters that a stage adds.", ge=1, live_when={"stages": 2}, probe=1)
    adapter_alpha: float = setting(
        8.0, "Adapters are multiplied by this over their rank.", gt=0.0, static=True, live_when={"stages": 2}
    )
    value_bins: int = setting(51, "Points of the distribution that a value is.", ge=2, probe=11)
    value_limit: float = setting(
        500.0, "Largest value, either way, that the value head can represent.", gt=0.0, static=True, probe=10.0
    )
    reward_bins: int = setting(21, "Points of the distribution that a reward is.", ge=2, probe=11)
    reward_limit: float = setting(
        20.0, "Largest reward, either way, that the reward head can represent.", gt=0.0, static=True, probe=1.0
    )

    sizes: ClassVar[tuple[str, ...]] = (
        "hidden_sizes",
        "width",
        "layers",
        "expert_size",
        "experts",
        "value_bins",
        "reward_bins",
    )
    networks: ClassVar[NetworkNames] = _NETWORKS
    absent: ClassVar[Mapping[str, str]] = {
        "share_encoder": "policy and value are read off one latent state, so they share all that makes it"
    }

    def shape(self) -> WorldShape:
        """The model's sizes."""
        adapter = AdapterShape(self.adapter_rank, self.adapter_alpha)
        return WorldShape(
            TransformerShape(
                self.width, self.layers, self.heads, self.context_length, self.expert_size, self.experts, adapter
            ),
            EncoderShape(self.image_encoder, self.sizes_of("representation"), self.activation),
            self.latent_norm,
            self.latent_group,
            support_of(self.reward_limit, self.reward_bins),
            support_of(self.value_limit, self.value_bins),
        )

    def least_weights(self, info: SpaceInfo) -> int:
        if self.model != "auto":
            return 0
        layer = 4 * self.width**2 + 3 * self.width * self.expert_size * (1 + self.experts)
        heads = self.width * (self.value_bins + self.reward_bins + 3 * self.width)
        return self.layers * layer + heads + dense_weights((*self.sizes_of("representation"), self.width))

    def row_numbers(self, info: SpaceInfo) -> int:
        return 2 * self.layers * self.width if self.model == "auto" else 0


class ScaleZeroConfig(MuZeroConfig, GumbelSearchConfig):
    """cross-entropies of policy, value, reward and next latent along whole windows, balanced over tasks"""

    search: Literal["puct", "gumbel"] = setting(
        "gumbel",
        "The rule of the search and the policy that it teaches: MuZero's, or Gumbel MuZero's, with its temperature.",
        probe="puct",
    )
    num_simulations: int = setting(16, "Simulations of every search.", ge=1, probe=3)
    temperature: float = setting(
        1.0,
        "How far the root's action follows the noise of a Gumbel search, or the exponent 1 / temperature of visits in "
        "MuZero's; 0 is greedy.",
        ge=0.0,
        report=True,
        probe=0.1,
    )
    batch_size: int = setting(64, "Windows of each task in a minibatch.", ge=1, probe=5)
    value_coef: float = setting(1.0, "Weight of the value loss.", ge=0.0)
    latent_coef: float = setting(1.0, "Weight of the loss of the next latent.", ge=0.0, probe=0.0)
    balance_coef: float = setting(
        0.01, "Weight of the loss that spreads tokens over experts.", ge=0.0, live_when={"experts": 4}, probe=1.0
    )
    target_tau: float = setting(
        0.05, "Share of the online weights in the target network's update.", ge=0.0, le=1.0, probe=0.5
    )
    target_update_interval: int = setting(1, "Updates between two of the target network.", ge=1, probe=3)


class Terms(NamedTuple):
    """The parts of a loss, each a weighted sum over windows and steps."""

    policy: Tensor
    value: Tensor
    reward: Tensor
    latent: Tensor
    entropy: Tensor


def latent_divergence(predicted: Tensor, target: Tensor, norm: LatentNorm, group: int) -> Tensor:
    """How far latents `[..., D]`, of which `predicted` are not yet normalised, are from targets; `[...]`.

    SimNorm: the mean over groups of KL(target, prediction). Layer norm: the mean of squared differences.
    """
    if norm == "layer_norm":
        return (nn.functional.layer_norm(predicted, predicted.shape[-1:]) - target).square().mean(dim=-1)
    log_share = predicted.reshape(*predicted.shape[:-1], -1, group).log_softmax(dim=-1)
    share = target.reshape(log_share.shape)
    return (torch.xlogy(share, share) - share * log_share).sum(dim=-1).mean(dim=-1)


def world_terms(said: Heads, goals: TaskGoals, norm: LatentNorm, group: int) -> Terms:
    """The parts of UniZero's loss for one task (arXiv:2406.10667): cross-entropies, less their targets' entropies."""
    log_policy = said.prediction.policy.log_softmax(dim=-1)
    entropy = -(log_policy.exp() * log_policy).sum(dim=-1)
    latent = latent_divergence(said.dynamics.latent, goals.latent, norm, group)
    return Terms(
        divergence(log_policy, goals.policy, goals.policy_weight),
        divergence(said.prediction.value.log_softmax(dim=-1), goals.value, goals.value_weight),
        divergence(said.dynamics.reward.log_softmax(dim=-1), goals.reward, goals.reward_weight),
        (goals.reward_weight * latent).sum(),
        (goals.policy_weight * entropy).sum(),
    )


def task_loss(terms: Terms, cfg: ScaleZeroConfig) -> Tensor:
    """The weighted sum of a task's terms."""
    return (
        cfg.policy_coef * terms.policy
        + cfg.value_coef * terms.value
        + cfg.reward_coef * terms.reward
        + cfg.latent_coef * terms.latent
        - cfg.ent_coef * terms.entropy
    )


def task_mean(losses: Mapping[str, Tensor], weights: Mapping[str, float] | None = None) -> Tensor:
    """The mean of the tasks' losses, whatever the number of windows of each; weighted if `weights` are given."""
    given = [1.0 if weights is None else weights[name] for name in losses]
    return torch.stack([weight * loss for weight, loss in zip(given, losses.values(), strict=True)]).sum() / sum(given)


def total_loss(losses: Tensor, routing: list[Routing], cfg: ScaleZeroConfig) -> Tensor:
    """The mean over tasks, and the mean of the layers' balance losses."""
    if not routing or cfg.balance_coef == 0.0:
        return losses
    return losses + cfg.balance_coef * torch.stack([balance_loss(sent) for sent in routing]).mean()
