"""The algorithms by name. An entry says where its SPEC is, and repeats what `list` prints without importing torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rl_training.experiment.references import is_reference, resolve_reference
from rl_training.types import ActionKind, Capabilities, UserError

if TYPE_CHECKING:
    from rl_training.algorithms.base import AlgorithmSpec


@dataclass(frozen=True)
class Entry:
    """One entry of the registry; a test checks that it equals the SPEC that it points to."""

    reference: str
    family: str
    summary: str
    capabilities: Capabilities


_ANY = Capabilities(
    observations=("vector", "image", "dict"), actions=("discrete", "multi_discrete", "multi_binary", "continuous")
)
_ANY_RECURRENT = replace(_ANY, recurrent=True)
_ANY_EITHER_WAY = replace(_ANY, recurrent="optional")
_CONTINUOUS = Capabilities(observations=("vector", "image", "dict"), actions=("continuous",))
_DISCRETE = Capabilities(observations=("vector", "image", "dict"), actions=("discrete",))


def _off_policy(name: str, summary: str, capabilities: Capabilities = _CONTINUOUS) -> Entry:
    return Entry(f"rl_training.algorithms.{name}:SPEC", "off_policy", summary, capabilities)


def _offline(name: str, summary: str, *actions: ActionKind) -> Entry:
    able = Capabilities(observations=_ANY.observations, actions=actions, offline=True)
    return Entry(f"rl_training.algorithms.{name}:SPEC", "offline", summary, able)


def _planning(name: str, summary: str) -> Entry:
    able = Capabilities(observations=_ANY.observations, actions=("discrete", "continuous"), two_player=True)
    return Entry(f"rl_training.algorithms.{name}:SPEC", "planning", summary, able)


REGISTRY: dict[str, Entry] = {
    "ppo": Entry("rl_training.algorithms.ppo:SPEC", "on_policy", "Proximal policy optimisation", _ANY),
    "a2c": Entry("rl_training.algorithms.a2c:SPEC", "on_policy", "Advantage actor-critic", _ANY),
    "trpo": Entry("rl_training.algorithms.trpo:SPEC", "on_policy", "Trust region policy optimisation", _ANY),
    "ppg": Entry("rl_training.algorithms.ppg:SPEC", "on_policy", "Phasic policy gradient", _ANY),
    "recurrent_ppo": Entry(
        "rl_training.algorithms.recurrent_ppo:SPEC",
        "on_policy",
        "PPO with a recurrent policy: LSTM or GRU",
        _ANY_RECURRENT,
    ),
    "gail": Entry(
        "rl_training.algorithms.gail:SPEC", "imitation", "Generative adversarial imitation learning on PPO", _ANY
    ),
    "impala": Entry(
        "rl_training.algorithms.impala:SPEC",
        "actor_learner",
        "Actor-critic on rollouts of older policies, corrected by V-trace",
        _ANY_EITHER_WAY,
    ),
    "appo": Entry(
        "rl_training.algorithms.appo:SPEC",
        "actor_learner",
        "PPO on rollouts of older policies, corrected by V-trace",
        _ANY_EITHER_WAY,
    ),
    "dqn": _off_policy("dqn", "Deep Q-learning: double, dueling, n-step, prioritised", _DISCRETE),
    "ddpg": _off_policy("ddpg", "Deep deterministic policy gradient"),
    "td3": _off_policy("td3", "Twin delayed deep deterministic policy gradient"),
    "sac": _off_policy("sac", "Soft actor-critic"),
    "redq": _off_policy("redq", "Randomized ensembled double Q-learning"),
    "tqc": _off_policy("tqc", "Truncated quantile critics"),
    "bc": _offline("bc", "Behaviour cloning", "continuous", "discrete", "multi_discrete", "multi_binary"),
    "awac": _offline("awac", "Advantage-weighted actor-critic", "continuous"),
    "iql": _offline("iql", "Implicit Q-learning", "continuous"),
    "cql": _offline("cql", "Conservative Q-learning", "continuous", "discrete"),
    "td3_bc": _offline("td3_bc", "TD3 whose actor stays near the data", "continuous"),
    "muzero": _planning("muzero", "Tree search in a learned model"),
    "gumbel_muzero": _planning("gumbel_muzero", "MuZero whose search improves the policy with few simulations"),
    "efficientzero": _planning("efficientzero", "MuZero with consistency, value prefixes and fresher targets"),
    "scalezero": Entry(
        "rl_training.algorithms.scalezero:SPEC",
        "multi_task",
        "One transformer world model that plans in several tasks",
        Capabilities(observations=_ANY.observations, actions=("discrete",), multi_task=True),
    ),
    "dreamer": Entry(
        "rl_training.algorithms.dreamer:SPEC",
        "world_model",
        "A world model, whose dreams a policy learns from",
        _ANY_RECURRENT,
    ),
}


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that is closest, in whatever letters, if one is close at all."""
    words = {other.lower(): other for other in known}
    near = difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=cutoff)
    return words[near[0]] if near else None


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known word is close, else an empty string."""
    near = nearest(word, known)
    return "" if near is None else f"; did you mean {near!r}?"


def proper_name(algo: str) -> str:
    """The registered name of an algorithm that is written in other letters, such as `PPO` or `TD3+BC`."""
    if algo in REGISTRY:
        return algo
    return {_plain(name): name for name in REGISTRY}.get(_plain(algo), algo)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def load_spec(algo: str) -> AlgorithmSpec:
    """The SPEC of a registered algorithm, or of a user's own given as `module:SPEC`."""
    from rl_training.algorithms.base import AlgorithmSpec

    algo = proper_name(algo)
    if algo in REGISTRY:
        spec = resolve_reference(REGISTRY[algo].reference, key="algo")
    elif is_reference(algo):
        spec = resolve_reference(algo, key="algo")
    else:
        known = ", ".join(REGISTRY)
        raise UserError(f"algo={algo!r}: unknown algorithm{suggest(algo, REGISTRY)} (known: {known}; or module:SPEC)")
    if not isinstance(spec, AlgorithmSpec):
        raise UserError(f"algo={algo!r}: it is a {type(spec).__name__}, not an AlgorithmSpec")
    return spec


def capable(observation: str, action: str, *, two_player: bool = False) -> list[str]:
    """The registered algorithms that support these kinds of spaces, and games for two players if asked for."""
    return [
        name
        for name, entry in REGISTRY.items()
        if observation in entry.capabilities.observations
        and action in entry.capabilities.actions
        and (entry.capabilities.two_player or not two_player)
    ]
