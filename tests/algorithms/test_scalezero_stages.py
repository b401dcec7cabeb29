"""ScaleZero's updates as a whole: what is drawn, what is frozen, who leaves when, what a new stage may not change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import resume_training, train
from rl_training.algorithms.parts.stages import stage_ends
from rl_training.algorithms.parts.world_policy import Moments
from rl_training.algorithms.scalezero import ScaleZero
from rl_training.algorithms.scalezero_settings import ScaleZeroConfig
from rl_training.experiment.config import load_config
from rl_training.runtime.train import build
from rl_training.types import UserError
from run_helpers import differences, training_differences
from scalezero_runs import SMALL, Runs, learner_of, memories_of, policies_in
from scalezero_worlds import stir

NEVER = 1e9


@pytest.fixture
def runs() -> Iterator[Runs]:
    made = Runs()
    yield made
    made.close()


def weights_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def acts_in(learner: ScaleZero, task: str, *, explore: bool = True) -> Any:
    """What the policy does in a task for the same observations in a row, what it finds there and what it carries."""
    policy, rng = learner.policy.for_task(task), np.random.default_rng(0)
    carry, found = policy.initial_carry(4), []
    for _ in range(3):
        obs = rng.standard_normal((4, *policy.info.obs_shape)).astype(np.float32)
        act = policy.act(obs, carry, explore=explore, rng=rng)
        carry = act.carry
        found.append([torch.from_numpy(array.copy()) for array in (act.action, *act.records.values())])
    return found


def heard(**solved: bool) -> dict[str, list[float]]:
    """Every task has ended enough episodes; those that are solved are above any target."""
    return {task: [NEVER + 1 if yes else -NEVER] * 50 for task, yes in solved.items()}


# One update


def test_every_task_that_is_trained_gives_as_many_windows(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = runs(batch_size=5), []
    for task, memory in memories_of(run).items():

        def noted(count: int, *args: Any, task: str = task, windows: Any = memory.windows, **how: Any) -> Any:
            asked.append((task, count))
            return windows(count, *args, **how)

        monkeypatch.setattr(memory, "windows", noted)
    learner_of(run).learn_from(memories_of(run), 1)
    assert asked == [("task0", 5), ("task1", 5)]


@pytest.mark.parametrize("weights", [None, {"task1": 3.0}])
def test_a_loss_is_the_weighted_mean_of_those_of_the_tasks(weights: dict[str, float] | None, runs: Runs) -> None:
    settings = {"balance_coef": 0.0, "value_coef": 2.0, "policy_coef": 3.0, "reward_coef": 5.0, "latent_coef": 7.0}
    run = runs(task_weights=weights, **settings)
    found = learner_of(run).learn_from(memories_of(run), 1)
    names = {"policy_kl": 3.0, "value_kl": 2.0, "reward_kl": 5.0, "latent_loss": 7.0}
    first, second = (sum(coef * found[f"{task}/{name}"] for name, coef in names.items()) for task in ("task0", "task1"))
    share = (weights or {"task1": 1.0})["task1"]
    assert found["loss"] == pytest.approx((first + share * second) / (1 + share), rel=1e-5)
    assert first != pytest.approx(second)


def test_what_is_reanalyzed_is_searched_by_the_target_network_and_written_back(runs: Runs) -> None:
    def written(what: str) -> Any:
        run = runs(steps=2, target_tau=0.0)
        learner, memory = learner_of(run), memories_of(run)["task1"]
        before = policies_in(memory)
        if what:
            torch.manual_seed(1)
            stir(getattr(learner, what).heads_of("task1").requires_grad_())
        learner.reanalyze_ratio = 1.0
        assert learner.learn_from(memories_of(run), 1)["task1/reanalyzed"] == 1.0
        return before, policies_in(memory)

    (before, fresh), (_, by_online), (_, by_target) = (written(what) for what in ("", "network", "target"))
    assert (before != fresh).any()
    np.testing.assert_array_equal(fresh, by_online)
    assert (fresh != by_target).any()


@pytest.mark.parametrize("stages", [1, 2])
def test_the_target_network_follows_what_is_trained(stages: int, runs: Runs) -> None:
    run = runs(steps=2, target_tau=0.25, target_update_interval=2, stages=stages, stage_updates=4)
    learner = learner_of(run)
    assert learner.network.stage == stages - 1
    learner.n_updates += learner.n_updates % 2
    followed, trained = [weights_of(learner.target)], [weights_of(learner.network)]
    for _ in range(2):
        learner.learn_from(memories_of(run), 1)
        followed.append(weights_of(learner.target))
        trained.append(weights_of(learner.network))
    frozen = {name for name, weight in learner.network.named_parameters() if not weight.requires_grad}
    assert differences(followed[0], followed[1]) == []
    for name, target in followed[2].items():
        old, new = followed[0][name], trained[2][name]
        if name in frozen:
            assert torch.equal(trained[0][name], new), name
            assert torch.equal(target, new), name
        else:
            # No token may have gone to one of the experts.
            assert not torch.equal(trained[0][name], new) or "expert_" in name, name
            torch.testing.assert_close(target, old + 0.25 * (new - old), msg=name)


# Stages


def stages_after(rounds: list[tuple[int, str]], **settings: Any) -> list[str]:
    """The stage and the tasks that are trained, after so many updates and these solved tasks of four."""
    cfg, stage, trained, began, found = ScaleZeroConfig(**settings), 0, "0123", 0, []
    for updates, solved in rounds:
        if stage_ends(cfg, trained, solved, stage, updates - began):
            stage, trained, began = stage + 1, "".join(task for task in trained if task not in solved), updates
        found.append(f"{stage} {trained}")
    return found


@pytest.mark.parametrize(
    ("settings", "rounds", "found"),
    [
        # A share of the tasks ends a stage: two of four, then one of two; the last one goes on.
        ({"stages": 3}, [(1, "0"), (2, "03"), (3, "03"), (4, "1"), (5, "2")], ["0 0123", "1 12", "1 12", "2 2", "2 2"]),
        ({"stages": 2}, [(1, "0"), (2, "03"), (3, "1")], ["0 0123", "1 12", "1 12"]),
        # A network that has not learned anything is not frozen.
        ({"stages": 2}, [(0, "03"), (1, "03")], ["0 0123", "1 12"]),
        # No task is left to train, so there is no new stage.
        ({"stages": 3}, [(1, "0123"), (9, "0123")], ["0 0123", "0 0123"]),
        ({"stages": 1, "stage_updates": 1}, [(9, "03")], ["0 0123"]),
        # The first stage lasts at least so long, and a stage at most so long.
        ({"stages": 2, "first_stage_updates": 5}, [(4, "012"), (5, "012")], ["0 0123", "1 3"]),
        (
            {"stages": 3, "stage_updates": 4},
            [(3, ""), (4, ""), (7, "2"), (8, "1"), (20, "")],
            ["0 0123", "1 0123", "1 0123", "2 023", "2 023"],
        ),
        (
            {"stages": 3, "stage_updates": 2, "first_stage_updates": 5},
            [(4, ""), (5, ""), (6, ""), (7, "")],
            ["0 0123", "1 0123", "1 0123", "2 0123"],
        ),
    ],
)
def test_stages_end_with_enough_solved_tasks_or_enough_updates(
    settings: dict[str, Any], rounds: list[tuple[int, str]], found: list[str]
) -> None:
    assert stages_after(rounds, **settings) == found


def test_a_task_is_solved_while_enough_episodes_in_a_row_reach_its_target(runs: Runs) -> None:
    learner = learner_of(runs(steps=0, solved_episodes=3))
    learner.target_returns = {"task0": 1.0}
    few, bad, good, later = [5.0, 5.0], [9.0, 0.8, 0.9, 1.0], [0.0, 0.8, 1.0, 1.2], [0.0, 0.0, 0.0]
    for returns, solved in ((few, 0), (bad, 0), (good, 1), (later, 0)):
        metrics = learner.hear({"task0": returns, "task1": [9.0, 9.0, 9.0]})
        assert metrics == {"stage": 0.0, "solved_tasks": float(solved)}
    assert list(learner.active_tasks()) == ["task0", "task1"]


def test_a_task_that_left_counts_as_solved_for_ever(runs: Runs) -> None:
    learner = learner_of(runs(steps=0, solved_episodes=1, stages=2))
    learner.target_returns, learner.n_updates = {"task0": 1.0}, 1
    learner.hear({"task0": [1.0], "task1": []})
    assert learner.network.trained_tasks == ("task1",)
    assert learner.hear({"task0": [0.0], "task1": []}) == {"stage": 1.0, "solved_tasks": 1.0}


def tasks_with(*targets: float | None) -> dict[str, Any]:
    """Tasks with these targets."""
    return {f"t{i}": {"env_id": "CartPole-v1", "target_return": target} for i, target in enumerate(targets)}


@pytest.mark.parametrize(
    ("stages", "tasks", "words"),
    [
        (2, tasks_with(None, None), "here 1 of 2 before the last stage, and none have one; give more"),
        (2, tasks_with(9.0, None, None, None), "here 2 of 4 before the last stage, and only t0 has one; give more"),
        (3, tasks_with(9.0, 9.0, None, None), "here 3 of 4 before the last stage, and 2 have one; give more"),
        (3, tasks_with(9.0, 9.0), "must be at most 2, the number of tasks"),
        (2, tasks_with(9.0), "must be at most 1, the number of tasks"),
    ],
)
def test_stages_that_could_never_end_are_refused(stages: int, tasks: dict[str, Any], words: str) -> None:
    small = {**SMALL, "num_envs": 1, "output_dir": "unused"}
    with pytest.raises(UserError, match=rf"^stages={stages}: .*{words}.* give stage_updates$"):
        build(load_config("scalezero", tasks=tasks, stages=stages, **small))
    for enough in ({"stages": stages, "stage_updates": 5}, {"stages": 1}):
        build(load_config("scalezero", tasks=tasks, **small | enough)).close()


def test_targets_for_all_stages_but_the_last_are_enough() -> None:
    for stages, targets in ((2, (None, 9.0)), (2, (9.0, 9.0, None, None)), (3, (9.0, 9.0, 9.0, None))):
        settings = {**SMALL, "num_envs": 1, "output_dir": "unused", "stages": stages}
        run = build(load_config("scalezero", tasks=tasks_with(*targets), **settings))
        run.close()
        assert learner_of(run).network.last_stage == stages - 1


def test_a_resumed_run_may_have_other_targets(tmp_path: Path) -> None:
    """The new ones decide from then on what is solved, and whether stages can end."""
    small = {"num_envs": 1, "num_simulations": 2, "batch_size": 4, "learning_starts": 8, "eval_episodes": 1}
    settings = {**SMALL, **small, "stages": 2, "solved_episodes": 1, "output_dir": str(tmp_path)}
    first = train(load_config("scalezero", tasks=tasks_with(NEVER, None), total_timesteps=160, **settings))
    assert (first["stage"], first["t0/episodes"] > 0) == (0.0, True)
    assert first.run_dir is not None
    with pytest.raises(UserError, match=r"^stages=2: .* before the last stage, and none have one"):
        resume_training(first.run_dir, overrides=["tasks.t0.target_return=null", "total_timesteps=240"])
    more = resume_training(first.run_dir, overrides=["tasks.t0.target_return=1", "total_timesteps=240"])
    assert more["stage"] == more["solved_tasks"] == 1.0
    with pytest.raises(UserError, match=r"^tasks.t0.score=\{'low': 0.0, 'high': 9.0\}: a resumed run keeps"):
        resume_training(first.run_dir, overrides=["tasks.t0.score={low: 0, high: 9}", "total_timesteps=300"])


def test_solved_tasks_leave_collection_and_training_when_the_stage_ends(runs: Runs) -> None:
    run = runs(stages=2, solved_episodes=1, first_stage_updates=30)
    learner, seen = learner_of(run), []
    for _ in range(20):
        before, trained, solved = run.metrics["task0/steps"], learner.network.trained_tasks, run.metrics["solved_tasks"]
        run.advance()
        assert (run.metrics["task0/steps"] > before) == ("task0" in trained)
        assert run.metrics["stage"] == learner.network.stage  # of this very step
        seen.append((solved, trained))
    assert (1.0, ("task0", "task1")) in seen
    assert seen[-1] == (1.0, ("task1",))
    assert run.metrics["stage"] == run.metrics["solved_tasks"] == 1.0
    assert "task1/value_kl" in run.metrics
    assert "task0/value_kl" not in run.metrics


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_new_stage_changes_nothing_and_what_left_is_never_changed(engine: str, runs: Runs) -> None:
    """No action, no search, no evaluation, to the bit."""
    settings = {"stages": 3, "stage_updates": 1_000_000, "solved_episodes": 100}
    run = runs(3, steps=4, engine=engine, normalize_obs=True, learning_rate=0.01, **settings)
    learner = learner_of(run)
    learner.target_returns = dict.fromkeys(learner.tasks, NEVER)
    kept: dict[str, Any] = {}
    for stage, leaving in enumerate(("task0", "task1"), start=1):
        before = {task: acts_in(learner, task) for task in learner.tasks}
        learner.solved_episodes = 1
        learner.hear(heard(**{task: task == leaving for task in learner.tasks}))
        learner.solved_episodes = 100
        assert learner.network.stage == stage
        assert differences(before, {task: acts_in(learner, task) for task in learner.tasks}) == []
        trained = {name for name, weight in learner.network.named_parameters() if weight.requires_grad}
        frozen = {name: weight for name, weight in weights_of(learner.network).items() if name not in trained}
        kept[leaving] = [before[leaving], acts_in(learner, leaving, explore=False), run.evaluate(2)[leaving].returns]
        for _ in range(2):
            run.advance()
        found = weights_of(learner.network)
        assert differences(frozen, {name: found[name] for name in frozen}) == []
        assert differences(before["task2"], acts_in(learner, "task2"))
    for task, was in kept.items():
        now = [acts_in(learner, task), acts_in(learner, task, explore=False), run.evaluate(2)[task].returns]
        assert differences(was, now) == []


@pytest.mark.parametrize("settings", [{}, {"engine": "autograd"}, {"search": "puct"}], ids=str)
def test_a_search_uses_the_weights_and_the_episode_as_they_are_now(settings: dict[str, Any], runs: Runs) -> None:
    learner, other = (learner_of(runs(steps=2, seed=seed, **settings)) for seed in (0, 1))
    first = acts_in(learner, "task1")
    learner.policy.load_policy_state(other.policy.policy_state())
    assert differences(acts_in(learner, "task1"), acts_in(other, "task1")) == []
    assert differences(first, acts_in(learner, "task1"))
    policy, obs = learner.policy, np.ones((2, 3), np.float32)
    carry = policy.act(obs, policy.initial_carry(2), explore=False, rng=np.random.default_rng(0)).carry
    begun = policy.begin_episodes(carry, np.array([True, False]))
    values = [
        policy.act(obs, given, explore=False, rng=np.random.default_rng(0)).records["search_value"]
        for given in (begun, policy.initial_carry(2))
    ]
    assert values[0][0] == values[1][0]
    assert values[0][1] != values[1][1]


def test_a_scheduled_discount_reaches_all_searches(runs: Runs) -> None:
    learner, other = (learner_of(runs(steps=2, gamma=gamma, reanalyze_ratio=1.0)) for gamma in (0.9, 0.1))
    other.load_state_dict(learner.state_dict())
    assert differences(acts_in(learner, "task1"), acts_in(other, "task1"))
    learner.gamma = 0.1
    assert differences(acts_in(learner, "task1"), acts_in(other, "task1")) == []
    moments = Moments(np.ones((1, 2, 3), np.float32), np.zeros((1, 1), np.int64), np.zeros(1, np.int64))
    found = [one.teachers["task1"].search(moments, None).result for one in (learner, other)]
    np.testing.assert_array_equal(found[0].value, found[1].value)
    learner.gamma = 0.9
    assert (learner.teachers["task1"].search(moments, None).result.value != found[1].value).all()


def test_searches_of_episodes_and_of_reanalysis_obey_masks(runs: Runs) -> None:
    run = runs(env={"masked": True}, steps=3, reanalyze_ratio=1.0)
    learner = learner_of(run)
    for task, memory in memories_of(run).items():
        policies = policies_in(memory)
        allowed = learner.policy.observers[task].mask(memory.replay.gather(np.arange(len(memory)), gamma=1.0).obs)
        assert allowed is not None
        assert not allowed.all()
        assert not policies[~allowed].any()


def test_processes_gather_what_the_learner_itself_would_across_stages(runs: Runs) -> None:
    found = []
    for actors in ("inline", "process"):
        run = runs(1, steps=5, actors=actors, stages=3, stage_updates=6, normalize_obs=True)
        assert learner_of(run).network.stage == 2
        found.append(run.snapshot())
    left = training_differences(*found)
    # The streams of the environments and of the policy are those of the workers, and are saved with them.
    assert all(where.startswith(("envs", "rng.streams")) for where in left), left


def test_a_checkpoint_of_an_earlier_stage_goes_into_a_run_of_a_later_one(runs: Runs) -> None:
    early, late = (runs(steps=steps, stages=3, stage_updates=6) for steps in (1, 5))
    saved = early.snapshot()
    assert (learner_of(early).network.stage, learner_of(late).network.stage) == (0, 2)
    late.load(saved)
    for run in (early, late):
        for _ in range(3):
            run.advance()
    assert training_differences(early.snapshot(), late.snapshot()) == []


def test_adapters_begin_without_moments_and_frozen_weights_have_none(runs: Runs) -> None:
    run = runs(steps=2, stages=2, solved_episodes=1)
    learner = learner_of(run)
    learner.target_returns = {"task0": NEVER}
    assert learner.learner.optimizer.state_dict()["moment"].any()
    learner.hear(heard(task0=True, task1=False))
    assert learner.network.stage == 1
    moment = learner.learner.optimizer.state_dict()["moment"]
    trained = sum(weight.numel() for weight in learner.network.trained_parameters())
    assert moment.numel() == trained < sum(weight.numel() for weight in learner.network.parameters())
    assert not moment.any()


def test_every_round_of_searches_has_the_temperature_of_its_own_step(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a phase of learning takes several rounds, as when tasks have left."""
    run = runs(
        steps=0, train_every=20, temperature=1.0, temperature_schedule={"end": 0.0, "type": "linear", "steps": 100}
    )
    used: list[tuple[int, float]] = []
    for planner in learner_of(run).policy.planners.values():

        def noted(moments: Moments, rng: Any, heat: Any = None, search: Any = planner.search) -> Any:
            used.append((run.steps, float(heat[0])))
            return search(moments, rng, heat)

        monkeypatch.setattr(planner, "search", noted)
    for _ in range(3):
        run.advance()
    # Task 0 has two environments and task 1 three: a round is of five steps.
    assert len(used) >= 16
    for step, temperature in used:
        assert temperature == pytest.approx(1.0 - (step - step % 5) / 100, abs=1e-6)
    assert len({temperature for _, temperature in used}) == len(used) // 2
