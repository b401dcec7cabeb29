"""Statistics over seeds against numbers worked by hand, and the training of several seeds."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rl_training import Callback, UserError, load_config, train, train_seeds
from rl_training.cli import cli
from rl_training.ops.statistics import bootstrap_interval, interquartile_mean, mean
from rl_training.runtime.seeds import SeedsInterrupted
from rl_training.runtime.verification import verify_preset
from run_helpers import latest, metadata, tiny, training_differences, wait_for

finite = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 3.0], 2.0),
        # A quarter of three is 0.75: (0.25 * 0 + 1 * 6 + 0.25 * 30) / 1.5.
        ([30.0, 0.0, 6.0], 9.0),
        ([4.0, -100.0, 2.0, 1000.0], 3.0),
        # A quarter of five is 1.25: (0.75 * 2 + 1 * 3 + 0.75 * 8) / 2.5.
        ([1.0, 2.0, 3.0, 8.0, 900.0], 4.2),
        ([-1e9, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 1e9], 2.5),
    ],
)
def test_interquartile_mean_by_hand(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values)) == pytest.approx(expected, rel=1e-12)


def test_interquartile_mean_takes_the_last_axis() -> None:
    rows = np.array([[1.0, 2.0, 4.0, 100.0], [8.0, 0.0, 5.0, 7.0]])
    np.testing.assert_allclose(interquartile_mean(rows), [3.0, 6.0])


@given(st.lists(finite, min_size=1, max_size=9))
def test_interquartile_mean_is_the_mean_of_the_middle_half_of_four_copies(values: list[float]) -> None:
    """Of every value four times a quarter is a whole number, so that nothing has to count in part."""
    repeated = np.sort(np.repeat(values, 4))
    middle = repeated[len(values) : 3 * len(values)]
    assert interquartile_mean(np.array(values)) == pytest.approx(middle.mean(), rel=1e-9, abs=1e-6)


def test_bootstrap_of_two_values_by_hand() -> None:
    """Means of two draws from 0 and 1: 0 (in 1/4 of them), 1/2 (1/2), 1 (1/4)."""
    values = np.array([0.0, 1.0])
    assert bootstrap_interval(values, level=0.95) == (0.0, 1.0)
    assert bootstrap_interval(values, level=0.4) == (0.5, 0.5)  # from 30% to 70%


@pytest.mark.parametrize("statistic", [mean, interquartile_mean])
def test_bootstrap_agrees_with_all_possible_draws(statistic: Any) -> None:
    values = np.array([3.0, 8.0, 1.0, 30.0, 12.0])
    every = np.array(list(itertools.product(values, repeat=len(values))))  # 3125 draws, all equally likely
    exact = np.sort(statistic(every))
    low, high = bootstrap_interval(values, statistic, level=0.9, resamples=40_000)
    # Where 40,000 draws put the 5% and the 95% point, the exact distribution has 4.5% to 5.5% and 94.5% to 95.5%.
    assert exact[int(0.045 * 3125)] <= low <= exact[int(0.055 * 3125)]
    assert exact[int(0.945 * 3125)] <= high <= exact[int(0.955 * 3125)]


def test_bootstrap_of_curves_draws_whole_curves() -> None:
    """Two points of a curve that always go together have intervals that go together."""
    first = np.array([2.0, 9.0, 4.0, 7.0])
    low, high = bootstrap_interval(np.stack([first, 10.0 * first, 0.0 * first]), resamples=500)
    alone = bootstrap_interval(first, resamples=500)
    np.testing.assert_allclose(low, [alone[0], 10.0 * alone[0], 0.0])
    np.testing.assert_allclose(high, [alone[1], 10.0 * alone[1], 0.0])
    assert alone[0] < first.mean() < alone[1]


def test_bootstrap_is_a_pure_function_and_needs_two_values() -> None:
    values = np.array([1.0, 5.0, 2.0, 8.0, 4.0, 9.0])
    state = np.random.get_state()[1]
    assert bootstrap_interval(values, resamples=50) == bootstrap_interval(values, resamples=50)
    assert bootstrap_interval(values, resamples=50) != bootstrap_interval(values, resamples=50, seed=1)
    assert (np.random.get_state()[1] == state).all()
    with pytest.raises(ValueError, match="at least two values"):
        bootstrap_interval(np.array([1.0]))


def test_train_seeds_trains_each_as_if_it_were_alone(tmp_path: Path) -> None:
    told: list[tuple[int, float]] = []
    outcome = train_seeds(
        tiny(tmp_path), [5, 3, 4], report=lambda seed, result: told.append((seed, result["eval_return_mean"]))
    )
    assert list(outcome.runs) == [5, 3, 4]
    assert told == list(outcome.returns.items())
    assert outcome.missing == ()
    for seed, run in outcome.runs.items():
        assert run.run_dir is not None
        assert run.run_dir.parent == outcome.folder
        assert load_config(run.run_dir / "config.yaml").run.seed == seed
    alone = train(tiny(tmp_path, seed=3))
    assert training_differences(latest(alone.run_dir), latest(outcome.runs[3].run_dir)) == []
    assert training_differences(latest(alone.run_dir), latest(outcome.runs[4].run_dir)) != []


def test_the_summary_says_what_the_runs_came_to(tmp_path: Path) -> None:
    # Returns that are not all alike: the seed decides how far an untrained policy gets on this.
    outcome = train_seeds(tiny(tmp_path, total_timesteps=24), [0, 1, 2, 3])
    summary = json.loads((outcome.folder / "summary.json").read_text())
    returns = [run["return"] for run in summary["runs"]]
    assert len(set(returns)) > 1
    assert [run["seed"] for run in summary["runs"]] == summary["seeds"] == [0, 1, 2, 3]
    assert returns == [
        metadata(outcome.folder / run["folder"])["result"]["eval_return_mean"] for run in summary["runs"]
    ]
    assert summary["missing"] == []
    assert summary["mean"] == pytest.approx(sum(returns) / 4)
    assert summary["iqm"] == pytest.approx(sum(sorted(returns)[1:3]) / 2)
    low, high = summary["confidence"]["mean"]
    assert min(returns) <= low < summary["mean"] < high <= max(returns)
    assert summary["confidence"]["level"] == 0.95
    assert "bootstrap over 4 seeds" in summary["confidence"]["method"]
    assert summary["config"]["n_steps"] == 8


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    outcome = train_seeds(tiny(tmp_path, total_timesteps=24), [7])
    assert outcome.mean.value == outcome.iqm.value == outcome.returns[7]
    assert outcome.mean.interval is None
    assert "confidence" not in json.loads(outcome.summary_file.read_text())


def test_a_second_training_of_seeds_has_a_folder_of_its_own(tmp_path: Path) -> None:
    first, second = (train_seeds(tiny(tmp_path, total_timesteps=24), [0, 1]) for _ in range(2))
    assert first.folder != second.folder
    assert len(list(first.folder.glob("*/config.yaml"))) == len(list(second.folder.glob("*/config.yaml"))) == 2


@pytest.mark.parametrize(
    ("seeds", "complaint"), [([1, 2, 1], "1 is given twice"), ([], "one or more"), ([1, -2], "at least 0")]
)
def test_seeds_are_checked(seeds: list[int], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        train_seeds(tiny(tmp_path), seeds)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^env_id='CartPol-v1': unknown environment"):
        train_seeds(tiny(tmp_path, env_id="CartPol-v1"), [1, 2])
    assert list(tmp_path.iterdir()) == []


class StopAt(Callback):
    """Sends this process a signal during the run of one seed, or raises."""

    def __init__(self, seed: int, error: Exception | None = None) -> None:
        self.seed, self.error = seed, error

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        if run.config.run.seed == self.seed:
            if self.error is not None:
                raise self.error
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interruption_keeps_what_is_done(tmp_path: Path) -> None:
    with pytest.raises(SeedsInterrupted) as stop:
        train_seeds(tiny(tmp_path), [1, 2, 3], callbacks=[StopAt(2)])
    outcome = stop.value.outcome
    assert list(outcome.runs) == [1]
    assert outcome.missing == (2, 3)
    assert stop.value.result.run_dir is not None
    assert metadata(stop.value.result.run_dir)["stop_reason"] == "interrupted"
    assert metadata(outcome.runs[1].run_dir)["stop_reason"] == "completed"
    summary = json.loads(outcome.summary_file.read_text())
    assert summary["missing"] == [2, 3]
    assert [run["seed"] for run in summary["runs"]] == [1]
    assert summary["mean"] == outcome.returns[1]


class StopAtTheEnd(Callback):
    """Sends this process a signal in the last evaluation of every run."""

    def on_eval(self, run: Any, metrics: dict[str, float]) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_in_a_last_evaluation_keeps_that_run_and_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(SeedsInterrupted) as stop:
        train_seeds(tiny(tmp_path), [1, 2, 3], callbacks=[StopAtTheEnd()])
    outcome = stop.value.outcome
    assert list(outcome.runs) == [1]
    assert outcome.missing == (2, 3)
    assert metadata(outcome.runs[1].run_dir)["stop_reason"] == "completed"
    assert json.loads(outcome.summary_file.read_text())["missing"] == [2, 3]


def test_a_signal_in_a_last_evaluation_ends_a_verification(tmp_path: Path) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text(json.dumps(tiny(tmp_path / "runs", expected={"return": 0.0, "seeds": [1, 2], "episodes": 2})))
    with pytest.raises(KeyboardInterrupt):
        verify_preset(str(preset), callbacks=[StopAtTheEnd()])
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert metadata(run_dir)["stop_reason"] == "completed"


def test_a_seed_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)^seed 2: the reward is nan.*done: 1"):
        train_seeds(tiny(tmp_path), [1, 2, 3], callbacks=[StopAt(2, UserError("the reward is nan"))])
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "summary.json").read_text())["missing"] == [2, 3]


def settings_of_command(folder: Path, **changes: Any) -> list[str]:
    values = tiny(folder, **changes)
    return [f"{key}={value}" for key, value in values.items() if key != "algo"]


def test_the_command_prints_every_seed_and_what_they_come_to(tmp_path: Path) -> None:
    arguments = ["train", "ppo", *settings_of_command(tmp_path, total_timesteps=24), "--seeds", "0,1,2,3", "--quiet"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    (folder,) = tmp_path.iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    for run in summary["runs"]:
        assert f"seed {run['seed']}: return {run['return']:.2f} at step 24" in result.output
    low, high = summary["confidence"]["iqm"]
    assert f"IQM      {summary['iqm']:.2f}  (95% confidence interval {low:.2f} to {high:.2f})" in result.output
    assert f"mean     {summary['mean']:.2f}" in result.output
    assert "percentile bootstrap over 4 seeds, 10,000 resamples" in result.output
    assert str(folder / "summary.json") in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seeds", "1,x"], "must be whole numbers"),
        (["--seeds", "1,1"], "given twice"),
        (["seed=4", "--seeds", "1,2"], "give one of them"),
    ],
)
def test_the_command_refuses_wrong_seeds(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        CliRunner().invoke(cli, ["train", "ppo", *settings_of_command(tmp_path), *arguments], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_an_interruption_left(tmp_path: Path) -> None:
    """A process of its own, which a signal ends while the second seed is being trained."""
    runs = tmp_path / "runs"
    endless = settings_of_command(runs, total_timesteps=10_000_000)
    code = (
        "import sys, pathlib, rl_training.cli as command\n"
        "from rl_training.runtime import loggers, train as driver\n"
        "class Stop(driver.Callback):\n"
        "    def on_step(self, run, metrics):\n"
        "        if run.config.run.seed == 1: run.request_stop('enough')\n"
        f"        else: pathlib.Path({str(tmp_path / 'second')!r}).touch()\n"
        "loggers.ProgressDisplay = Stop\n"
        "sys.argv = ['rl-training', 'train', 'ppo', *sys.argv[1:], '--seeds', '1,2,3']\n"
        "command.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *endless], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(tmp_path / "second", process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130
    assert "seed 1: return" in out
    assert "missing  seeds 2, 3" in out
    (folder,) = runs.iterdir()
    assert f"summary  {folder}" in out
    assert err.splitlines()[-1] == f"interrupted; continue with: rl-training resume {folder}"
