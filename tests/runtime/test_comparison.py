"""Sets of runs side by side: the numbers against those worked out by hand, the table, the picture, the mistakes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from test_plots import matplotlib, write_run

from rl_training import UserError
from rl_training.cli import cli
from rl_training.ops.statistics import interquartile_mean, probability_of_improvement, stratified_resamples
from rl_training.runtime.comparison import ALL, SCORES, compare_runs, short_names
from rl_training.runtime.comparison_plot import draw_comparison


def runs(folder: Path, scores: list[float], **settings: Any) -> Path:
    """A run for each score, with another evaluation before it."""
    for seed, score in enumerate(scores):
        name = f"{settings.get('env_id', 'E-v0')}-{seed}"
        how = {"env_id": "E-v0", "seed": seed} | settings
        write_run(folder / name, {50: -1.0, 100: score}, metric="eval_return_mean", **how)
    return folder


def test_the_probability_of_improvement_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.integers(0, 5, 7).astype(float), rng.integers(0, 5, 4).astype(float)
    by_hand = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(ours, theirs)])
    assert probability_of_improvement(ours, theirs) == pytest.approx(by_hand)
    assert probability_of_improvement(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 0.5
    assert probability_of_improvement(np.array([3.0]), np.array([1.0, 2.0])) == 1.0
    many = probability_of_improvement(np.stack([ours, ours + 9]), np.stack([theirs, theirs]))
    assert many.tolist() == pytest.approx([by_hand, 1.0])


def test_resamples_stay_within_their_stratum() -> None:
    drawn = stratified_resamples([np.array([1.0, 2.0]), np.array([10.0, 20.0, 30.0])], resamples=500)
    assert [values.shape for values in drawn] == [(500, 2), (500, 3)]
    assert set(drawn[0].ravel()) == {1.0, 2.0}
    assert set(drawn[1].ravel()) == {10.0, 20.0, 30.0}
    again = stratified_resamples([np.array([1.0, 2.0]), np.array([10.0, 20.0, 30.0])], resamples=500)
    assert all(np.array_equal(one, other) for one, other in zip(drawn, again, strict=True))


def test_two_sides_in_one_environment(tmp_path: Path) -> None:
    low, high = [1.0, 2.0, 3.0, 4.0, 50.0], [5.0, 6.0, 7.0, 8.0]
    (row,) = compare_runs([runs(tmp_path / "a", low), runs(tmp_path / "b", high)]).rows
    assert [mean.value for mean in row.means] == [float(interquartile_mean(np.array(x))) for x in (low, high)]
    assert row.better[0].value == pytest.approx(16 / 20)
    assert row.runs == [5, 4]
    for estimate in (*row.means, *row.better):
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low <= estimate.value <= estimate.high
    assert row.better[0].high == 1.0


def test_several_environments_are_scaled_and_taken_together(tmp_path: Path) -> None:
    for side, shift in (("a", 0.0), ("b", 1.0)):
        runs(tmp_path / side, [0.0 + shift, 1.0 + shift], env_id="Small-v0")
        runs(tmp_path / side, [1000.0 * shift, 1000.0 * shift], env_id="Large-v0")
    runs(tmp_path / "a", [3.0, 4.0], env_id="Alone-v0")
    compared = compare_runs([tmp_path / "a", tmp_path / "b"])
    assert [row.environment for row in compared.rows] == ["Large-v0", "Small-v0", ALL]
    large, small, together = compared.rows
    assert large.better[0].value == 1.0
    assert small.better[0].value == pytest.approx(3.5 / 4)
    assert together.better[0].value == pytest.approx((1.0 + 3.5 / 4) / 2)
    # Small: 0, 1/2 and 1/2, 1 of the span from 0 to 2; Large: 0, 0 and 1, 1.
    assert [mean.value for mean in together.means] == pytest.approx([0.0, 1.0])
    assert "Alone-v0 is left out: not all sides have runs in it" in compared.notes


def test_single_runs_have_no_interval_and_other_lengths_are_said(tmp_path: Path) -> None:
    runs(tmp_path / "a", [1.0])
    write_run(tmp_path / "b" / "run", {10: 2.0}, metric="eval_return_mean", env_id="E-v0")
    write_run(tmp_path / "b" / "young", {10: 2.0}, env_id="E-v0", seed=1)
    write_run(tmp_path / "b" / "empty", {}, env_id="E-v0", seed=2)
    compared = compare_runs([tmp_path / "a", tmp_path / "b"])
    (row,) = compared.rows
    assert row.means[1] == (2.0, None, None)
    assert compared.notes == (
        f"{tmp_path / 'b' / 'empty'} is left out: it has no metrics yet",
        f"{tmp_path / 'b' / 'young'} is left out: it has no eval_return_mean yet",
        "in E-v0 the last values are of 10 to 100 steps: not all have learned equally long",
    )


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plot", "--compare", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("dark", [[], ["--dark"]])
def test_the_command_prints_a_table_and_draws(dark: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs(tmp_path / "runs", [1.0, 2.0, 3.0], algo="ppo")
    for seed in (0, 1):
        write_run(tmp_path / "other" / f"sac__{seed}", {100: 9.0}, metric="eval_return_mean", env_id="E-v0", seed=seed)
    said = call("runs", "other/sac__*", *dark)
    assert said.exit_code == 0
    header, row, picture = said.output.splitlines()
    assert header.split("  ")[0] == "environment"
    assert "runs (IQM)" in header
    assert "P(other/sac__* > runs)" in header
    assert row.split()[:2] == ["E-v0", "2.00"]
    assert "9.00 [9.00, 9.00]" in row
    assert "1.00 [1.00, 1.00]" in row
    assert row.endswith("3 / 2")
    assert picture == "plot     comparison.png"
    pixels = matplotlib.image.imread(tmp_path / "comparison.png")
    assert (pixels[0, 0, 0] < 0.1) == bool(dark)
    blue = np.abs(pixels[..., :3] * 255.0 - np.array([0x00, 0x72, 0xB2])).max(axis=-1) < 1.0
    assert blue.any()


def test_three_sides_are_compared_with_the_first(tmp_path: Path) -> None:
    sides = [str(runs(tmp_path / name, [score, score + 1.0])) for name, score in (("a", 0.0), ("b", 5.0), ("c", -5.0))]
    (row,) = compare_runs(sides).rows
    assert [chance.value for chance in row.better] == [1.0, 0.0]
    assert call(*sides, "--output", str(tmp_path / "x.svg")).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a"], "--compare: compares two sets of runs or more; got 1"),
        (["a", "a/"], "'a' is given twice"),
        (["a", "nothing"], "'nothing': there is no such run"),
        (["a", "c"], "there is no environment that all sides have: 'a' has E-v0; 'c' has Other-v0"),
        (["a", "b", "--metric", "eval_return_men"], "did you mean 'eval_return_mean'?"),
        (["a", "b", "--metric", "x", "--metric", "y"], "compares one --metric"),
        (["a", "b", "--search"], "--compare, --search: are different pictures"),
        (["a", "b", "--output", "x.bmp"], "must end with one of .png"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_message(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, env_id in (("a", "E-v0"), ("b", "E-v0"), ("c", "Other-v0")):
        runs(tmp_path / name, [1.0, 2.0], env_id=env_id)
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# Long names.


def test_names_of_sides_are_what_tells_them_apart() -> None:
    assert short_names(["runs/ppo", "runs/sac"]) == ["ppo", "sac"]
    assert short_names(["runs", "runs/sac__*"]) == ["runs", "runs/sac__*"]
    assert short_names(["a/x", "b/x"]) == ["a/x", "b/x"]
    folders = [f"/tmp/runs/scalezero__cartpole-acrobot__seed{seed}__20261119-21394{seed}" for seed in (1, 2)]
    assert short_names(folders) == ["seed1__20261119-213941", "seed2__20261119-213942"]
    other = "elsewhere/multi_task_dqn-SPEC__cartpole-acrobot__seed2__20261119-213452"
    assert short_names([folders[0], other]) == ["scalezero__cartpole-...-213941", "multi_task_dqn-SPEC_...-213452"]
    assert short_names([f"{'x' * 20}{k}{'y' * 20}" for k in "abc"]) == [
        f"{k}: {'x' * 20}...{'y' * 7}" for k in (1, 2, 3)
    ]


@pytest.mark.parametrize("sides", [2, 3])
@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_nothing_is_cut_off_where_names_are_long(
    sides: int, tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns = {f"a-rather-long-name-of-a-task-{task}": float(task) for task in range(tasks)}
    folders = [
        several(tmp_path / f"{side}-an-algorithm__with-many-tasks-at-once__seed{side}__20261119-21394{side}", returns)
        for side in range(sides)
    ]
    compared = compare_runs(folders)
    assert all(len(cell) < 100 for row in compared.table() for cell in row)
    figure = draw_comparison(compared)
    figure.draw_without_rendering()  # a layout that does not fit would be a warning, and so an error
    for panel in figure.axes:
        assert panel.get_window_extent().width > 2.5 * figure.dpi
        for text in (panel.title, *panel.get_yticklabels()):
            box = text.get_window_extent()
            assert box.x0 >= 0.0
            assert box.x1 <= figure.bbox.width
    *means, chances = figure.axes
    assert not any(panel.get_tightbbox().overlaps(chances.get_tightbbox()) for panel in means)
    labels = [label.get_window_extent() for label in chances.get_yticklabels()]
    assert not any(upper.overlaps(lower) for upper, lower in itertools.pairwise(labels))


# Several tasks in one run.


def several(folder: Path, returns: dict[str, float], env_ids: dict[str, str] | None = None, **settings: Any) -> Path:
    """A run with tasks, by the last return of each. An environment may differ from the name of its task."""
    tasks = {task: {"env_id": (env_ids or {}).get(task, f"{task}-v0")} | settings.pop(task, {}) for task in returns}
    write_run(folder, {}, env_id="", tasks=tasks, **settings)
    row = {f"{task}/eval_return_mean": value for task, value in returns.items()}
    means = {"eval_return_mean": float(np.mean(list(returns.values()))), "eval_score_mean": 0.5}
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 100.0} | row | means) + "\n")
    return folder


def test_tasks_are_compared_one_by_one(tmp_path: Path) -> None:
    sides = [several(tmp_path / "A", {"c": 1.0, "a": 500.0}), several(tmp_path / "B", {"c": 2.0, "d": -500.0})]
    compared = compare_runs(sides)
    (row,) = compared.rows
    assert (row.environment, [mean.value for mean in row.means]) == ("c", [1.0, 2.0])
    assert compared.notes == tuple(f"{task} is left out: not all sides have runs in it" for task in ("a", "d"))


def test_the_order_of_tasks_makes_no_difference(tmp_path: Path) -> None:
    sides = [several(tmp_path / "A", {"c": 1.0, "a": 3.0}), several(tmp_path / "B", {"a": 4.0, "c": 2.0})]
    first, second, together = compare_runs(sides).rows
    assert [[mean.value for mean in row.means] for row in (first, second)] == [[3.0, 4.0], [1.0, 2.0]]
    assert (first.environment, second.environment, together.environment) == ("a", "c", ALL)
    assert (first.runs, together.runs) == ([1, 1], [1, 1]), "two tasks are no two runs"
    (whole,) = compare_runs(sides, metric="eval_score_mean").rows
    assert (whole.environment, whole.means[0].value) == ("a, c", 0.5)
    (named,) = compare_runs(sides, metric="c/eval_return_mean").rows
    assert (named.environment, named.means[1].value) == ("c", 2.0)


def test_a_name_in_another_environment_is_another_task(tmp_path: Path) -> None:
    one = several(tmp_path / "A", {"c": 1.0, "d": 2.0}, {"c": "Cart", "d": "Bot"})
    other = several(tmp_path / "B", {"c": 1.0, "d": 2.0}, {"c": "Bot", "d": "Cart"})
    with pytest.raises(UserError) as caught:
        compare_runs([one, other])
    assert "A' has c (Cart), d (Bot); " in str(caught.value)
    assert str(caught.value).endswith("B' has c (Bot), d (Cart)")
    large = several(tmp_path / "C", {"c": 1.0, "d": 2.0}, {"c": "Cart", "d": "Bot"}, c={"env_kwargs": {"size": 4}})
    compared = compare_runs([one, large])
    assert [row.environment for row in compared.rows] == ["d"]
    assert "c (Cart, size=4) is left out: not all sides have runs in it" in compared.notes


def test_arguments_make_another_environment(tmp_path: Path) -> None:
    runs(tmp_path / "a", [1.0], env_kwargs={"map": "4x4"})
    runs(tmp_path / "b", [1.0], env_kwargs={"map": "8x8"})
    with pytest.raises(UserError, match=r'a\' has E-v0 \(map="4x4"\); .*b\' has E-v0 \(map="8x8"\)'):
        compare_runs([tmp_path / "a", tmp_path / "b"])


def test_tasks_with_scores_are_taken_together_by_them(tmp_path: Path) -> None:
    scores = {"c": {"score": {"low": 0, "high": 10}}, "a": {"score": {"low": -100, "high": 0}}}
    for seed in (0, 1):
        several(tmp_path / "A" / str(seed), {"c": 2.0, "a": -80.0}, seed=seed, **scores)
        several(tmp_path / "B" / str(seed), {"c": 6.0, "a": -20.0}, seed=seed, **scores)
    compared = compare_runs([tmp_path / "A", tmp_path / "B"])
    assert [row.environment for row in compared.rows] == ["a", "c", SCORES]
    assert [mean.value for mean in compared.rows[-1].means] == pytest.approx([0.2, 0.7])
    assert compared.rows[-1].runs == [2, 2]
    several(tmp_path / "B" / "other", {"c": 6.0, "a": -20.0}, seed=2, **scores | {"c": {}})
    compared = compare_runs([tmp_path / "A", tmp_path / "B"])
    assert compared.rows[-1].environment == ALL
    assert [note for note in compared.notes if note.endswith("not all runs share a score in c")]
