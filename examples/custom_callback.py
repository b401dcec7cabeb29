"""Custom callbacks, used as `callbacks: [custom_callback:Diary, custom_callback:stop_after_1000_episodes]`.

Run this file, or name them on the command line, from this folder:

    rl-training train ppo/cartpole total_timesteps=10000 eval_interval=2000 callbacks=[custom_callback:Diary]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training import PPO, Callback
from rl_training.runtime.train import Run
from rl_training.types import Metrics


class Diary(Callback):
    """Writes the return of every evaluation to `diary.txt` in the run's folder.

    Its lines are in `state_dict`, so they are part of the checkpoint: a run that was killed and resumed writes the same
    diary as an uninterrupted one.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_eval(self, run: Run, metrics: Metrics) -> None:
        self.lines.append(f"step {run.steps}: return {metrics['eval_return_mean']:.2f}")

    def on_end(self, run: Run) -> None:
        if run.folder is not None:  # an agent without output_dir writes nothing
            (run.folder.path / "diary.txt").write_text("\n".join(self.lines) + "\n")

    def state_dict(self) -> dict[str, Any]:
        return {"lines": list(self.lines)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lines = list(state["lines"])


class StopAfterEpisodes(Callback):
    """Ends the run regularly after a number of episodes."""

    def __init__(self, episodes: int) -> None:
        self.episodes = episodes

    def on_step(self, run: Run, metrics: Metrics) -> None:
        if metrics["episodes"] >= self.episodes:
            run.request_stop(f"{self.episodes} episodes were played")


# A reference names a class, which is called without arguments, or an object such as this one.
stop_after_1000_episodes = StopAfterEpisodes(1000)


if __name__ == "__main__":
    diary = Diary()
    agent = PPO("CartPole-v1", n_steps=64, eval_interval=2_000)
    agent.learn(50_000, callback=[diary, StopAfterEpisodes(120)])
    print("\n".join(diary.lines))
    print(f"stopped at step {agent.num_timesteps}")
