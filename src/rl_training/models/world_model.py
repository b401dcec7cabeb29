"""The networks of Dreamer: a world model with its heads, a policy and a value."""

from __future__ import annotations

from torch import Tensor, nn

from rl_training.models.encoders import Observations
from rl_training.models.rssm import RSSM, UNIMIX, Observed, WorldSize, WorldState
from rl_training.models.rssm_heads import ContinueHead, GaussianHead, LegalHead, NumberHead, PolicyHead, action_columns
from rl_training.models.rssm_observations import ObservationDecoder, ObservationEncoder
from rl_training.ops.symexp import SymexpPoints
from rl_training.types import SpaceInfo

_MODEL_LAYERS = 1
_BEHAVIOUR_LAYERS = 3
_DEFAULT_POINTS = SymexpPoints()


def _number_head(size: WorldSize, layers: int, support: SymexpPoints | None) -> NumberHead:
    if support is None:
        return GaussianHead(size.features, layers, size.units)
    return NumberHead(size.features, layers, size.units, support)


class WorldModel(nn.Module):
    """Encoder, states, decoder, and what is predicted of a state: reward, continuation, and allowed choices if any.

    Everything that is predicted belongs to the state that is reached: the reward arrived with its observation. Without
    `support` rewards are Gaussian.
    """

    def __init__(
        self, info: SpaceInfo, size: WorldSize, *, support: SymexpPoints | None, unimix: float = UNIMIX
    ) -> None:
        super().__init__()
        self.info = info
        self.encoder = ObservationEncoder(info, size)
        self.rssm = RSSM(size, info.action_size, self.encoder.tokens, unimix=unimix)
        self.decoder = ObservationDecoder(info, size)
        self.reward = _number_head(size, _MODEL_LAYERS, support)
        self.continues = ContinueHead(size.features, _MODEL_LAYERS, size.units)
        masked = info.mask_size > 0 and not info.continuous
        self.legal = LegalHead(size.features, _MODEL_LAYERS, size.units, info.action_counts) if masked else None

    def observe(
        self, state: WorldState, previous_action: Tensor, obs: Observations, first: Tensor, uniform: Tensor
    ) -> Observed:
        """Follow a sequence `[T, B, ...]` of observations, and of the stored actions taken before each of them."""
        columns = action_columns(self.info, previous_action)
        return self.rssm.observe(state, columns, self.encoder(obs), first, uniform)

    def imagine(self, state: WorldState, action: Tensor, uniform: Tensor) -> WorldState:
        """The states expected after actions `[B, ...]` as they are stored."""
        after, _ = self.rssm.imagine(state, action_columns(self.info, action), uniform)
        return after


class DreamerNetwork(nn.Module):
    """A world model, and the policy and the value that learn from its dreams; both see the features of a state.

    Rewards and values are distributions over the points of `support`, or Gaussian without it.
    """

    def __init__(
        self,
        info: SpaceInfo,
        size: WorldSize,
        *,
        support: SymexpPoints | None = _DEFAULT_POINTS,
        unimix: float = UNIMIX,
    ) -> None:
        super().__init__()
        self.world = WorldModel(info, size, support=support, unimix=unimix)
        self.policy = PolicyHead(info, size.features, _BEHAVIOUR_LAYERS, size.units, unimix=unimix)
        self.value = _number_head(size, _BEHAVIOUR_LAYERS, support)
