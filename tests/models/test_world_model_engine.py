"""One update of Dreamer by the engine against the same update by autograd: gradients, metrics and states."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from dreams import cfg_of, draws_for, sequences_for, trained
from rl_training.algorithms.dreamer import dreamer_loss
from rl_training.algorithms.parts.dreams import AutogradDreamer, Draws, SequenceBatch
from rl_training.algorithms.parts.dreams_engine import EngineDreamer
from rl_training.algorithms.parts.observer import Observer
from rl_training.models.flat import FlatWeights
from rl_training.ops.observations import layout, row_bytes
from rl_training.types import ObsPart
from worlds import SPACES, space

PARTS = layout((ObsPart("numbers", (2, 3), "float32"), ObsPart("more", (4,), "float32")))
KINDS = {name: SPACES[name] for name in SPACES if name.startswith(("vector", "masked"))} | {
    "two vectors": space((row_bytes(PARTS, 0),), "uint8", parts=PARTS)
}


def engine_of(model: AutogradDreamer) -> EngineDreamer:
    """The same networks in the other form."""
    network = copy.deepcopy(model.network)
    observer = Observer(network.world.info, torch.device("cpu"), normalize=False, clip=10.0)
    engine = EngineDreamer(network, FlatWeights(network.parameters()), observer, cfg_of(), dreamer_loss)
    engine.slow.weights.data.copy_(model.slow.weights.data)
    engine.learner.parameters.grad.fill_(float("nan"))  # every gradient must be written, none added to
    return engine


def exactly(model: AutogradDreamer, batch: SequenceBatch, draws: Draws, cfg: Any) -> tuple[Any, list[torch.Tensor]]:
    """What autograd says in float64: the outcome, and the gradients of all parameters."""
    twin = copy.copy(model)
    twin.network, twin.scale = copy.deepcopy(model.network).double(), copy.deepcopy(model.scale)
    slow = copy.deepcopy(model.slow.module).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)  # networks make floats of what they are given
        rows, noise = twin.sequences(batch), twin.noise(draws)
        rows = rows._replace(
            reward=rows.reward.double(), before=type(rows.before)(*(part.double() for part in rows.before))
        )
        noise = type(noise)(*(part.double() if part.is_floating_point() else part for part in noise))
        loss, found, state = dreamer_loss(twin.network, slow, twin.scale, rows, noise, cfg)
    assert loss.dtype == torch.float64
    gradients = torch.autograd.grad(loss, list(twin.network.parameters()), allow_unused=True)
    filled = [
        torch.zeros_like(p) if d is None else d for p, d in zip(twin.network.parameters(), gradients, strict=True)
    ]
    return (found, state), filled


def assert_equal_updates(model: AutogradDreamer, batch: SequenceBatch, draws: Draws, cfg: Any) -> None:
    """Each tensor's gradient is within 1e-5 of its own norm, or of a thousandth of the whole where it is smaller."""
    engine = engine_of(model)
    (found, state), wanted = exactly(model, batch, draws, cfg)
    outcome = engine.differentiate(batch, draws, cfg)
    whole = float(torch.cat([d.flatten() for d in wanted]).norm())
    for (name, parameter), d in zip(engine.network.named_parameters(), wanted, strict=True):
        error, size = float((parameter.grad - d).norm()), float(d.norm())
        assert error <= 1e-5 * max(size, 1e-3 * whole), (name, error, size, whole)
    np.testing.assert_allclose(outcome.deter, state.deter.detach(), atol=3e-6)
    assert outcome.metrics.keys() == found.keys()
    for name, value in found.items():
        assert outcome.metrics[name] == pytest.approx(float(value.detach()), rel=2e-5, abs=2e-5), name


@pytest.mark.parametrize("name", KINDS)
def test_an_update_equals_autograd_for_all_spaces(name: str) -> None:
    model = trained(KINDS[name])
    assert_equal_updates(model, sequences_for(model), draws_for(model), cfg_of(free_nats=0.1))
