"""The picture of what a world model imagines: which episode, what is drawn of it, and what is refused."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import UserError, train
from rl_training.algorithms.parts.dreaming_policy import DreamerPolicy
from rl_training.models.rssm import WorldState
from rl_training.runtime.evaluate import Walk, in_its_own
from rl_training.runtime.imagination_plot import draw_imagination, film, plot_imagination
from rl_training.runtime.imagination_view import view_imagination
from rl_training.runtime.saved_policy import load_policy
from run_helpers import Command, tiny

matplotlib = pytest.importorskip("matplotlib")

SMALL: dict[str, Any] = {"num_envs": 2, "vectorization": "sync", "eval_episodes": 1, "total_timesteps": 48}
TINY_WORLD: dict[str, Any] = {"size": "xxs", "deter": 16, "hidden": 8, "units": 8, "stoch": 4, "classes": 4}
TINY_WORLD |= {"blocks": 2, "bins": 15, "batch_size": 2, "batch_length": 4, "learning_starts": 16}
KINDS: dict[str, dict[str, Any]] = {
    "cartpole": {"env_id": "CartPole-v1"},
    "pendulum": {"env_id": "Pendulum-v1"},
    "image": {"env_id": "rl_training.testing:TinyEnv", "env_kwargs": {"observations": "image"}, "depth": 2},
    "dict": {"env_id": "rl_training.testing:TinyEnv", "env_kwargs": {"observations": "dict"}, "depth": 2},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of every kind; they are only read."""
    folder = tmp_path_factory.mktemp("dreams")
    for kind, settings in KINDS.items():
        train(tiny(algo="dreamer", **SMALL, **TINY_WORLD, **settings), run_dir=folder / kind)
    train(tiny(total_timesteps=24), run_dir=folder / "ppo")
    return folder


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def walked(run: Path, seed: int, steps: int) -> tuple[DreamerPolicy, Walk]:
    saved = load_policy(run)
    assert isinstance(saved.policy, DreamerPolicy)
    evaluator = in_its_own(saved.config.run, saved.config.loop, saved.info)
    walk = evaluator.walk(saved.policy, seed, steps)
    evaluator.close()
    return saved.policy, walk


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_real_is_the_episode_of_an_evaluation(kind: str, runs: Path) -> None:
    view = view_imagination(runs / kind, seed=3, step=2, horizon=4)
    _, walk = walked(runs / kind, 3, 6)
    steps = len(walk.action)
    assert view.context == 2
    assert view.steps == steps > 2
    np.testing.assert_allclose(view.real.heads["reward"], [0.0, *walk.reward], rtol=1e-6)
    np.testing.assert_array_equal(view.real.heads["continuation"], [1.0] * steps + [0.0 if walk.terminated else 1.0])
    for real, dreamt in zip(view.real, view.dreamt, strict=True):
        assert real.keys() == dreamt.keys()
        for name in real:
            assert real[name].shape == (steps + 1, *dreamt[name].shape[2:])
            assert dreamt[name].shape[1] == steps - 2
    if kind == "cartpole":
        np.testing.assert_array_equal(view.real.parts[""], walk.obs)


def test_dreams_begin_in_the_state_that_was_seen_and_do_the_same(runs: Path) -> None:
    """With a latent that is certain, a dream is the model's own chain from the state after the context."""
    policy, walk = walked(runs / "pendulum", 0, 6)
    world = policy.network.world
    view = view_imagination(runs / "pendulum", seed=0, step=3, horizon=3)
    assert view.dreamt.heads["reward"].std(axis=0).max() > 0.0, "dreams differ by their latents"
    for head in (world.rssm.prior_head, world.rssm.posterior_head):  # all latents are of the first class
        last = list(head.parameters())[-1]
        with torch.no_grad():
            last.view(-1, policy.size.classes).copy_(torch.tensor([1e4, 0.0, 0.0, 0.0]))
    from rl_training.runtime import imagination_view

    world.rssm.unimix = 0.0
    real, dreamt = imagination_view._compared(policy, walk, 3, gamma=1.0)
    with torch.inference_mode():
        state, action = world.rssm.initial(1), torch.zeros(1, 1)
        values = []
        for step in range(7):
            deter = world.rssm.advance(state, action)
            latent = torch.zeros(1, policy.size.stoch, policy.size.classes)
            latent[..., 0] = 1.0
            state = WorldState(deter, latent)
            values.append(float(policy.network.value.mean(policy.network.value(state.features))))
            action = torch.from_numpy(walk.action[step : step + 1]) if step < 6 else action
    np.testing.assert_allclose(real.heads["value"], values, atol=1e-4)
    np.testing.assert_allclose(
        dreamt.heads["value"], np.broadcast_to(values[4:], dreamt.heads["value"].shape), atol=1e-4
    )


def test_numbers_are_curves_and_images_are_frames(runs: Path) -> None:
    figure = draw_imagination(view_imagination(runs / "cartpole", step=2, horizon=4))
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    numbers = [f"observation {number}" for number in range(4)]
    assert titles == [*numbers, "reward", "value", "probability of going on"]
    figure = draw_imagination(view_imagination(runs / "image", step=1, horizon=3))
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert titles[0] == "step 2"
    assert titles[-3:] == ["reward", "value", "probability of going on"]


class NamedLikeHeads(gym.Env[Any, Any]):
    """Its observations have parts with the names of what a model says of states; every reward is 7."""

    observation_space = gym.spaces.Dict(
        {name: gym.spaces.Box(-9.0, 9.0, (k + 2,)) for k, name in enumerate(("reward", "value", "continuation"))}
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._seen(), 7.0, False, False, {}

    def _seen(self) -> dict[str, Any]:
        return {name: np.full(space.shape, -3.0, np.float32) for name, space in self.observation_space.spaces.items()}


def test_parts_may_have_the_names_of_heads(tmp_path: Path) -> None:
    env = {"env_id": f"{__name__}:NamedLikeHeads", "time_limit": 8}
    train(tiny(algo="dreamer", **SMALL, **TINY_WORLD, **env), run_dir=tmp_path)
    view = view_imagination(tmp_path, step=2, horizon=3)
    np.testing.assert_array_equal(view.real.heads["reward"], [0.0, 7.0, 7.0, 7.0, 7.0, 7.0])
    for number, name in enumerate(("reward", "value", "continuation")):
        np.testing.assert_array_equal(view.real.parts[name], np.full((6, number + 2), -3.0))
        assert view.dreamt.parts[name].shape[1:] == (3, number + 2)
        assert view.dreamt.heads[name].shape[1:] == (3,)
    titles = [panel.get_title() for panel in draw_imagination(view).axes]
    assert {"reward 0", "value 2", "continuation 3", "reward", "value"} <= set(titles)


def test_a_film_shows_the_real_frames_until_the_dream_begins(runs: Path) -> None:
    from PIL import Image

    view = view_imagination(runs / "image", step=1, horizon=3)
    shown = Image.open(io.BytesIO(film(view, view.images[0])))
    assert shown.n_frames == view.steps + 1  # type: ignore[attr-defined]
    for number in range(view.steps + 1):
        shown.seek(number)
        pixels = np.asarray(shown.convert("L"), int)
        left, right = pixels[:, : len(pixels)], pixels[:, -len(pixels) :]  # frames are square
        assert (np.abs(left - right).mean() < 1.0) == (number <= view.context)


def test_the_command_says_what_it_wrote(runs: Path, command: Command, tmp_path: Path) -> None:
    for kind in ("cartpole", "image"):
        shutil.copytree(runs / kind, tmp_path / kind)
    said = command("plot", "cartpole", "--imagination", "--step", "2", "--horizon", "3", "--seed", "1")
    assert "imagined 3 steps from step 2 of the episode with seed 1" in said.out
    assert (tmp_path / "cartpole/imagination.png").is_file()
    assert not (tmp_path / "cartpole/imagination.gif").exists()
    said = command("plot", "image", "--imagination", "--step", "1", "--output", "dream.svg", "--trust")
    assert (tmp_path / "dream.svg").is_file()
    assert (tmp_path / "dream.gif").read_bytes().startswith(b"GIF8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ppo", "--imagination"], "ppo has no world model; runs of dreamer have one"),
        (["cartpole", "--imagination", "--search"], "--search, --imagination: are different pictures"),
        (["cartpole", "--imagination", "--simulations", "3"], "--simulations: is for --search alone"),
        (["cartpole", "--search", "--horizon", "3"], "--horizon: is for --imagination alone"),
        (["cartpole", "--step", "3"], "--step: is for --search and --imagination alone"),
        (["cartpole", "ppo", "--imagination"], "--imagination: draws one run and takes no --metric; got 2 runs"),
        (["cartpole", "--imagination", "--step", "400"], "step=400: the episode with seed 0 is over after"),
        (["cartpole", "--imagination", "--output", "x.gif"], "must end with one of .png, .svg, .pdf"),
    ],
)
def test_wrong_requests_are_one_line(words: list[str], message: str, runs: Path, command: Command) -> None:
    words = [str(runs / word) if (runs / word).is_dir() else word for word in words]
    said = command("plot", *words)
    assert said.code == 2
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_a_view_needs_a_step_within_the_episode(runs: Path) -> None:
    with pytest.raises(UserError, match="over after"):
        plot_imagination(runs / "cartpole", step=450)
