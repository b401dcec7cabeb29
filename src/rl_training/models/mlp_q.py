"""Networks that return the Q-value of every discrete action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from rl_training.models.heads import MLPNetwork
from rl_training.ops.value import dueling_values
from rl_training.types import SpaceInfo


class MLPQNetwork(nn.Module):
    """Action values `[B, A]` of observations.

    A dueling network (Wang et al. 2016) has one more output: the first is the state's value, the others are
    advantages, from which their mean is subtracted.
    """

    def __init__(
        self,
        info: SpaceInfo,
        hidden_sizes: Sequence[int],
        activation: str,
        *,
        dueling: bool,
        image_encoder: str = "nature",
    ) -> None:
        super().__init__()
        self.dueling = dueling
        outputs = info.action_size + int(dueling)
        self.layers = MLPNetwork(info, outputs, hidden_sizes, activation, image_encoder=image_encoder)

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.layers(obs)
        return dueling_values(out) if self.dueling else out
