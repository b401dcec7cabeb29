"""Steps environments for training: the only place that handles autoreset modes, true successors and episode ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.ops.kernels.checks import all_finite
from rl_training.ops.observations import Unpacker
from rl_training.runtime.actors.episodes import Episodes
from rl_training.runtime.envs.journal import by_environment
from rl_training.runtime.envs.lives import lives_lost
from rl_training.runtime.envs.make import reset_each
from rl_training.runtime.envs.memories import Memory, memory_of, not_restored, packed, unpacked
from rl_training.runtime.envs.own_states import keep_state_of
from rl_training.runtime.envs.processes import OwnProcesses
from rl_training.runtime.envs.rules import vector_complaints
from rl_training.runtime.envs.spaces import ActionScaler, mask_size
from rl_training.runtime.trees import check_like, to_tensors
from rl_training.types import Array, SpaceInfo, Step, UserError

_EARLIER = "at an earlier resume, "


class Collector:
    """The environments of a run: their current observations, and the returns of their episodes.

    In every autoreset mode `step` returns the same transitions: `next_obs` is the true successor, and a row that a
    reset produced is marked as not real.

    `lost` marks the environments whose running episodes a resume lost: their current observation does not follow from
    their last transition. A memory that chains transitions must be told before the next step.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        info: SpaceInfo,
        rng: np.random.Generator,
        *,
        reward_clip: float | None = None,
    ) -> None:
        self.envs = envs
        self.info = info
        self.num_envs = envs.num_envs
        self.steps = 0
        self.restarts = 0
        self.rng = rng
        self._reward_clip = reward_clip
        self._mode = envs.metadata["autoreset_mode"]
        self._scale = ActionScaler(info, envs.single_action_space.dtype)
        self._unmasked = not info.mask_size and mask_size(envs.single_action_space) > 0
        self._continuous = info.continuous
        self._users_own = not type(envs.unwrapped).__module__.startswith("rl_training.")
        self._keeper = keep_state_of(envs)
        self._unpack = Unpacker(info)
        self._has_numbers = self._unpack.float_shape is not None
        self._all = np.ones(self.num_envs, np.bool_)
        self.lost: Array | None = None
        self._why_not_exact: list[str] = []  # what the latest resume that was not exact has lost
        # Why episodes ended with the last step, if they did. Lost lives do not end an episode and are not included.
        self.terminated = self.truncated = np.zeros(self.num_envs, np.bool_)
        self.seeds = np.zeros(self.num_envs, np.int64)  # of the running episodes, if each has its own
        self._resetting = np.zeros(self.num_envs, np.bool_)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self.episodes = Episodes()
        self.metrics = self.episodes.metrics
        self._raw: Array = np.zeros(0)
        self.obs: Array = np.zeros(0)

    @property
    def exact(self) -> bool:
        """Whether a run that is resumed from here continues as if it had never stopped."""
        return not self.why_not_exact

    @property
    def why_not_exact(self) -> list[str]:
        """Why it does not, in one line each."""
        return list(dict.fromkeys([*self._why_not_exact, *self._keeper.why_lost()]))

    def start(self) -> None:
        """Begin the first episodes."""
        if self._mode == AutoresetMode.DISABLED:
            self.obs = self._restart(self._all)
        else:  # such a vector environment may have a single generator, and takes one seed
            seed = self._new_seeds()[:1]
            self._raw = self.envs.reset(seed=int(seed[0]))[0]
            self._keeper.begin(self._all, np.repeat(seed, self.num_envs), self._raw)
            self.obs = self._observed(self._raw)
        self._check(np.zeros(self.num_envs, np.float32), self.obs)

    def begin_anew(self) -> None:
        """Begin new episodes, where others may have stepped the environments, or these are not those of before."""
        self.lost = self._all.copy()
        self.start()
        self._returns[:], self._lengths[:], self._resetting[:] = 0.0, 0, False

    def take_lost(self) -> Array | None:
        """Return `lost` and clear it."""
        lost, self.lost = self.lost, None
        return lost

    def step(self, action: Array, records: Mapping[str, Array] | None = None) -> Step:
        """Take the policy's actions `[B, ...]`; its records of them become part of the step."""
        obs, sent = self.obs, self._scale(action)
        if self._continuous and not all_finite(sent):
            raise UserError(f"training diverged at step {self.steps} (the policy's action is nan); lower learning_rate")
        taken = sent.copy() if self._continuous else sent  # an environment may change its own
        came = self.envs.step(sent)
        if self._users_own:
            for words in vector_complaints(self.envs.single_observation_space, self.num_envs, came):
                raise UserError(f"the vector environment at step {self.steps + self.num_envs}: {words}")
        self._raw, raw_reward, terminated, truncated, infos = came
        self._keeper.record(taken, self._raw, raw_reward, terminated, truncated)
        if self._unmasked and "action_mask" in infos:
            raise UserError("an environment returns info['action_mask'] from step only; reset must return one too")
        self.terminated, self.truncated = terminated, truncated
        done = terminated | truncated
        shown = self._observed(self._raw)
        next_obs = shown
        real = self._all
        any_done = bool(done.any())
        if self._mode == AutoresetMode.NEXT_STEP:
            real, self._resetting = ~self._resetting, done
        elif any_done and self._mode == AutoresetMode.SAME_STEP:
            next_obs = shown.copy()
            for b in np.flatnonzero(done):
                next_obs[b] = infos["final_obs"][b]
        elif any_done:
            shown = self._restart(done)
        self._check(raw_reward, next_obs)
        if shown is not next_obs:  # a reset's observation
            self._check(raw_reward, shown)
        self._count(raw_reward, done, real, any_done)
        self.obs = shown
        reward = np.asarray(raw_reward, np.float32)
        if self._reward_clip is not None:
            reward = np.clip(reward, -self._reward_clip, self._reward_clip)
        lost = lives_lost(infos, self.num_envs)
        if lost is not None:
            terminated = terminated | (lost & real)
        return Step(obs, action, reward, next_obs, terminated, truncated, real, records or {})

    def _restart(self, mask: Array) -> Array:
        """Begin new episodes in the masked environments; returns the observations of all environments."""
        seeds = self._new_seeds()
        self.seeds = np.where(mask, seeds, self.seeds)
        self._raw = reset_each(self.envs, seeds.tolist(), None if mask is self._all else mask)
        self._keeper.begin(mask, seeds, self._raw)
        return self._observed(self._raw)

    def _new_seeds(self) -> Array:
        return self.rng.integers(0, 2**31 - 1, self.num_envs)

    def _observed(self, raw: Any) -> Array:
        return np.array(raw, dtype=self.info.obs_dtype)

    def _check(self, reward: Array, obs: Array) -> None:
        numbers = self._unpack.floats(obs) if self._has_numbers else reward
        # As a vector, whatever its axes and their order: a kernel is compiled once for each kind of array.
        if all_finite(reward) and all_finite(numbers.ravel("K")):
            return
        for name, array in (("reward", reward), ("observation", numbers)):
            bad = np.argwhere(~np.isfinite(np.asarray(array, np.float64)))
            if len(bad):
                value = array[tuple(bad[0])]
                raise UserError(
                    f"the {name} of environment {bad[0][0]} is {value} at step {self.steps + self.num_envs}; "
                    "it must be finite (nothing was learned from it)"
                )

    def _count(self, reward: Array, done: Array, real: Array, any_done: bool) -> None:
        self.steps += self.num_envs if real is self._all else int(real.sum())
        self._returns += reward
        self._lengths += real
        if any_done:
            ended = [(float(self._returns[b]), int(self._lengths[b])) for b in np.flatnonzero(done)]
            self.episodes.add(ended, len(ended))
            self._returns[done] = 0.0
            self._lengths[done] = 0

    def state_dict(self) -> dict[str, Any]:
        lost = {} if self.lost is None else {"lost": torch.from_numpy(self.lost.copy())}
        return lost | {
            "steps": self.steps,
            "restarts": self.restarts,
            **self.episodes.state(),
            "returns": torch.from_numpy(self._returns.copy()),
            "lengths": torch.from_numpy(self._lengths.copy()),
            "resetting": torch.from_numpy(self._resetting.copy()),
            "raw": torch.from_numpy(np.array(self._raw)),
            "keeper": self._keeper.state_dict(),
            "memories": packed(_memories(self.envs)),
            "why_not_exact": list(self._why_not_exact),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore everything; an environment that cannot be brought back starts a new episode."""
        self._check_shapes(state)
        self.steps, self.restarts = state["steps"], state["restarts"]
        self.episodes.load(state["episodes"], state["recent"])
        self._returns, self._lengths = state["returns"].numpy().copy(), state["lengths"].numpy().copy()
        self._resetting = state["resetting"].numpy().copy()
        self._raw = state["raw"].numpy().copy()
        restored = self._keeper.restore(self.envs, state["keeper"], self._raw)
        differs = restored.differs
        left = not_restored(unpacked(state["memories"]), _memories(self.envs))
        left = {b: words for b, words in left.items() if not differs[b]}
        why = [f"{words}, so the episode starts again" for words in restored.why] + by_environment(left)
        self._why_not_exact = why or [f"{_EARLIER}{words.removeprefix(_EARLIER)}" for words in state["why_not_exact"]]
        self.obs = self._observed(self._raw)
        lost = differs | state["lost"].numpy() if "lost" in state else differs
        self.lost = lost.copy() if lost.any() else None
        if differs.any():
            self.restarts += 1
            if self._mode != AutoresetMode.DISABLED:  # they are reset together
                self.begin_anew()
                return
            self.obs = self._restart(differs)
            self._returns[differs], self._lengths[differs], self._resetting[differs] = 0.0, 0, False

    def go_on_anew(self, state: Mapping[str, Any], why: str) -> None:
        """Go on from the counts of a state, with new episodes: its environments were others."""
        check_like(state, {"steps": 0, "restarts": 0, "episodes": 0}, "it")
        self.steps, self.restarts = state["steps"], state["restarts"] + 1
        self.episodes.load(state["episodes"], state["recent"])
        self._why_not_exact = [why]
        self.begin_anew()

    def _check_shapes(self, state: Mapping[str, Any]) -> None:
        """Raise a ValueError if a state is not one of as many environments, with such observations."""
        check_like(state, {"steps": 0, "restarts": 0, "episodes": 0}, "it")
        each = {"returns": self._returns, "lengths": self._lengths, "resetting": self._resetting, "lost": self._all}
        check_like(state, to_tensors(each), "it")
        shape = (self.num_envs, *self.info.obs_shape)
        if tuple(state["raw"].shape) != shape:
            raise ValueError(f"observations of {list(state['raw'].shape)} do not fit {list(shape)}")

    def close(self) -> None:
        self.envs.close()


def _memories(envs: VectorEnv[Any, Any, Any]) -> list[Memory]:
    """What the objects of each environment hold; those of all, if they cannot be told apart."""
    if isinstance(envs, OwnProcesses):
        return envs.memories()
    return [memory_of(env) for env in envs.envs] if isinstance(envs, SyncVectorEnv) else [memory_of(envs)]
