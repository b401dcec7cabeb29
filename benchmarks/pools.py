"""What a pool of workers gains: the same training from several sources, in turns, by the clock.

    python benchmarks/pools.py cores
    python benchmarks/pools.py uneven --seconds 20 --rounds 5
    python benchmarks/pools.py ray

Steps that wait, as for a simulator on another machine, take no computing. Run it on an idle machine of two cores or
more: what else runs takes from the side that uses more cores.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any, NamedTuple

import gymnasium as gym

from rl_training.experiment.config import load_config
from rl_training.runtime.run import Run
from rl_training.runtime.train import build


class Waiting(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose steps wait 5 ms on average; heavy-tailed: most of them less, few of them many times that."""

    def __init__(self, mean: float = 0.005, shape: float = 1.5) -> None:
        super().__init__(gym.make("CartPole-v1"))
        # The mean of Pareto's distribution from 1 on is shape / (shape - 1); 0.2 s is the longest step.
        self._least, self._shape = mean * (shape - 1) / shape, shape
        self._times = random.Random()

    def next_wait(self) -> float:
        return min(0.2, self._least * self._times.paretovariate(self._shape))

    def step(self, action: Any) -> Any:
        time.sleep(self.next_wait())
        return super().step(action)


class Computing(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose steps compute for a while."""

    def __init__(self, seconds: float = 0.001) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass
        return super().step(action)


class Work(NamedTuple):
    """Settings that all sides have, and those of each. Ratios are the last side's rate by each of the others'."""

    what: str
    shared: dict[str, Any]
    sides: dict[str, dict[str, Any]]


WORKS = {
    "cores": Work(
        "IMPALA, CartPole-v1, 128 environments, rollouts of 64 steps",
        {"algo": "impala", "env_id": "CartPole-v1", "num_envs": 128, "n_steps": 64},
        {
            "inline, one worker, no lag": {},
            "inline": {"num_workers": 2, "lag": 4},
            "two processes": {"actors": "process", "num_workers": 2, "lag": 4},
        },
    ),
    "uneven": Work(
        "PPO, 8 environments whose steps wait 5 ms, heavy-tailed",
        {"algo": "ppo", "env_id": "pools:Waiting", "num_envs": 8, "n_steps": 64, "batch_size": 128, "n_epochs": 2},
        {"vectorization: async": {"vectorization": "async"}, "processes": {"actors": "process", "num_workers": 8}},
    ),
    "ray": Work(
        "IMPALA, 2 workers, rollouts of 100 steps that compute 1 ms each",
        {"algo": "impala", "env_id": "pools:Computing", "num_envs": 2, "n_steps": 100, "num_workers": 2, "lag": 4},
        {"processes": {"actors": "process"}, "ray": {"actors": "ray"}},
    ),
}


def rate(run: Run, seconds: float) -> float:
    """Environment steps a second, by the clock."""
    before, began = run.steps, time.perf_counter()
    while time.perf_counter() - began < seconds:
        run.advance()
    return (run.steps - before) / (time.perf_counter() - began)


def measured(work: Work, seconds: float, rounds: int) -> dict[str, list[float]]:
    """The rates of all sides, which take turns; a slice of each is not counted."""
    configs = {name: {**work.shared, **side, "total_timesteps": 10**9} for name, side in work.sides.items()}
    runs = {name: build(load_config(config)) for name, config in configs.items()}
    try:
        for run in runs.values():
            run.start()
            rate(run, min(seconds, 3.0))
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                found[name].append(rate(run, seconds))
        return found
    finally:
        for run in runs.values():
            run.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a slice")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    work = WORKS[asked.work]
    print(work.what)
    found = measured(work, asked.seconds, asked.rounds)
    for name, rates in found.items():
        print(f"  {name}: {_in_words(rates, ',.0f')} steps/s")
    *others, last = found
    for name in others:
        ratios = [ours / theirs for ours, theirs in zip(found[last], found[name], strict=True)]
        print(f"  {last} / {name}: {_in_words(ratios, '.2f')}")


def _in_words(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
