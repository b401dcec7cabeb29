"""The contract of an algorithm as a set of checks: `check_algorithm("ppo")`, or `check_algorithm("my_pkg:SPEC")`.

Each check trains for a few updates on a tiny environment and raises an AssertionError that says what is broken.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from types import CellType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Policy
from rl_training.algorithms.settings import ConfigPart, reported, setting_extra
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.fields import settings_of
from rl_training.experiment.registry import REGISTRY, load_spec
from rl_training.models.flat import FlatAdam, FlatGroup, FlatLaProp, FlatRMSprop, Follower, Learner
from rl_training.runtime.actors.actor import Steps
from rl_training.runtime.actors.sources import Source
from rl_training.runtime.actors.task_sources import sources_of
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from rl_training.runtime.train import Run, build, build_policy
from rl_training.runtime.trees import to_tensors
from rl_training.testing.compare import checkpoint_differences, differences
from rl_training.testing.tiny import TinyEnv
from rl_training.types import Array, UserError

_UPDATES = 2
# Small values, so that a check takes a fraction of a second; an algorithm gets those that it has.
_TINY = {
    "num_envs": 2,
    "n_steps": 6,
    "batch_size": 4,
    "n_epochs": 2,
    "hidden_sizes": [16],
    "rnn_hidden_size": 8,
    "buffer_size": 100,
    "learning_starts": 4,
    "train_every": 12,
    "updates_per_step": 0.5,
    "target_update_interval": 2,
    "policy_delay": 2,
    "aux_interval": 2,
    "n_critics": 4,
    "dataset": "rl_training.testing:tiny_dataset",
    "done_means": "terminal",
    "disc_updates": 2,
    "disc_batch_size": 8,
    "latent_size": 8,
    "num_simulations": 4,
    "unroll_steps": 2,
    "sampled_actions": 5,
    "width": 32,
    "layers": 1,
    "expert_size": 8,
    "size": "xxs",
    "batch_length": 3,
    "imagination_horizon": 3,
}
# What only learning needs.
_LEARNING = (Algorithm, FlatAdam, FlatGroup, FlatLaProp, FlatRMSprop, Follower, Learner, torch.optim.Optimizer)
# The probe of a setting that names a run.
_A_RUN = "rl_training.testing:a run"


def tiny_config(algo: str, env: Mapping[str, Any] | None = None, *, tasks: int = 0, **values: Any) -> Config:
    """A config of the algorithm for a few quick updates on `TinyEnv`, whose arguments are `env`.

    With `tasks` it is a config of so many tasks on `TinyEnv`, which differ in their number of environments.
    """
    spec = load_spec(algo)
    known = settings_of(spec)
    base: dict[str, Any] = {
        "algo": algo,
        "env_id": "rl_training.testing:TinyEnv",
        "env_kwargs": {"actions": spec.capabilities.actions[0], **(env or {})},
        "total_timesteps": 1_000,
        "eval_episodes": 2,
    }
    if tasks:
        env_id = base.pop("env_id")
        named = {f"task{number}": {"env_id": env_id, "num_envs": 2 + number} for number in range(tasks)}
        named["task0"]["target_return"] = -1_000.0  # any episode reaches it
        base["tasks"] = named
    return load_config(base | {name: value for name, value in _TINY.items() if name in known}, **values)


def _started(config: Config) -> Run:
    run = build(config)
    run.start()
    return run


def _advanced(run: Run, updates: int = _UPDATES) -> Checkpoint:
    for _ in range(updates):
        run.advance()
    return run.snapshot()


def _trained(config: Config, updates: int = _UPDATES) -> Checkpoint:
    run = _started(config)
    try:
        _advanced(run, updates)
        run.eval_metrics = run.evaluate(2).metrics()
        return _detached(run.snapshot())
    finally:
        run.close()


def _detached(checkpoint: Checkpoint) -> Checkpoint:
    """A copy that later updates do not change."""
    with tempfile.TemporaryDirectory() as folder:
        return read_checkpoint(write_checkpoint(Path(folder) / "step_0", checkpoint))


def check_trains(algo: str, **settings: Any) -> None:
    """Check that it trains on all spaces that it claims, refuses the others, and reports finite numbers."""
    able = load_spec(algo).capabilities
    for actions in TinyEnv.ACTIONS:
        _check_trains_on(algo, {"actions": actions}, actions in able.actions, settings)
    for observations in TinyEnv.OBSERVATIONS:
        claimed = observations in able.observations
        _check_trains_on(algo, {"observations": observations}, claimed, settings)
        if claimed and able.actions != ("continuous",):
            _check_trains_on(algo, {"observations": observations, "masked": True}, claimed, settings)


def _check_trains_on(algo: str, env: Mapping[str, Any], claimed: bool, settings: Mapping[str, Any]) -> None:
    config = tiny_config(algo, env, **settings)
    if not claimed:
        try:
            build(config)
        except UserError:
            return
        raise AssertionError(f"{algo} was built for {env}, which it does not claim to support")
    run = _started(config)
    before = _detached(run.snapshot())
    after = _advanced(run)
    run.close()
    assert differences(before.policy, after.policy), f"{algo}: training on {env} did not change the policy"
    for name, value in run.metrics.items():
        assert math.isfinite(value), f"{algo}: metric {name} is {value}"
    for name in reported(config.algorithm):
        expected = getattr(config.algorithm, name)
        if name in config.controls:
            expected = config.controls[name].at(run.steps, config.run.total_timesteps)
        elif isinstance(expected, str):  # "auto" is learned
            expected = run.algorithm.current(name)
        assert run.metrics.get(name) == expected, f"{algo}: {name} is not in the metrics as {expected}"


def check_resumes(algo: str, **settings: Any) -> None:
    """Check that a run that is saved, loaded and continued equals one that never stopped, to the bit."""
    able = load_spec(algo).capabilities
    kinds: list[dict[str, Any]] = [{"actions": actions} for actions in able.actions]
    kinds += [{"masked": True}] if able.actions != ("continuous",) else []
    for env in kinds:
        config = tiny_config(algo, env, **settings)
        straight = _started(config)
        saved = _detached(_advanced(straight))
        resumed = build(config)
        resumed.load(saved)
        found = checkpoint_differences(_advanced(straight), _advanced(resumed))
        straight.close()
        resumed.close()
        assert not found, f"{algo}: resuming on {env} changed {found[:5]}"


def check_deterministic(algo: str, **settings: Any) -> None:
    """Check that equal seeds make equal runs, and that another seed makes a different one."""
    first, again = (_trained(tiny_config(algo, **settings)) for _ in range(2))
    found = checkpoint_differences(first, again)
    assert not found, f"{algo}: two runs of one seed differ in {found[:5]}"
    other = _trained(tiny_config(algo, **settings, seed=1))
    assert differences(first.policy, other.policy), f"{algo}: the seed has no effect"


def check_evaluation_is_invisible(algo: str, **settings: Any) -> None:
    """Check that evaluating between updates does not change training."""
    plain, evaluated = _started(tiny_config(algo, **settings)), _started(tiny_config(algo, **settings))
    for _ in range(_UPDATES):
        plain.advance()
        evaluated.evaluate(2)
        evaluated.advance()
        evaluated.evaluate(3)
    found = checkpoint_differences(plain.snapshot(), evaluated.snapshot())
    first, second = evaluated.evaluate(2), evaluated.evaluate(2)
    plain.close()
    evaluated.close()
    assert not found, f"{algo}: evaluation changed {found[:5]}"
    assert first == second, f"{algo}: two evaluations of one policy differ"


def check_policy_stands_alone(algo: str, **settings: Any) -> None:
    """Check that the policy can be built without the learner and then acts in the same way.

    With the tensors of the trained policy it takes the same greedy actions. It holds no optimiser or target network,
    and what it records is what it declares.
    """
    able = load_spec(algo).capabilities
    kinds: list[dict[str, Any]] = [{"actions": actions} for actions in able.actions]
    kinds += [{"masked": True}] if able.actions != ("continuous",) else []
    for env in kinds:
        config = tiny_config(algo, env, **settings)
        run = _started(config)
        trained = run.algorithm.policy
        _advanced(run)
        alone, surroundings = build_policy(_without_dataset(config))
        alone.load_policy_state({name: tensor.clone() for name, tensor in trained.policy_state().items()})
        rows, task = _shown(run), config.tasks[0]
        acts, alone_acts = (_greedy_acts(policy.for_task(task), rows) for policy in (trained, alone))
        returns = run.evaluate(2), surroundings.evaluator(alone, 2)
        run.close()
        surroundings.evaluator.close()
        found = differences(acts, alone_acts)
        assert not found, f"{algo}: alone, the policy acts differently on {env}: {found[:5]}"
        assert returns[0] == returns[1], f"{algo}: alone, the policy is evaluated differently on {env}"
        learning = sorted({type(part).__name__ for part in _reachable(alone) if isinstance(part, _LEARNING)})
        assert not learning, f"{algo}: the policy holds {', '.join(learning)}, which only learning needs"
        _check_records(algo, alone.for_task(task), rows)


def _shown(run: Run) -> Array:
    """Some observations: what the environments show, or the first of a dataset."""
    if run.config.loop.collects:
        source: Source = sources_of(run.source)[run.config.tasks[0]]
        return source.gather(1, Steps())[0].obs
    assert run.loop.dataset is not None
    return run.loop.dataset.obs[:8]


def _without_dataset(config: Config) -> Config:
    """The same config, with a dataset that cannot be read."""
    return config.replace(dataset="rl_training.testing:no_dataset") if "dataset" in config.flat() else config


def _greedy_acts(policy: Policy, rows: Array, steps: int = 3) -> list[Any]:
    """The greedy actions for the same observations several times in a row, and what is carried in between."""
    carry, rng = policy.initial_carry(len(rows)), np.random.default_rng(0)
    found: list[Any] = []
    for _ in range(steps):
        act = policy.act(rows, carry, explore=False, rng=rng)
        carry = act.carry
        found.append(deepcopy((act.action, carry)))
    return found


def _check_records(algo: str, policy: Policy, rows: Array) -> None:
    """Check names, shapes and dtypes of the records of explored and of random actions."""
    declared = {name: tuple(kind) for name, kind in policy.records(policy.info).items()}
    carry, rng = policy.initial_carry(len(rows)), np.random.default_rng(0)
    for act in (policy.act(rows, carry, explore=True, rng=rng), policy.act_randomly(rows, carry, rng=rng)):
        found = {name: (array.shape[1:], str(array.dtype)) for name, array in act.records.items()}
        assert found == declared, f"{algo}: the policy records {found}; it declares {declared}"
        assert all(len(array) == len(rows) for array in act.records.values()), f"{algo}: records of {len(rows)} rows"
        if act.carry is not None and not policy.carry_per_rollout:
            begun = policy.begin_episodes(act.carry, np.ones(len(rows), np.bool_))
            # As tensors, which are compared by value: -0 is 0.
            same = not differences(to_tensors(begun), to_tensors(policy.initial_carry(len(rows))))
            assert same, f"{algo}: where episodes begin, begin_episodes must return what initial_carry returns"


def _reachable(root: Any) -> Iterator[Any]:
    """All objects that an object holds, directly or through others."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (type, ModuleType, np.ndarray)):
            continue
        seen.add(id(value))
        yield value
        waiting += list(getattr(value, "__dict__", {}).values())
        waiting += [getattr(value, name) for name in getattr(value, "__slots__", ()) if hasattr(value, name)]
        waiting += [getattr(value, "__self__", None), *(cell.cell_contents for cell in _closure(value))]
        if isinstance(value, partial):
            waiting += [value.func, value.args, value.keywords]
        elif isinstance(value, Mapping):
            waiting += list(value.values())
        elif isinstance(value, (list, tuple, set)):
            waiting += list(value)


def _closure(value: Any) -> tuple[CellType, ...]:
    return getattr(value, "__closure__", None) or ()


def check_settings_are_live(algo: str, **settings: Any) -> None:
    """Check that every setting of the algorithm, its model and its loop has an effect."""
    spec = load_spec(algo)
    dead = []
    unchanged: dict[str, Checkpoint] = {}  # most settings are compared with the same run
    known = settings_of(spec).keys() | ({"tasks"} if spec.capabilities.multi_task else set())
    for part in (spec.config, spec.loop, spec.model):
        for name in part.model_fields:
            conditions = dict(setting_extra(part, name)["live_when"])
            env = {key: conditions.pop(key) for key in ("actions", "observations") if key in conditions}
            if any(kind not in getattr(spec.capabilities, key) for key, kind in env.items()):
                continue  # shared with algorithms that support more
            unknown = conditions.keys() - known - _all_settings()
            assert not unknown, f"{algo}: live_when of {name!r} names what is no setting: {', '.join(sorted(unknown))}"
            # A setting that another algorithm shares may depend on one that this algorithm does not have.
            given = settings | {key: value for key, value in conditions.items() if key in known}
            base = tiny_config(algo, env, **given)
            with _another_value(part, name, base) as value:
                other = tiny_config(algo, env, **given | {name: value})
                if part is spec.model and differences(_untrained_policy(base), _untrained_policy(other)):
                    continue  # other networks from the start; that they then learn differently takes longer to see
                changed = _trained(other)
            if repr(base) not in unchanged:
                unchanged[repr(base)] = _trained(base)
            if not _behaves_differently(unchanged[repr(base)], changed):
                dead.append(name)
    assert not dead, f"{algo}: these settings change nothing: {', '.join(dead)}"


def _untrained_policy(config: Config) -> dict[str, Tensor]:
    run = build(config)
    try:
        return run.algorithm.policy.policy_state()
    finally:
        run.close()


@cache
def _all_settings() -> frozenset[str]:
    """The settings of all registered algorithms."""
    return frozenset(name for algo in REGISTRY for name in settings_of(load_spec(algo)))


def _behaves_differently(a: Checkpoint, b: Checkpoint) -> bool:
    """Whether weights, optimisers, environments or evaluations differ.

    A metric that only repeats a setting does not count.
    """
    learned = differences((a.policy, a.state["algorithm"]), (b.policy, b.state["algorithm"]))
    return bool(learned or differences((a.envs, a.meta["eval"]), (b.envs, b.meta["eval"])))


@contextmanager
def _another_value(part: type[ConfigPart], name: str, config: Config) -> Iterator[Any]:
    """Yield a value that should have an effect; a run that it names exists until the end."""
    if setting_extra(part, name)["probe"] != _A_RUN:
        yield _guessed_value(part, name, config)
        return
    with tempfile.TemporaryDirectory() as folder:
        run = _started(config)
        yield str(write_checkpoint(Path(folder) / "step_0", _advanced(run)))
        run.close()


def _guessed_value(part: type[ConfigPart], name: str, config: Config) -> Any:
    probe = setting_extra(part, name)["probe"]
    value = config.flat()[name]
    if probe is not None:
        assert probe != value, f"the probe of {name} is the value that it already has"
        return probe
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    assert isinstance(value, float), f"{name} needs a probe: no other value can be guessed from {value!r}"
    return value * 0.5 if value else 0.1


CHECKS = (
    check_trains,
    check_resumes,
    check_deterministic,
    check_evaluation_is_invisible,
    check_policy_stands_alone,
    check_settings_are_live,
)


def check_algorithm(algo: str, **settings: Any) -> None:
    """Run every check, for a registered algorithm or your own SPEC given as `module:SPEC`.

    `tasks=2` checks an algorithm that learns several tasks with two of them.
    """
    for check in CHECKS:
        check(algo, **settings)
