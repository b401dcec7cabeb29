"""Acting with a world model without autograd: a step of a few environments in a few dozen small calls."""

from __future__ import annotations

import numpy as np

from rl_training.models.mlp_engine import Workspace
from rl_training.models.rssm_engine import Scan
from rl_training.models.rssm_engine_heads import DreamPolicy
from rl_training.models.rssm_engine_layers import HiddenLayers
from rl_training.models.world_model import DreamerNetwork
from rl_training.ops.kernels import world_states as kernels
from rl_training.types import Array


class ActingDreamer:
    """Follows environments by the model, and says what the policy does there: see `world_model_engine.within_reach`.

    It reads the parameters where they are when it is made, with their values of now at every step.
    """

    def __init__(self, network: DreamerNetwork) -> None:
        world = network.world
        assert world.encoder.vector is not None
        self.size = world.rssm.size
        self._encoder = HiddenLayers(world.encoder.vector, trained=False)
        self._scan = Scan(world.rssm, trained=False)
        self._policy = DreamPolicy(network.policy, trained=False)
        self._after = Workspace((), [self.size.features])

    def follow(
        self,
        numbers: Array,
        deter: Array,
        stoch: Array,
        columns: Array,
        uniform: Array | None,
        mask: Array | None = None,
    ) -> tuple[Array, Array, Array]:
        """The state after observations: `deter` `[n, deter]` and `stoch` `[n, stoch]`; the policy's parameters there.

        The state before is `deter`, `stoch` (indices of one byte) and the action's columns `[n, action_size]`.
        `numbers` are the observations (`world_model_engine.joined_numbers`). A latent is drawn with `uniform`
        `[n, stoch]`; without it, it is the likeliest. `mask` `[n, action_size]` says which choices are allowed.
        """
        rows, size = slice(0, len(numbers)), self.size
        self._after.resize(rows.stop)
        self._encoder.begin(rows.stop)
        after, index = self._after.arrays[0], np.empty((rows.stop, size.stoch), np.uint8)
        tokens = self._encoder.forward(numbers, rows)
        scaled = columns / np.maximum(np.abs(columns), np.float32(1.0))
        self._scan.begin(scaled, tokens)
        before = self._scan.before
        before[:, : size.deter] = deter
        kernels.enter_latents(stoch, size.classes, before, size.deter)
        softmax = self._scan.see(after)
        if uniform is None:
            kernels.likeliest_latents(softmax, size.classes, index)
            kernels.enter_latents(index, size.classes, after, size.deter)
        else:
            self._scan.draw(uniform, index, after)
        return after[:, : size.deter].copy(), index, self._policy.params(after, mask)
