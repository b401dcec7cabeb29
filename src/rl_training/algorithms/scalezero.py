"""ScaleZero (arXiv:2509.07945) on UniZero (arXiv:2406.10667): one transformer world model that plans in several tasks.

Losses along windows of real steps. The transformer reads a window once, with the true observation at every step
(teacher forcing), and everything it says there is compared with what was seen or searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import EncodedModelConfig, dense_weights, setting
from rl_training.algorithms.gumbel_muzero import GumbelSearchConfig
from rl_training.algorithms.layers import ACTIVATION_HELP, Activation, LayerSizes
from rl_training.algorithms.muzero import MuZeroConfig, divergence
from rl_training.algorithms.parts.model_inference import support_of
from rl_training.algorithms.parts.unroll_batch import UnrollBatch, known, returns_to, targets_from
from rl_training.data.batches import Windows
from rl_training.models.adapters import AdapterShape
from rl_training.models.encoders import Observations
from rl_training.models.experts import Routing, balance_loss, expert_loads
from rl_training.models.scalezero import Dynamics, LatentNorm, Prediction, ScaleZeroNetwork, WorldShape
from rl_training.models.transformer import Read, TransformerShape
from rl_training.models.trunk import EncoderShape
from rl_training.ops.two_hot import expected, two_hot
from rl_training.types import Array, SpaceInfo


class ScaleZeroModelConfig(EncodedModelConfig):
    """A transformer that all tasks share, and an encoder and heads for each."""

    hidden_sizes: LayerSizes = setting((64,), "Widths of the hidden layers of each encoder.", probe=(8,))
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
            EncoderShape(self.image_encoder, self.hidden_sizes_of_encoder(), self.activation),
            self.latent_norm,
            self.latent_group,
            support_of(self.reward_limit, self.reward_bins),
            support_of(self.value_limit, self.value_bins),
        )

    def hidden_sizes_of_encoder(self) -> tuple[int, ...]:
        assert not isinstance(self.hidden_sizes, Mapping)
        return tuple(self.hidden_sizes)

    def least_weights(self, info: SpaceInfo) -> int:
        if self.model != "auto":
            return 0
        layer = 4 * self.width**2 + 3 * self.width * self.expert_size * (1 + self.experts)
        heads = self.width * (self.value_bins + self.reward_bins + 3 * self.width)
        return self.layers * layer + heads + dense_weights((*self.hidden_sizes_of_encoder(), self.width))

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


class Heads(NamedTuple):
    """What the model says of one task's windows."""

    prediction: Prediction  # policy [K + 1, B, A], value [K + 1, B, bins]
    dynamics: Dynamics  # latent [K, B, D] before it is normalised, reward [K, B, bins]


class Terms(NamedTuple):
    """The parts of a loss, each a weighted sum over windows and steps."""

    policy: Tensor
    value: Tensor
    reward: Tensor
    latent: Tensor
    entropy: Tensor


@dataclass(frozen=True)
class TaskGoals:
    """Targets of one task's windows, with their weights in the loss; the next latent is weighed as the reward."""

    policy: Tensor  # `[K + 1, B, A]`
    value: Tensor  # `[K + 1, B, bins]`
    reward: Tensor  # `[K, B, bins]`
    latent: Tensor  # `[K, B, D]`: of the target encoder, normalised
    policy_weight: Tensor  # `[K + 1, B]`
    value_weight: Tensor  # `[K + 1, B]`
    reward_weight: Tensor  # `[K, B]`


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


def observed(windows: Windows, steps: int) -> Array:
    """What was seen at `steps` + 1 states in a row, `[steps + 1, B, ...]`; past the end of an episode, its last state.

    So a terminated episode goes on for ever in the state that it ended in, without any reward.
    """
    # Rows past the end repeat the last transition.
    seen: Array = np.concatenate([windows.obs[:1], windows.next_obs[:steps]])
    return seen


def sequence_batch(windows: Windows, obs: Array, action: Array, value: Array) -> UnrollBatch:
    """Targets along windows whose states `obs` `[K + 1, B, ...]` are all read; weights of all steps are equal.

    A term's weights sum to 1 over K + 1 states (or K steps) and B windows where everything is known.
    """
    steps, count = len(obs) - 1, len(windows)
    acted, settled, paid = known(windows, steps)
    weight = (np.ones(count, np.float32) if windows.weight is None else windows.weight) / np.float32(count)
    return UnrollBatch(
        obs[0],
        action,
        windows.records["policy"][: steps + 1],
        value,
        np.where(windows.real[:steps], windows.reward[:steps], np.float32(0.0)),
        weight * acted / np.float32(steps + 1),
        weight * settled / np.float32(steps + 1),
        weight * paid / np.float32(steps),
        later_obs=obs[1:],
    )


def task_goals(batch: UnrollBatch, latent: Tensor, shape: WorldShape) -> TaskGoals:
    """A batch's targets as tensors; `latent` `[K, B, D]` are those of the target encoder."""
    distributions = (
        batch.policy,
        two_hot(batch.value, shape.value_support),
        two_hot(batch.reward, shape.reward_support),
    )
    policy, value, reward, *weights = (
        torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(latent.device)
        for array in (*distributions, batch.policy_weight, batch.value_weight, batch.reward_weight)
    )
    return TaskGoals(policy, value, reward, latent, *weights)


class Said(NamedTuple):
    """What the model says of the windows of all tasks, and how their tokens were sent to experts."""

    heads: dict[str, Heads]
    routing: list[Routing]  # of each layer with experts
    tokens: dict[str, slice]  # the tokens of each task in the routing


def say(network: ScaleZeroNetwork, obs: Mapping[str, Observations], actions: Mapping[str, Tensor]) -> Said:
    """Read the windows of all tasks at once: observations of `[(K + 1) B]` rows, time first, and actions `[K, B]`."""
    read = _read(network, _latents(network, obs, actions), actions)
    length, heads, tokens = read.features.shape[1], {}, {}
    for task, (start, end) in _spans(actions).items():
        own, of_task = read.features[start:end].transpose(0, 1), network.heads_of(task)
        heads[task] = Heads(of_task.predict(own[0::2]), of_task.follow(own[1::2]))
        tokens[task] = slice(start * length, end * length)
    return Said(heads, read.routing, tokens)


class Ahead(NamedTuple):
    """What a target network says of one task's windows."""

    latent: Tensor  # [T + 1, B, D]
    value: Tensor  # [T + 1, B]


def look_ahead(
    target: ScaleZeroNetwork, obs: Mapping[str, Observations], actions: Mapping[str, Tensor]
) -> dict[str, Ahead]:
    """Latents and values by a target network: observations of `[(T + 1) B]` rows, time first, and actions `[T, B]`."""
    with torch.no_grad():
        latents = _latents(target, obs, actions)
        features = _read(target, latents, actions).features[:, 0::2]
        found = {}
        for task, (start, end) in _spans(actions).items():
            logits = target.heads_of(task).predict(features[start:end].transpose(0, 1)).value
            found[task] = Ahead(latents[task], expected(logits, target.shape.value_support))
    return found


def _spans(actions: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Which rows of a batch of all tasks are those of each."""
    ends = np.cumsum([action.shape[1] for action in actions.values()]).tolist()
    return {task: (end - action.shape[1], end) for (task, action), end in zip(actions.items(), ends, strict=True)}


def _latents(
    network: ScaleZeroNetwork, obs: Mapping[str, Observations], actions: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The latents `[T + 1, B, D]` of each task's windows."""
    return {
        task: network.encode(task, obs[task]).view(len(action) + 1, action.shape[1], -1)
        for task, action in actions.items()
    }


def _read(network: ScaleZeroNetwork, latents: Mapping[str, Tensor], actions: Mapping[str, Tensor]) -> Read:
    """Read the windows of all tasks at once."""
    return network.read(
        torch.cat([latents[task].transpose(0, 1) for task in actions]),
        torch.cat([action.T for action in actions.values()]),
    )


def value_targets(windows: Windows, values: Array, n_step: int, steps: int, discount: float) -> Array:
    """Returns `[K + 1, B]` of `n_step` rewards and the values `[K + n_step + 1, B]` of the states after them."""
    rows = targets_from(windows, np.full(len(windows), n_step, np.int64), steps)
    return returns_to(windows, rows, values[rows + 1, np.arange(len(windows))], discount)


def load_metrics(said: Said) -> dict[str, float]:
    """The share of each task's tokens that went to each expert, the mean over layers, as `task/expert_0` and so on."""
    found: dict[str, float] = {}
    for task, span in said.tokens.items():
        if said.routing:
            loads = torch.stack([expert_loads(sent, span) for sent in said.routing]).mean(dim=0).tolist()
            found |= {f"{task}/expert_{number}": load for number, load in enumerate(loads)}
    return found
