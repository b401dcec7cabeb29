"""AWAC on Pendulum: learn from a dataset that comes with the package, compare, then continue online.

python awac_pendulum.py                                    a few minutes: better than the data, then better still
python awac_pendulum.py --updates 20 --online-steps 60     seconds: the same calls, and nothing learned
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rl_training import AWAC, load_config, train_awac


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="AWAC on Pendulum, offline and then online.")
    parser.add_argument("--updates", type=int, default=10_000, help="gradient updates from the dataset (10000)")
    parser.add_argument("--online-steps", type=int, default=4_000, help="environment steps after that (4000)")
    parser.add_argument("--output-dir", default="runs", help="parent folder of the two run folders (runs)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    shared = {"seed": given.seed, "output_dir": given.output_dir}

    # Offline, everything counts updates. The preset names the dataset; `dataset="medium.npz"` would name another.
    offline = train_awac(
        load_config(
            "awac/pendulum",
            total_updates=given.updates,
            eval_interval=max(1, given.updates // 5),
            early_stopping={"target_value": -200.0, "sustained": 2},
            **shared,
        )
    )
    print(f"offline    {offline['step']:.0f} updates: return {offline['eval_return_mean']:.1f} ({offline.stop_reason})")
    # For comparison: the mean return of the data, and that of behaviour cloning on it.
    print(f"baselines  data {offline['dataset_return_mean']:.1f}, behaviour cloning {offline['bc_return_mean']:.1f}")

    # Online, from the networks, optimisers and scales of that run; half of every minibatch comes from the dataset.
    online = train_awac(
        load_config(
            "awac/pendulum",
            start_from=str(offline.run_dir),
            offline_fraction=0.5,
            total_timesteps=given.online_steps,
            num_envs=1,
            **shared,
        )
    )
    print(f"online     {online['step']:.0f} steps: return {online['eval_return_mean']:.1f} ({online.stop_reason})")

    # Both runs can be loaded like any other.
    assert online.run_dir is not None
    agent = AWAC.load(online.run_dir)
    print(f"evaluated  on 20 episodes: return {agent.evaluate(20).mean:.1f}")
    print(f"runs       {offline.run_dir} {online.run_dir}")


if __name__ == "__main__":
    main()
