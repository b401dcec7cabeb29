"""Turns stored observations into network inputs: scaled if configured, unpacked, as arrays or as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.models.mlp_engine import matrix_of
from rl_training.models.normalizers import ObservationNormalizer
from rl_training.ops.observations import Unpacker
from rl_training.types import Array, SpaceInfo, Step, UserError

_PREFIX = "obs_normalizer."


class Observer:
    """Turns stored observations into network inputs. The running statistics are part of the policy's state."""

    def __init__(
        self, info: SpaceInfo, device: torch.device, *, normalize: bool | Literal["auto"], clip: float
    ) -> None:
        self.unpack = Unpacker(info)
        self.device = device
        self.normalizer: ObservationNormalizer | None = None
        self._frozen = False
        if normalize == "auto":
            normalize = self.unpack.float_shape is not None
        if normalize:
            if self.unpack.float_shape is None:
                raise UserError("normalize_obs=True: images are scaled to [0, 1] by their network; set it to false")
            self.normalizer = ObservationNormalizer(self.unpack.float_shape, clip)

    def scaled(self, rows: Array) -> Array:
        """The rows with their floats scaled by the current statistics."""
        if self.normalizer is None:
            return rows
        scaled = self.normalizer(self.unpack.floats(rows))
        if self.unpack.floats(rows) is rows:
            return scaled
        rows = rows.copy()
        self.unpack.floats(rows)[...] = scaled
        return rows

    def update(self, rows: Array) -> None:
        """Add real observations `[N, ...]` to the statistics, unless these are frozen."""
        if self.normalizer is not None and not self._frozen:
            self.normalizer.update(self.unpack.floats(rows))

    def observe(self, steps: Sequence[Step]) -> None:
        """Add the real observations of new steps to the statistics, unless these are frozen."""
        if self.normalizer is not None:
            self.update(np.concatenate([step.obs[step.real] for step in steps]))

    @property
    def has_no_statistics(self) -> bool:
        """Whether it scales observations, but has seen none yet."""
        return self.normalizer is not None and self.normalizer.moments.count == 0.0

    def freeze(self) -> None:
        """Stop updating the statistics."""
        self._frozen = True

    def fit(self, rows: Array) -> None:
        """Set the statistics to those of a whole dataset `[N, ...]`."""
        if self.normalizer is not None:
            self.normalizer.fit(self.unpack.floats(rows))

    def arrays(self, rows: Array) -> Any:
        """The network's inputs for (scaled) rows: an array, or a mapping of arrays for a Dict space."""
        return self.unpack.inputs(rows)

    def matrix(self, rows: Array) -> Array:
        """The inputs of an MLP engine for (scaled) rows, `[B, in]`."""
        return matrix_of(self.unpack.inputs(rows))

    def tensors(self, rows: Array) -> Any:
        """The network's inputs for (scaled) rows as tensors on its device."""
        inputs = self.unpack.inputs(rows)
        if isinstance(inputs, dict):
            return {name: self.tensor(array) for name, array in inputs.items()}
        return self.tensor(inputs)

    def mask(self, rows: Array) -> Array | None:
        """Which choices are allowed `[N, A]`, or None if there is no mask."""
        return self.unpack.mask(rows)

    def tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def state_dict(self) -> dict[str, Tensor]:
        if self.normalizer is None:
            return {}
        return {_PREFIX + name: tensor for name, tensor in self.normalizer.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if self.normalizer is not None:
            self.normalizer.load_state_dict(under(state, _PREFIX))


def under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
