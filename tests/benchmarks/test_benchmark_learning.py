"""The benchmark of learning: statistics on curves made by hand, files, pairs, and tiny runs of both sides."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from benchmark_helpers import BENCHMARKS, load
from rl_training.experiment.config import load_config

learning, learners, summary, seed_files = map(load, ("learning", "learners", "learning_summary", "seed_files"))
PAIRS = learning.PAIRS
NAME = "a2c_cartpole"
PAIR = PAIRS[NAME]


def curve(returns: Sequence[float], *, side: str = "ours", seed: int = 0, cpu: float = 1.0) -> Any:
    steps = [10 * (k + 1) for k in range(len(returns))]
    return seed_files.Curve(NAME, side, seed, seed_files.fingerprint(PAIR, side), steps, list(returns), cpu)


def test_area_is_the_mean_of_all_evaluations() -> None:
    assert summary.area(curve([0.0, 30.0, 60.0])) == 30.0


@pytest.mark.parametrize(("threshold", "expected"), [(20.0, 20), (25.0, 20), (60.0, 40), (60.5, None)])
def test_steps_to_a_threshold(threshold: float, expected: int | None) -> None:
    """The first evaluation that reaches it counts, even if later ones fall below."""
    assert summary.steps_to(curve([0.0, 25.0, 10.0, 60.0]), threshold) == expected


def test_seeds_that_never_reach_the_threshold_count_with_all_their_steps() -> None:
    curves = [curve([0.0, 50.0, 50.0]), curve([50.0, 50.0, 50.0]), curve([0.0, 0.0, 0.0])]
    found = summary.summarize_side(curves, 40.0)
    assert (found.reached, found.seeds) == (2, 3)
    assert found.steps.value == (20 + 10 + 30) / 3
    assert summary.steps_text(found).startswith("at least 20.0 (10.0 to 30.0), 2 of 3")
    assert summary.steps_text(summary.summarize_side(curves[2:], 40.0)) == "never (0 of 1)"
    assert summary.steps_text(summary.summarize_side(curves[:1], 40.0)) == "20.0 (20.0 to 20.0), 1 of 1"


def test_intervals_hold_the_mean_narrow_with_seeds_and_are_the_same_every_time() -> None:
    few, many = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0] * 8
    found = summary.estimate(few)
    assert found == summary.estimate(few)
    assert found.value == 2.5
    # Of the 256 equally likely draws of four, 5 have a mean of 1.25 or less: 2 %, and 15 one of 1.5 or less: 6 %.
    assert (found.low, found.high) == (1.5, 3.5)
    narrow = summary.estimate(many)
    assert narrow.value == 2.5
    assert narrow.high - narrow.low < 0.5 * (found.high - found.low)
    alone = summary.estimate([7.0])
    assert (alone.low, alone.value, alone.high) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([3.0, 4.0], [1.0, 2.0], 1.0),
        ([1.0, 2.0], [3.0, 4.0], 0.0),
        ([1.0, 3.0], [2.0], 0.5),
        ([2.0, 2.0], [2.0, 2.0, 2.0], 0.5),  # ties count half
        ([2.0, 3.0], [2.0, 1.0], (0.5 + 1.0 + 1.0 + 1.0) / 4),
    ],
)
def test_probability_that_ours_is_better(ours: list[float], theirs: list[float], expected: float) -> None:
    found = summary.superiority(ours, theirs)
    assert found.value == pytest.approx(expected)
    assert found.low <= found.value <= found.high
    assert summary.superiority(theirs, ours).value == pytest.approx(1.0 - expected)


def estimated(low: float, value: float, high: float) -> Any:
    return summary.Estimate(value, low, high)


@pytest.mark.parametrize(
    ("ours", "theirs", "probability", "difference", "expected"),
    [
        (estimated(8.0, 9.0, 10.0), estimated(5.0, 6.0, 7.0), 1.0, 0.3, "better"),
        (estimated(5.0, 6.0, 8.0), estimated(6.0, 7.0, 9.0), 0.35, -0.1, "level"),
        (estimated(6.0, 7.0, 9.0), estimated(5.0, 6.0, 8.0), 0.7, 0.1, "level"),  # ahead, but not surely
        (estimated(5.0, 6.0, 8.0), estimated(6.0, 7.0, 9.0), 0.34, -0.04, "close"),
        (estimated(5.0, 6.0, 7.0), estimated(8.0, 9.0, 10.0), 0.4, -0.04, "close"),
        (estimated(5.0, 6.0, 8.0), estimated(6.0, 7.0, 9.0), 0.34, -0.05, "WORSE"),
        (estimated(5.0, 6.0, 7.0), estimated(8.0, 9.0, 10.0), 0.4, -0.3, "WORSE"),
    ],
)
def test_verdicts(ours: Any, theirs: Any, probability: float, difference: float, expected: str) -> None:
    assert summary.verdict(ours, theirs, probability, difference) == expected
    assert expected in summary.VERDICTS


def test_difference_is_a_share_of_the_span_from_random_to_threshold() -> None:
    """CartPole's span is 475 - 22.7."""
    curves = {"ours": [curve([100.0, 200.0])] * 5, "sb3": [curve([200.0, 300.0], side="sb3", cpu=5.0)] * 5}
    found = summary.summarize(PAIR, curves)
    assert found.difference == pytest.approx(-100.0 / 452.3)
    assert found.verdict == "WORSE"
    assert found.theirs.cpu_seconds == 5.0
    assert summary.summarize(PAIR, {"ours": curves["ours"], "sb3": []}) is None
    assert summary.summarize(PAIR, {"ours": curves["ours"][:4], "sb3": curves["sb3"]}).verdict == "open"
    rows = summary.comparison_table(PAIRS, {NAME: found}).splitlines()
    assert rows[-1] == (
        "| `a2c_cartpole` | `sb3` | 5 | 150 (150 to 150) | 250 (250 to 250) | -22% | 0.00 (0.00 to 0.00) | **WORSE** |"
    )
    assert {row.count("|") for row in rows} == {9}
    details = summary.details_table(PAIRS, {NAME: found}).splitlines()
    assert details[-1] == (
        "| `a2c_cartpole` | 475 | never (0 of 5) | never (0 of 5) | 200 (200 to 200) | 300 (300 to 300) | 1.0 | 5.0 |"
    )


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The seeds that were trained while training was a stand-in, which fails for seed 9."""
    done: list[Any] = []

    def train(work: Any, out: Path) -> str | None:
        done.append(tuple(work))
        if work.seed == 9:
            return "failed with exit code 1:\nsome words"
        curve([50.0 + work.seed, 100.0], side=work.side, seed=work.seed).save(seed_files.seed_file(out, *work))
        return None

    monkeypatch.setattr(learning, "train", train)
    monkeypatch.setattr(learning, "find_spec", lambda module: module)
    return done


def test_finished_seeds_are_not_trained_again(trained: list[Any], tmp_path: Path) -> None:
    command = [NAME, "--out", str(tmp_path), "--jobs", "1", "--seeds"]
    assert learning.main([*command, "0-1"]) == 0
    assert trained == [(NAME, side, seed) for seed in (0, 1) for side in ("ours", "sb3")]
    trained.clear()
    assert learning.main([*command, "0-2"]) == 0
    assert trained == [(NAME, "ours", 2), (NAME, "sb3", 2)]


def test_seeds_with_other_settings_are_trained_again_and_not_reported(
    trained: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [NAME, "--out", str(tmp_path), "--jobs", "1", "--seeds", "0"]
    learning.main(command)
    monkeypatch.setitem(PAIRS, NAME, replace(PAIR, ours={"gamma": 0.98}))
    assert list(learning.collect([NAME], tmp_path)[NAME]["ours"]) == []
    assert f"{NAME}: 1 seeds with other settings are left out" in capsys.readouterr().err
    trained.clear()
    learning.main(command)
    assert trained == [(NAME, "ours", 0)]  # the peer's settings are the same
    assert f"{NAME}, ours, seed 0: was trained with other settings" in capsys.readouterr().err


def test_refresh_trains_ours_again_if_its_code_has_changed(
    trained: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [NAME, "--out", str(tmp_path), "--jobs", "1", "--seeds", "0"]
    learning.main(command)  # the stand-in says nothing of the code
    assert learning.seeds_to_train([NAME], [0], tmp_path) == []
    assert learning.seeds_to_train([NAME], [0], tmp_path, refresh=True) == [(NAME, "ours", 0)]
    assert f"{NAME}, ours, seed 0: was trained with other code" in capsys.readouterr().err
    replace(curve([1.0, 2.0]), code=seed_files.own_code()).save(seed_files.seed_file(tmp_path, NAME, "ours", 0))
    assert learning.seeds_to_train([NAME], [0], tmp_path, refresh=True) == []


def test_unfinished_file_is_written_again(
    trained: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = seed_files.seed_file(tmp_path, NAME, "ours", 0)
    path.parent.mkdir()
    path.write_text('{"pair": "a2c')
    learning.main([NAME, "--out", str(tmp_path), "--jobs", "1", "--seeds", "0"])
    assert f"the file {path} cannot be read" in capsys.readouterr().err
    assert seed_files.read_curve(path).returns == [50.0, 100.0]


def test_failed_seed_is_reported_and_the_others_go_on(
    trained: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert learning.main([NAME, "--out", str(tmp_path), "--jobs", "2", "--seeds", "9,3"]) == 1
    said = capsys.readouterr()
    assert "a2c_cartpole, ours, seed 9: failed with exit code 1:\nsome words" in said.err
    assert "a2c_cartpole, sb3, seed 3: mean of the curve 76.5, final 100.0, 1.0 CPU s" in said.err
    assert "| `a2c_cartpole` | `sb3` | 1 |" in said.out


def test_side_that_is_not_installed_is_named_and_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(learning, "find_spec", lambda module: None)
    assert [work.side for work in learning.seeds_to_train([NAME], [0, 1], tmp_path)] == ["ours", "ours"]
    assert "sb3 does not take part: stable-baselines3 is not installed (pip install -r" in capsys.readouterr().err
    assert learning.seeds_to_train(["ppo_lunarlander"], [0], tmp_path) == []
    assert "ppo_lunarlander is left out: it needs Box2D, which is not installed (pip" in capsys.readouterr().err


def test_missing_data_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("RL_TRAINING_DATA", str(tmp_path))
    assert learning.able_sides("iql") == []
    words = "its data pendulum/pendulum_replay.npz is not there; name the folder with --data or RL_TRAINING_DATA"
    assert f"iql is left out: {words}" in capsys.readouterr().err


def test_report_has_tables_pictures_and_every_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for side, offset in (("ours", 0.0), ("sb3", 40.0)):
        for seed in range(5):
            found = curve([offset + seed, offset + 50.0, 480.0], side=side, seed=seed)
            found.save(seed_files.seed_file(tmp_path / "runs", NAME, side, seed))
    target = tmp_path / "report"
    assert learning.main(["--report", "--out", str(tmp_path / "runs"), "--to", str(target)]) == 0
    assert sorted(path.name for path in target.iterdir()) == ["on_policy.png", "results.json", "results.md"]
    assert (target / "on_policy.png").read_bytes().startswith(b"\x89PNG")
    text = (target / "results.md").read_text()
    assert "![On-policy and imitation](on_policy.png)" in text
    assert "| `a2c_cartpole` | `sb3` | 5 | 177 (177 to 178) | 204 (204 to 204) | -6% |" in text
    assert "Not trained yet: `ppo_cartpole`" in text
    result = json.loads((target / "results.json").read_text())
    assert [(entry["side"], entry["seed"]) for entry in result["curves"]] == [
        (side, seed) for side in ("ours", "sb3") for seed in range(5)
    ]
    assert result["pairs"][NAME]["result"]["verdict"] == "WORSE"
    assert result["pairs"][NAME]["sides"]["ours"]["settings"]["learning_rate"] == 7e-4
    assert learning.main(["--report", "--out", str(tmp_path / "nowhere"), "--to", str(target)]) == 1
    assert "there is no result in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", [3]), ("0-2", [0, 1, 2]), ("7,1-2,7", [7, 1, 2]), ("2-1", None), ("x", None), ("", None)],
)
def test_seeds_on_the_command_line(text: str, expected: list[int] | None, capsys: pytest.CaptureFixture[str]) -> None:
    if expected is not None:
        assert learning.parse(["--seeds", text]).seeds == expected
        return
    with pytest.raises(SystemExit):
        learning.parse(["--seeds", text])
    assert f"{text!r} is no list of seeds; write 0-4 or 0,3,7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("ppo_cartpol", "'ppo_cartpol' is unknown (known: ppo_cartpole"),
        ("--jobs 0", "--jobs: invalid"),
        ("--data nowhere", "--data nowhere: there is no such folder"),
    ],
)
def test_mistakes(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        learning.parse(arguments.split())
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert learning.main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line for line in listed if not line.startswith(" ")] == list(PAIRS)


def test_readme_commands_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning.Path, "is_dir", lambda path: True)
    readme = (BENCHMARKS / "README.md").read_text()
    commands = re.findall(r"python benchmarks/learning\.py(.*)$", readme, flags=re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        learning.parse(shlex.split(command))


@pytest.mark.parametrize("name", PAIRS)
def test_our_settings_are_valid_and_evaluations_fall_between_updates(name: str) -> None:
    pair = PAIRS[name]
    data = {"dataset": "data.npz"} if pair.dataset else {}
    config = load_config({"algo": pair.algo, "env_id": pair.task.env_id, **data, **pair.our_settings})
    rows = getattr(config.loop, "n_steps", None)
    alone = 1 if pair.dataset else getattr(config.loop, "train_every", 1)
    between = alone if rows is None else rows * config.run.num_envs
    assert pair.total % pair.every == 0
    assert pair.every % between == 0
    assert pair.total // pair.every >= 10
    assert pair.task.random < pair.task.threshold
    assert pair.learner in {"sb3", "d3rlpy", "imitation", "plain"}


def test_every_algorithm_has_a_pair() -> None:
    """All but those that are compared by speed alone.

    The peer of planning, mctx, searches and does not learn; that of world models, SheepRL, takes hours; that of
    several tasks, LightZero's ScaleZero, needs torch.distributed. Those of actor-learners are never synchronous: how
    old their policies are is different in every run.
    """
    from rl_training.experiment.registry import REGISTRY

    apart = ("planning", "multi_task", "world_model", "actor_learner")
    compared = {name for name, entry in REGISTRY.items() if entry.family not in apart}
    assert {pair.algo for pair in PAIRS.values()} == compared


@pytest.mark.parametrize("name", ["dqn_cartpole", "dqn_mountaincar"])
def test_target_network_of_dqn_is_as_old_on_both_sides(name: str) -> None:
    """Which weights each update's target network has, by the updates that made them, in both ways of counting."""
    pair = PAIRS[name]
    settings = pair.settings
    phase = round(settings["train_every"] * settings["updates_per_step"])
    updates, copied, theirs = 0, 0, []
    for step in range(1, 6_000):
        if step % pair.theirs["target_update_interval"] == 0:
            copied = updates
        if step % settings["train_every"] == 0 and step > settings["learning_starts"]:
            theirs += [copied] * phase
            updates += phase
    interval = pair.ours["target_update_interval"]
    assert [update // interval * interval for update in range(len(theirs))] == theirs
    assert settings["learning_starts"] % settings["train_every"] == 0


def tiny(name: str, side: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run of two evaluations, of two episodes each."""
    changed = replace(PAIRS[name], total=2 * steps, every=steps, episodes=2)
    monkeypatch.setattr(learners, "PAIRS", {name: changed})
    found = learners.train(name, side, 3)
    assert (found.pair, found.side, found.seed, found.steps) == (name, side, 3, [steps, 2 * steps])
    assert found.settings == seed_files.fingerprint(changed, side) != seed_files.fingerprint(PAIRS[name], side)
    assert found.cpu_seconds > 0.0
    assert found.versions["torch"]
    return found


def test_tiny_run_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tiny("ppo_cartpole", "ours", 1_024, monkeypatch)
    assert 8.0 <= min(found.returns) < max(found.returns) <= 500.0
    assert found.code == seed_files.own_code()
    # Evaluations do not disturb training: with another cadence the policy is the same at the same step.
    rarely = tiny("ppo_cartpole", "ours", 2_048, monkeypatch)
    assert rarely.returns[0] == found.returns[1]


@pytest.mark.parametrize(
    ("name", "side", "module", "steps"),
    [
        ("a2c_cartpole", "sb3", "stable_baselines3", 400),
        ("gail_cartpole", "imitation", "imitation", 512),
        ("ppg_cartpole", "plain", "torch", 1_024),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_tiny_run_of_a_peer(
    name: str, side: str, module: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if learning.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    monkeypatch.chdir(tmp_path)  # some libraries write logs
    monkeypatch.syspath_prepend(BENCHMARKS)  # as in the process of a seed
    assert tiny(name, side, steps, monkeypatch).code == ""


def test_evaluations_play_the_same_episodes_and_count_each_once() -> None:
    """A policy that goes left: every CartPole episode is short, and so long as its own start makes it."""
    judge = learners.Judge(replace(PAIR, episodes=4))
    seen: list[Any] = []

    def left(obs: Any, state: Any, starts: Any) -> tuple[Any, Any]:
        seen.append((obs.copy(), state, starts.copy()))
        return np.zeros(len(obs), np.int64), (state or 0) + 1

    first = judge(left)
    lengths = []
    for k in range(4):
        env = gym.make("CartPole-v1")
        env.reset(seed=learners.FIRST_EPISODE + k)
        lengths.append(next(step for step in range(1, 100) if env.step(0)[2]))
    assert first == np.mean(lengths)
    assert [state for _, state, _ in seen] == [None, *range(1, max(lengths))]
    assert [starts.all() for _, _, starts in seen] == [True, *[False] * (max(lengths) - 1)]
    begun = seen[0][0]
    seen.clear()
    assert judge(left) == first
    assert np.array_equal(seen[0][0], begun)


def test_evaluations_between_two_updates_are_refused() -> None:
    recorder = learners.Recorder(replace(PAIR, every=50, episodes=1), lambda obs, state, starts: ([0], None))
    recorder.after(40)
    assert recorder.steps == []
    with pytest.raises(ValueError, match="every=50: must be a multiple of the steps between two updates; this is 80"):
        recorder.after(80)


def test_seed_that_fails_says_why(tmp_path: Path) -> None:
    words = learning.train(learning.SeedRun("no_such_pair", "ours", 0), tmp_path)
    assert words.startswith("failed with exit code 1:\n")
    assert words.endswith("KeyError: 'no_such_pair'")
    assert list(tmp_path.iterdir()) == []
