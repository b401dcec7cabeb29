"""Values of states that lean towards the better of what was seen: expectile regression.

Both forms, as in `critics.py`: for autograd, and for the MLP engine. A test holds them equal.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.off_policy import flat_rows
from rl_training.algorithms.parts.observer import Observer
from rl_training.models.heads import MLPNetwork
from rl_training.models.learner import Learner
from rl_training.models.mlp_engine import network_engine
from rl_training.ops.value import expectile_loss
from rl_training.types import Array


class StateValues:
    """A network that gives one number `[B, 1]` for every observation."""

    def __init__(self, module: nn.Module, observer: Observer, *, fast: bool) -> None:
        self.learner = Learner(module)
        self.fast = fast
        self._observer = observer
        if fast:
            assert isinstance(module, MLPNetwork)
            self._engine = network_engine(module, trained=True)

    def __call__(self, rows: Array) -> Array:
        """Values `[B]`, without a gradient; valid until the next call."""
        if self.fast:
            return self._engine.forward(flat_rows(self._observer.arrays(rows)))[:, 0]
        with torch.inference_mode():
            values: Array = self.learner.module(self._observer.tensors(rows)).squeeze(-1).cpu().numpy()
        return values

    def fit(self, rows: Array, target: Array, expectile: float, learning_rate: float) -> float:
        """One step towards an expectile of the targets `[B]`; gives the loss."""
        loss = (self._closed_form if self.fast else self._autograd)(rows, target, expectile)
        self.learner.descend(learning_rate)
        return loss

    def _autograd(self, rows: Array, target: Array, expectile: float) -> float:
        values = self.learner.module(self._observer.tensors(rows)).squeeze(-1)
        loss = expectile_loss(values, self._observer.tensor(target), expectile)
        self.learner.differentiate(loss)
        return float(loss.detach())

    def _closed_form(self, rows: Array, target: Array, expectile: float) -> float:
        error = target - self(rows)
        weighted = np.where(error < 0.0, np.float32(1.0 - expectile), np.float32(expectile)) * error
        self._engine.backward((-2.0 / len(error) * weighted)[:, None].astype(np.float32))
        return float((weighted * error).mean())
