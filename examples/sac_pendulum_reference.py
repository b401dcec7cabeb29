"""SAC on Pendulum, from a config to a trained policy: the main calls of the package, in their usual order.

python sac_pendulum_reference.py            within a minute: the pendulum is swung up and held
python sac_pendulum_reference.py --smoke    seconds: the same calls with little work in them, and nothing learned
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from rl_training import SAC, evaluate_checkpoint, load_config, resume_training, train_sac
from rl_training.types import Array

SETTINGS: dict[str, Any] = {
    "env_id": "Pendulum-v1",
    "total_timesteps": 12_000,
    "num_envs": 1,
    # Experience: random actions first, then one gradient update for every step, from the latest 12,000 transitions.
    "buffer_size": 12_000,
    "learning_starts": 500,
    "updates_per_step": 1.0,
    # Learning: two small critics and an actor. The weight of the entropy is learned, starting from 0.2.
    "hidden_sizes": [64, 64],
    "batch_size": 128,
    "ent_coef": "auto_0.2",
    # Any float can be scheduled: this one falls from 2e-3 to 5e-4 over the run.
    "learning_rate": 2e-3,
    "learning_rate_schedule": 5e-4,
    # Control: evaluate the policy on ten fixed episodes every 1,000 steps; two good evaluations in a row end the run.
    "eval_interval": 1_000,
    "eval_episodes": 10,
    "early_stopping": {"target_value": -200.0, "sustained": 2},
}
SMOKE: dict[str, Any] = {
    "total_timesteps": 300,
    "learning_starts": 100,
    "hidden_sizes": [8],
    "batch_size": 8,
    "eval_interval": 100,
    "eval_episodes": 1,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="SAC on Pendulum.")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds that learns nothing")
    parser.add_argument("--output-dir", default="runs", help="parent folder of the run folder (runs)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)

    # The whole config is checked before anything happens: a wrong key, value or schedule raises one clear message.
    changes = SMOKE if given.smoke else {}
    config = load_config("sac", **{**SETTINGS, **changes}, seed=given.seed, output_dir=given.output_dir)

    # The result holds the final metrics, why the run ended, and the run's folder.
    result = train_sac(config)
    print(f"trained    {result['step']:.0f} steps: return {result['eval_return_mean']:.1f} ({result.stop_reason})")
    print(f"learned    ent_coef {result['ent_coef']:.4f}, last learning rate {result['learning_rate']:.2g}")

    run_dir = result.run_dir
    assert run_dir is not None  # only an agent without output_dir has none

    # A checkpoint contains the whole policy. `which="best"` takes the one with the best evaluation.
    best = evaluate_checkpoint(run_dir, which="best", num_episodes=1 if given.smoke else 20)
    print(f"evaluated  the best checkpoint, of step {best['step']:.0f}: return {best['eval_return_mean']:.1f}")

    # A run continues from its last checkpoint, replay included. It has ended, so it gets more steps and no early stop.
    more = int(result["step"]) + (config.run.eval_interval or 1_000)
    resumed = resume_training(run_dir, total_timesteps=more, early_stopping=())
    print(f"resumed    to step {resumed['step']:.0f}: return {resumed['eval_return_mean']:.1f}")

    # The policy as an object, for your own code.
    agent = SAC.load(run_dir)
    print(f"played     one episode by predict: return {play(agent):.1f}")
    print(f"run        {run_dir}")


def play(agent: SAC) -> float:
    """Play one episode in a plain Gymnasium environment: actions are in its own units, here torques in [-2, 2]."""
    env = gym.make("Pendulum-v1")
    obs: Array = env.reset(seed=7)[0]
    total, over = 0.0, False
    while not over:
        action, _ = agent.predict(obs, deterministic=True)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    env.close()
    return total


if __name__ == "__main__":
    main()
