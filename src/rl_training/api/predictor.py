"""What acts for a user: a policy that takes an environment's observations and returns its actions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Policy
from rl_training.api.inputs import check_state, policy_rows, start_mask
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.registry import REGISTRY
from rl_training.experiment.tasks import one_of
from rl_training.runtime.envs.spaces import ActionScaler
from rl_training.runtime.libraries import Libraries, Threads
from rl_training.runtime.rng import seeded, untouched
from rl_training.runtime.train import policy_for
from rl_training.types import Array, SpaceInfo, UserError

Observation = Array | Mapping[str, Any]


class Predictor:
    """Chooses actions in the units of the environment, for one observation or a batch.

    It needs neither an environment nor an optimiser. That of an agent (`agent.policy`) follows its training; a copy
    (`to`, or a pickle) stays as it is.

    `policy(obs)` returns the action. A policy that remembers keeps its state from one call to the next: `reset` begins
    new episodes, `episode_start` begins some. `predict` leaves the state to the caller.
    """

    def __init__(
        self, policy: Policy, config: Config, action_dtypes: Mapping[str, Any], libraries: Libraries | None = None
    ) -> None:
        self._policy, self._config = policy, config
        self._action_dtypes = {task: np.dtype(dtype) for task, dtype in action_dtypes.items()}
        self._libraries = Libraries(config.run.threads) if libraries is None else libraries
        self._scale = ActionScaler(policy.info, self._action_dtypes[policy.task])
        # The package draws from the run's streams only. User code may draw from the global ones, so it is guarded.
        known = config.model.model == "auto" and config.run.algo in REGISTRY
        threads = config.run.threads
        self._acting: Callable[[], AbstractContextManager[None]] = (lambda: Threads(threads)) if known else self._apart
        self._rng = np.random.Generator(np.random.PCG64(seeded(config.run.seed, "prediction")))
        self.state: Any = None
        self._chosen = len(config.tasks) == 1  # which of the tasks it acts in

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """The run's own libraries, whose generators stay as they are."""
        with self._libraries, untouched():
            yield

    @property
    def info(self) -> SpaceInfo:
        """The spaces that it acts in."""
        return self._one_task().info

    @property
    def device(self) -> torch.device:
        """Where its networks are."""
        return next((tensor.device for tensor in self._policy.policy_state().values()), torch.device("cpu"))

    def for_task(self, name: str | None) -> Predictor:
        """What acts in a task, with a state of its own. Where there is one environment, that is this itself."""
        task = one_of(self._config.tasks, name)
        if self._chosen and task == self._policy.task:
            return self
        view = copy.copy(self)
        view._policy, view._chosen = self._policy.for_task(task), True
        view._scale = ActionScaler(view.info, self._action_dtypes[task])
        view.state = None
        return view

    def _one_task(self) -> Policy:
        """The policy as it acts in a task; raises if there are several, and none was chosen."""
        if not self._chosen:
            names = self._config.tasks
            raise UserError(
                f"policy: acts in several tasks ({', '.join(names)}); choose one, as in policy.for_task({names[0]!r})"
            )
        return self._policy

    def __call__(
        self,
        obs: Observation,
        *,
        deterministic: bool = False,
        episode_start: Array | bool | None = None,
        action_masks: Array | Sequence[Any] | None = None,
    ) -> Array:
        """Return the action for an observation, or those for a batch, and keep the state for the next call."""
        action, self.state = self.predict(
            obs, self.state, episode_start, deterministic=deterministic, action_masks=action_masks
        )
        return action

    def reset(self) -> None:
        """Begin new episodes: forget the state."""
        self.state = None

    def predict(
        self,
        obs: Observation,
        state: Any = None,
        episode_start: Array | bool | None = None,
        deterministic: bool = False,
        *,
        action_masks: Array | Sequence[Any] | None = None,
    ) -> tuple[Array, Any]:
        """Return actions in the environment's units, for one observation or a batch, and the policy's next state.

        A recurrent policy needs its state: pass it with the next observation, and mark in `episode_start` the
        observations that are the first of an episode. Without a state, all of them are.
        """
        policy = self._one_task()
        rows, single = policy_rows(obs, action_masks, policy.info)
        check_state(state, len(rows))
        carry = policy.initial_carry(len(rows)) if state is None else policy.checked_carry(state, len(rows))
        if episode_start is not None:
            carry = policy.begin_episodes(carry, start_mask(episode_start, len(rows)))
        with self._acting():
            act = policy.act(rows, carry, explore=not deterministic, rng=self._rng)
        action = self._scale(act.action)
        return (action[0] if single else action), act.carry

    def to(self, device: str | torch.device) -> Predictor:
        """A copy of its own on a device, as it is now."""
        kept = self._kept()
        return _restored(kept | {"settings": kept["settings"] | {"device": str(device)}})

    def _kept(self) -> dict[str, Any]:
        """All that it is, as plain data and tensors, beside functions and classes of the user's own."""
        config = self._config
        return {
            # Without schedules: what they have led to by now is in `values`.
            "settings": {key: value for key, value in config.given().items() if key not in config.scheduling},
            "spaces": dict(self._policy.tasks),
            "task": self._policy.task,
            "chosen": self._chosen,
            "action_dtypes": {task: str(dtype) for task, dtype in self._action_dtypes.items()},
            "weights": {name: tensor.detach().cpu().clone() for name, tensor in self._policy.policy_state().items()},
            "values": dict(self._policy.values),
            "rng": self._rng.bit_generator.state,
            "state": self.state,
        }

    def __reduce__(self) -> tuple[Callable[..., Predictor], tuple[dict[str, Any]]]:
        """What a pickle holds. Users may pickle it; nothing here ever reads a pickle."""
        return _restored, (self._kept(),)

    def __repr__(self) -> str:
        task = self._policy.task if self._chosen else ""
        return f"<policy of {self._config.run.algo} for {task or self._config.run.title}>"


def _restored(kept: Mapping[str, Any]) -> Predictor:
    """The predictor of which `_kept` told."""
    config = load_config(kept["settings"])
    policy = policy_for(config, kept["spaces"]).for_task(kept["task"])
    policy.load_policy_state(kept["weights"])
    policy.values.update(kept["values"])
    predictor = Predictor(policy, config, kept["action_dtypes"])
    predictor._rng.bit_generator.state = kept["rng"]
    predictor.state, predictor._chosen = kept["state"], kept["chosen"]
    return predictor
