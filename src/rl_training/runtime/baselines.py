"""Baselines of an offline run: the returns in the dataset, and a behaviour-cloning policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl_training.algorithms.base import Context, EncodedModelConfig, NetworkConfig
from rl_training.algorithms.bc import BC, BCConfig, BCModelConfig
from rl_training.algorithms.off_policy import OffPolicyAlgorithm
from rl_training.algorithms.offline import BehaviorLoopConfig
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.loops.offline import OfflineLoop
from rl_training.runtime.rng import make_streams, untouched
from rl_training.types import Metrics

if TYPE_CHECKING:
    from rl_training.runtime.run import Run


class Comparison(Callback):
    """Adds to every evaluation the dataset's mean return, a normalised score and a behaviour-cloning baseline."""

    def __init__(self, dataset: OfflineDataset, updates: int) -> None:
        self._dataset = dataset
        self._updates = updates
        self._baseline: float | None = None

    def on_start(self, run: Run) -> None:
        wanted = self._updates > 0 and not run.config.loop.collects and not isinstance(run.algorithm, BC)
        if wanted and self._baseline is None:
            updates = min(self._updates, run.config.run.total_timesteps)
            self._baseline = behaviour_cloning_return(run, self._dataset, updates)

    def on_eval(self, run: Run, metrics: Metrics) -> None:
        if self._dataset.rewarded:
            metrics["dataset_return_mean"] = self._dataset.return_mean
        if self._baseline is not None:
            metrics["bc_return_mean"] = self._baseline
        score = normalized_score(metrics["eval_return_mean"], self._dataset.source)
        if score is not None:
            metrics["eval_score"] = score

    def state_dict(self) -> dict[str, Any]:
        return {"baseline": self._baseline}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._baseline = state["baseline"]


def normalized_score(value: float, source: Mapping[str, Any]) -> float | None:
    """0 for the dataset's lower reference return, 100 for the upper one; None if it has none (Fu et al. 2020)."""
    low, high = source.get("ref_min_score"), source.get("ref_max_score")
    if low is None or high is None or low == high:
        return None
    return 100.0 * (value - float(low)) / (float(high) - float(low))


def behaviour_cloning_return(run: Run, dataset: OfflineDataset, updates: int) -> float:
    """Train a behaviour-cloning policy of the same size; returns its mean return on the run's evaluation episodes."""
    settings, model, own = run.config.run, run.config.model, run.algorithm
    assert isinstance(own, OffPolicyAlgorithm)
    config = BCConfig(normalize_obs="auto")
    with untouched():
        context = Context(
            info=run.info,
            config=config,
            model=_same_size(model),
            device=own.observer.device,
            engine=settings.engine,
            num_envs=1,
            streams=make_streams(settings.seed),
        )
        loop = OfflineLoop(BC(context), run.info, dataset, BehaviorLoopConfig(), settings.seed)
        while loop.steps < updates:
            run.signals.heed()
            loop.step(lambda step: None)
        return run.evaluator(loop.algorithm.policy, settings.eval_episodes, heed=run.signals.heed).mean


def _same_size(model: NetworkConfig) -> BCModelConfig:
    assert isinstance(model, EncodedModelConfig)
    return BCModelConfig(
        hidden_sizes=model.sizes_of("policy"), activation=model.activation, image_encoder=model.image_encoder
    )
