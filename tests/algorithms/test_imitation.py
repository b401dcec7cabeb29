"""Whom a policy imitates: what is drawn from demonstrations, and what comes of good, bad, long and short ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance import DISCRETE, agent, played
from offline_data import public_file
from rl_training.algorithms.gail import GAIL
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.demonstrations import Occupancy, of_dataset, of_rollout
from rl_training.experiment.config import load_config
from rl_training.runtime.train import Run, build

# Everything is small and quick; the discriminator is quicker than the policy.
QUICK: dict[str, Any] = {
    "algo": "gail",
    "num_envs": 8,
    "n_steps": 16,
    "n_epochs": 5,
    "batch_size": 128,
    "hidden_sizes": [16],
    "disc_hidden_sizes": [32],
    "learning_rate": 5e-3,
    "disc_learning_rate": 1e-2,
    "disc_updates": 8,
    "gradient_penalty_coef": 1.0,
    "gamma": 0.9,
    "ent_coef": 0.01,
    "eval_episodes": 30,
}


def imitating(world: str, data: str, steps: int, **settings: Any) -> Run:
    """A run to its end, in memory."""
    names = {"env_id": f"imitation_worlds:{world}", "dataset": f"imitation_worlds:{data}"}
    run = build(load_config(QUICK | names | {"total_timesteps": steps} | settings))
    run.start()
    while not run.finished:
        run.advance()
    return run


def episodes(*lengths: int) -> OfflineDataset:
    """Observations and actions are row numbers; every second episode terminates, the others are truncated."""
    rows, starts = sum(lengths), np.cumsum([0, *lengths[:-1]])
    ends = np.zeros(rows, np.bool_)
    ends[np.cumsum(lengths) - 1] = True
    terminated = ends & (np.repeat(np.arange(len(lengths)), lengths) % 2 == 0)
    number = np.arange(rows)
    zeros = np.zeros(rows, np.float32)
    return OfflineDataset(number[:, None], number, zeros, number[:, None] + 1, terminated, ends & ~terminated, starts)


def test_every_kth_step_of_each_episode_is_kept_from_a_drawn_one_on() -> None:
    data = episodes(40, 23, 5)
    firsts = set()
    for seed in range(30):
        kept = of_dataset(data, 10, np.random.default_rng(seed))
        assert np.array_equal(kept.obs[:, 0], kept.action)
        own = [kept.action[(kept.action >= low) & (kept.action < high)] for low, high in ((0, 40), (40, 63), (63, 68))]
        assert [len(rows) for rows in own] in ([4, 3, 1], [4, 2, 1])
        assert all((np.diff(rows) == 10).all() for rows in own)
        firsts.add(tuple(int(rows[0]) for rows in own))
    assert len({first for first, _, _ in firsts}) > 5, "an offset is drawn"
    assert len({second - first for first, second, _ in firsts}) > 5, "for every episode"
    again = [of_dataset(data, 10, np.random.default_rng(3)).action for _ in range(2)]
    assert np.array_equal(*again)


def test_left_out_steps_do_not_make_ends_more_frequent() -> None:
    data = episodes(40, 23, 5)
    rng = np.random.default_rng(0)
    assert of_dataset(data, 1, rng).over == of_dataset(data, 10, rng).over == pytest.approx(2 / 70)
    assert len(of_dataset(data, 1, rng)) == 68


def test_only_real_steps_of_a_rollout_and_true_ends_count() -> None:
    learner = agent("gail", DISCRETE)
    rollout = played(learner, DISCRETE, n_steps=10, num_envs=3)
    rollout.real[4, 1] = False
    own = of_rollout(rollout)
    ends = int(rollout.terminated[rollout.real].sum())
    assert (len(own), own.over) == (29, pytest.approx(ends / (ends + 29)))
    assert rollout.truncated.any(), "which do not count"


def test_draws_have_their_share_of_ends() -> None:
    side = Occupancy(np.arange(7)[:, None], np.arange(7), over=0.25)
    obs, action, over = side.draw(4000, np.random.default_rng(0))
    assert np.array_equal(obs[:, 0], action)
    assert set(action) == set(range(7))
    assert over.mean() == pytest.approx(0.25, abs=0.03)
    assert not replace(side, over=0.0).draw(4000, np.random.default_rng(0))[2].any()


def test_experts_are_worth_imitating_and_others_are_not() -> None:
    """The control: junk teaches nothing where episodes are equally long, and a guess is right two times in eight."""
    returns = {}
    for data in ("right_answers", "random_answers"):
        run = imitating("Signs", data, 5_000)
        returns[data] = run.metrics["episode_return_mean"]
        run.close()
    assert returns["right_answers"] > 5.5
    assert returns["random_answers"] < 3.5


@pytest.mark.parametrize("form", ["gail", "log_d", "airl"])
@pytest.mark.parametrize(("data", "length"), [("leaving_at_once", 1.0), ("staying", 8.0)])
def test_with_absorbing_states_short_episodes_are_imitated_as_well_as_long_ones(
    form: str, data: str, length: float
) -> None:
    run = imitating("Door", data, 2_500, reward_form=form)
    assert run.evaluate(3).mean == length
    run.close()


@pytest.mark.parametrize(
    ("form", "data", "length"), [("gail", "leaving_at_once", 8.0), ("log_d", "staying", 1.0)], ids=["gail", "log_d"]
)
def test_without_them_the_sign_of_the_reward_decides(form: str, data: str, length: float) -> None:
    """What they are there for: else a reward above 0 keeps the policy alive, and one below 0 kills it, whatever the
    demonstrations say."""
    run = imitating("Door", data, 2_500, reward_form=form, absorbing=False)
    assert run.evaluate(3).mean == length
    run.close()


def test_rewards_of_the_world_are_reported_and_not_learned_from() -> None:
    quiet, loud = (imitating(world, "right_answers", 512) for world in ("Signs", "loud_signs"))
    assert loud.metrics["episode_return_mean"] == -1e6 * quiet.metrics["episode_return_mean"]
    for name in ("policy_loss", "value_loss", "imitation_reward_mean", "discriminator_loss"):
        assert loud.metrics[name] == quiet.metrics[name]
    assert all((a == b).all() for a, b in zip(quiet_weights(quiet), quiet_weights(loud), strict=True))
    for run in (quiet, loud):
        run.close()


def quiet_weights(run: Run) -> list[Any]:
    assert isinstance(run.algorithm, GAIL)
    return [run.algorithm.parameters.data, run.algorithm.discriminator.learner.parameters.data]


@pytest.mark.parametrize(
    ("file", "env_id", "steps"),
    [("cartpole/expert_cartpole.npz", "CartPole-v1", 4 * 499), ("pendulum/expert_demos.npz", "Pendulum-v1", 4 * 199)],
)
def test_public_demonstrations_are_read(file: str, env_id: str, steps: int) -> None:
    """Of a layout that has no successors and does not say why episodes ended."""
    settings = {"dataset": public_file(file), "done_means": "auto", "demonstrations": 4, "action_units": "clipped"}
    run = build(load_config(QUICK | settings | {"env_id": env_id, "n_steps": 8}))
    assert isinstance(run.algorithm, GAIL)
    assert (len(run.algorithm.demonstrations), run.algorithm.demonstrations.over) == (steps, 0.0)
    run.start()
    run.advance()
    assert 0.0 <= run.metrics["discriminator_accuracy"] <= 1.0
    run.close()
