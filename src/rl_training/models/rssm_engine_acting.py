"""Acting with a world model without autograd: one step of a few environments in a few dozen small calls."""

from __future__ import annotations

import numpy as np

from rl_training.models.mlp_engine import Workspace
from rl_training.models.rssm_engine import Scan
from rl_training.models.rssm_engine_heads import DreamPolicy
from rl_training.models.rssm_engine_layers import HiddenLayers
from rl_training.models.world_model import DreamerNetwork
from rl_training.models.world_model_engine import action_columns
from rl_training.ops.kernels import world_states
from rl_training.types import Array


class ActingDreamer:
    """Follows environments by the model, and acts in the states that it finds: see `world_model_engine.within_reach`.

    It reads the parameters where they are when it is made, with their values of now at every step.
    """

    def __init__(self, network: DreamerNetwork) -> None:
        world = network.world
        assert world.encoder.vector is not None
        self.info, self.size = world.info, world.rssm.size
        self._encoder = HiddenLayers(world.encoder.vector, trained=False)
        self._scan = Scan(world.rssm, trained=False)
        self._policy = DreamPolicy(network.policy, trained=False)
        # The states before and after a step.
        self._states = Workspace((), [self.size.features, self.size.features])

    def see(
        self, deter: Array, stoch: Array, previous_action: Array, numbers: Array, first: Array, uniform: Array
    ) -> tuple[Array, Array]:
        """`RSSM.see`: what is remembered `[n, deter]`, and the latents `[n, stoch]` as indices of one byte.

        `deter` and `stoch` are the state before, `numbers` the observations (`joined_numbers`), and where `first` is
        set an episode begins.
        """
        rows, size = len(first), self.size
        self._states.resize(rows)
        self._encoder.begin(rows)
        before, after = self._states.arrays
        before[:, : size.deter] = deter
        world_states.enter_latents(stoch, size.classes, before, size.deter)
        actions = action_columns(self.info, previous_action)
        actions[first] = 0.0
        tokens = self._encoder.forward(numbers, slice(0, rows))
        index = np.empty((rows, size.stoch), np.uint8)
        self._scan.forward(before, actions, tokens, first[None], uniform[None], after, index)
        return after[:, : size.deter].copy(), index

    def act(self, noise: Array, mask: Array | None = None) -> Array:
        """Actions `[n, ...]`, as they are stored, in the states that `see` found: `sample_action` of the policy."""
        rows = len(noise)
        self._policy.begin(rows, rows)
        self._policy.act(self._states.arrays[1], noise, slice(0, rows), mask)
        return self._stored(self._policy.action)

    def act_greedily(self, mask: Array | None = None) -> Array:
        """The likeliest actions `[n, ...]`, as they are stored, in the states that `see` found."""
        rows = self._states.rows
        size = self.info.action_size if self.info.continuous else len(self.info.action_counts)
        self.act(np.zeros((rows, size), np.float32), mask)
        return self._stored(self._policy.likeliest())

    def _stored(self, action: Array) -> Array:
        return action[:, 0] if self.info.action_kind == "discrete" else action
