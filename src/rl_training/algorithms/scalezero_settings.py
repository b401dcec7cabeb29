"""The settings of ScaleZero: a transformer that all tasks share, its losses, its stages."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import ClassVar

from rl_training.algorithms.base import EncodedModelConfig, NetworkConfig, dense_weights, model_setting
from rl_training.algorithms.gumbel_muzero import EitherSearchConfig, Search, search_setting
from rl_training.algorithms.layers import ACTIVATION_HELP, Activation, LayerSizes, NetworkNames, widths_help
from rl_training.algorithms.planning import LatentModelConfig
from rl_training.algorithms.settings import setting
from rl_training.models.adapters import AdapterShape
from rl_training.models.scalezero import LatentNorm, WorldShape
from rl_training.models.transformer import TransformerShape
from rl_training.models.trunk import EncoderShape
from rl_training.types import SpaceInfo, UserError

_NETWORKS: NetworkNames = {"representation": ()}


class ScaleZeroModelConfig(LatentModelConfig, EncodedModelConfig):
    """A transformer that all tasks share, and an encoder and heads for each. A custom `model` is an encoder."""

    model: str = model_setting(probe="rl_training.testing:LinearEncoder")
    hidden_sizes: LayerSizes = setting((64,), widths_help(_NETWORKS), probe=(8,))
    activation: Activation = setting("silu", ACTIVATION_HELP, probe="tanh")
    width: int = setting(64, "Size of tokens and latents; a multiple of `heads` and of `latent_group`.", ge=1, probe=16)
    layers: int = setting(2, "Layers of the transformer.", ge=1, probe=3)
    heads: int = setting(2, "Attention heads of a layer.", ge=1, probe=1)
    context_length: int = setting(
        4, "Steps that a token sees, the present one included; each is two tokens.", ge=1, probe=1
    )
    expert_size: int = setting(64, "Hidden width of every expert.", ge=1, probe=4)
    experts: int = setting(
        4, "Experts that the router of a layer chooses from, besides the shared one; 0: a dense layer.", ge=0, probe=0
    )
    latent_norm: LatentNorm = setting(
        "simnorm", "Latents are distributions in groups, or normalised to mean 0 and variance 1.", probe="layer_norm"
    )
    latent_group: int = setting(8, "Size of such a group.", ge=2, live_when={"latent_norm": "simnorm"}, probe=4)
    adapter_rank: int = setting(
        8, "Rank of the adapters that a stage adds.", ge=1, live_when={"stages": 2, "stage_updates": 1}, probe=1
    )
    adapter_alpha: float = setting(
        8.0,
        "Adapters are multiplied by this over their rank.",
        gt=0.0,
        static=True,
        live_when={"stages": 2, "stage_updates": 1},
    )

    sizes: ClassVar[tuple[str, ...]] = (
        "hidden_sizes",
        "width",
        "layers",
        "context_length",
        "expert_size",
        "experts",
        "adapter_rank",
        "value_bins",
        "reward_bins",
    )
    networks: ClassVar[NetworkNames] = _NETWORKS

    def shape(self, stages: int = 1) -> WorldShape:
        """The model's sizes, with room for so many stages."""
        adapter = AdapterShape(self.adapter_rank, self.adapter_alpha, stages - 1)
        return WorldShape(
            TransformerShape(
                self.width, self.layers, self.heads, self.context_length, self.expert_size, self.experts, adapter
            ),
            EncoderShape(self.image_encoder, self.sizes_of("representation"), self.activation),
            self.latent_norm,
            self.latent_group,
            self.reward_support,
            self.value_support,
        )

    def least_weights(self, info: SpaceInfo) -> int:
        distances = 2 * self.heads * self.context_length
        layer = sum(many * inputs * outputs for many, inputs, outputs in self._growing()) + distances
        heads = self.width * (self.value_bins + self.reward_bins + 3 * self.width)
        encoder = dense_weights((*self.sizes_of("representation"), self.width)) if self.model == "auto" else 0
        return self.layers * layer + heads + encoder

    def adapter_weights(self, adapters: int) -> int:
        """How many weights so many adapters of everything that can grow have, with the scales of all stages."""
        scales = adapters * (adapters + 1) // 2
        each = (many * (adapters * self.adapter_rank * (ins + outs) + scales) for many, ins, outs in self._growing())
        return self.layers * sum(each)

    def _growing(self) -> list[tuple[int, int, int]]:
        """The matrices of a layer that can grow: how many of a kind, their inputs and outputs."""
        width, hidden = self.width, self.expert_size
        attention = [(1, width, 3 * width), (1, width, width)]
        return [*attention, (1 + self.experts, width, 2 * hidden), (1 + self.experts, hidden, width)]

    def row_numbers(self, info: SpaceInfo) -> int:
        return 2 * self.layers * self.width

    def carry_bytes(self, info: SpaceInfo) -> int:
        # Observations and actions are remembered. Both are read again, as a token each.
        return (self.context_length - 1) * (info.obs_bytes + 8 + 4 * 2 * self.row_numbers(info))


class ScaleZeroConfig(EitherSearchConfig):
    """cross-entropies of policy, value, reward and next latent along whole windows, the mean over tasks"""

    search: Search = search_setting("gumbel")
    num_simulations: int = setting(16, "Simulations of every search.", ge=1, probe=3)
    temperature: float = setting(
        1.0,
        "How far the root's action follows the noise of a Gumbel search, or the exponent 1 / temperature of visits in "
        "MuZero's; 0 is greedy.",
        ge=0.0,
        report=True,
        probe=0.1,
    )
    batch_size: int = setting(32, "Windows of each task in a minibatch.", ge=1, probe=5)
    value_coef: float = setting(1.0, "Weight of the value loss.", ge=0.0)
    latent_coef: float = setting(10.0, "Weight of the loss of the next latent.", ge=0.0, probe=0.0)
    balance_coef: float = setting(
        0.01, "Weight of the loss that spreads tokens over experts.", ge=0.0, live_when={"experts": 4}, probe=1.0
    )
    target_tau: float = setting(
        0.05, "Share of the online weights in the target network's update.", ge=0.0, le=1.0, probe=0.5
    )
    target_update_interval: int = setting(1, "Updates between two of the target network.", ge=1, probe=3)
    task_weights: dict[str, float] | None = setting(
        None,
        "Weights of tasks in the loss, by their names; null, and tasks that are not named: 1.",
        live_when={"tasks": 2},
        probe={"task0": 3.0},
    )
    stages: int = setting(
        1,
        "Stages of training; each after the first freezes what was trained and trains adapters instead.",
        ge=1,
        static=True,
        live_when={"stage_updates": 1},
    )
    first_stage_updates: int = setting(
        0,
        "Updates that the first stage has at least.",
        ge=0,
        live_when={"stages": 2, "stage_updates": 1},
        probe=1_000,
    )
    stage_updates: int | None = setting(
        None,
        "Updates after which a stage ends, whatever is solved; null: it ends when enough tasks are.",
        ge=1,
        live_when={"tasks": 2, "stages": 2},
        probe=1,
    )
    solved_episodes: int = setting(
        50,
        "Training episodes in a row whose mean return must reach a task's `target_return`, for it to count as solved.",
        ge=1,
        le=100,
        live_when={"tasks": 2, "stages": 2},
        probe=1,
    )

    sizes: ClassVar[tuple[str, ...]] = (*EitherSearchConfig.sizes, "stages")

    def more_weights(self, model: NetworkConfig) -> int:
        assert isinstance(model, ScaleZeroModelConfig)
        return model.adapter_weights(self.stages - 1)


def weights_of(cfg: ScaleZeroConfig, tasks: Mapping[str, SpaceInfo]) -> dict[str, float]:
    """The weight of every task in the loss."""
    given = cfg.task_weights or {}
    if unknown := [name for name in given if name not in tasks]:
        there = ", ".join(name for name in tasks if name) or "the one of env_id, which needs no weight"
        near = "".join(f"; did you mean {name!r}?" for name in get_close_matches(unknown[0], list(tasks), n=1))
        raise UserError(f"task_weights={given}: there is no task {unknown[0]!r} (the tasks are {there}){near}")
    if wrong := [name for name, weight in given.items() if not weight > 0.0]:
        raise UserError(f"task_weights={given}: the weight of {wrong[0]!r} must be above 0")
    return {task: given.get(task, 1.0) for task in tasks}
