"""Learning curves: which runs belong together, what is drawn, where it is written, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from rl_training import UserError, train_seeds
from rl_training.cli import cli
from rl_training.ops.statistics import bootstrap_interval
from rl_training.runtime.plots import Plot, common_curves, draw, find_runs, group_runs, plot_runs, read_run
from run_helpers import tiny

matplotlib = pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n\x1a\n"


def write_run(
    folder: Path, curve: dict[int, float], *, metric: str = "episode_return_mean", tail: str = "", **settings: Any
) -> Path:
    """A run's folder with a curve of one metric."""
    folder.mkdir(parents=True)
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 0, "output_dir": str(folder.parent)} | settings
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [json.dumps({"step": float(step), metric: value, "entropy": 0.5}) for step, value in curve.items()]
    (folder / "metrics.jsonl").write_text("".join(row + "\n" for row in rows) + tail)
    return folder


def panels(plotted: Plot, *metrics: str) -> list[Any]:
    return list(draw(plotted.groups, metrics).axes)


def drawn_line(panel: Any, index: int = 0) -> tuple[list[float], list[float]]:
    line = panel.get_lines()[index]
    return list(line.get_xdata()), list(line.get_ydata())


def test_seeds_of_one_config_become_a_mean_and_a_band(tmp_path: Path) -> None:
    curves = [{100: 1.0, 200: 5.0}, {100: 3.0, 200: 7.0}, {100: 2.0, 200: 30.0}]
    for seed, curve in enumerate(curves):
        write_run(tmp_path / f"run{seed}", curve, seed=seed, output_dir=f"elsewhere{seed}", tags=[str(seed)])
    plotted = plot_runs([tmp_path], output=tmp_path / "x.png")
    (group,) = plotted.groups
    assert len(group.runs) == 3
    (panel,) = panels(plotted, "episode_return_mean")
    assert drawn_line(panel) == ([100.0, 200.0], [2.0, 14.0])
    (band,) = panel.collections
    corners = {(float(x), float(y)) for x, y in band.get_paths()[0].vertices}
    for step, values in ((100.0, [1.0, 3.0, 2.0]), (200.0, [5.0, 7.0, 30.0])):
        low, high = bootstrap_interval(np.array(values), resamples=2_000)
        assert {(step, float(low)), (step, float(high))} <= corners
    assert {(100.0, 1.0), (100.0, 3.0)} <= corners, "of three seeds the interval is their range"


def test_a_single_run_has_no_band(tmp_path: Path) -> None:
    plotted = plot_runs([write_run(tmp_path / "run", {10: 1.0, 20: 2.0})], output=tmp_path / "x.png")
    (panel,) = panels(plotted, "episode_return_mean")
    assert drawn_line(panel) == ([10.0, 20.0], [1.0, 2.0])
    assert len(panel.collections) == 0


def test_curves_on_other_steps_are_interpolated_where_all_have_values() -> None:
    together = common_curves(
        [
            (np.array([0.0, 100.0, 400.0]), np.array([0.0, 10.0, 40.0])),
            (np.array([50.0, 300.0]), np.array([50.0, 300.0])),
        ]
    )
    assert together is not None
    steps, values = together
    assert (steps[0], steps[-1]) == (50.0, 300.0)
    np.testing.assert_allclose(values[:, 0], steps / 10.0)
    np.testing.assert_allclose(values[:, 1], steps)


def test_curves_with_the_same_steps_are_not_interpolated() -> None:
    steps = np.array([1.0, 2.0, 50.0])
    together = common_curves([(steps, np.array([1.0, 9.0, 2.0])), (steps, np.array([3.0, 1.0, 4.0]))])
    assert together is not None
    np.testing.assert_array_equal(together[0], steps)
    np.testing.assert_array_equal(together[1], [[1.0, 3.0], [9.0, 1.0], [2.0, 4.0]])


def test_one_evaluation_at_the_end_of_each_run_is_a_point_with_an_interval(tmp_path: Path) -> None:
    for seed, (step, value) in enumerate([(100, 10.0), (104, 30.0), (102, 20.0)]):
        write_run(tmp_path / f"run{seed}", {step: value}, metric="eval_return_mean", seed=seed)
    (panel,) = panels(plot_runs([tmp_path], output=tmp_path / "x.png"), "eval_return_mean")
    assert drawn_line(panel) == ([102.0], [20.0])
    (bar,) = panel.collections
    np.testing.assert_allclose(bar.get_segments()[0], [[102.0, 10.0], [102.0, 30.0]])


def test_curves_that_share_no_step_are_drawn_one_by_one(tmp_path: Path) -> None:
    write_run(tmp_path / "early", {10: 1.0, 20: 2.0}, seed=0)
    write_run(tmp_path / "late", {30: 3.0, 40: 4.0}, seed=1)
    (panel,) = panels(plot_runs([tmp_path], output=tmp_path / "x.png"), "episode_return_mean")
    assert [drawn_line(panel, k) for k in (0, 1)] == [([10.0, 20.0], [1.0, 2.0]), ([30.0, 40.0], [3.0, 4.0])]


def test_groups_are_named_after_what_tells_them_apart(tmp_path: Path) -> None:
    for name, settings in {
        "a": {"ent_coef": 0.0, "gamma": 0.99},
        "b": {"ent_coef": 0.01, "gamma": 0.99},
        "c": {"algo": "a2c", "gamma": 0.9, "clip": None},
    }.items():
        write_run(tmp_path / name, {1: 1.0}, **settings)
    labels = [group.label for group in group_runs([read_run(path) for path in find_runs([tmp_path])])]
    assert labels == ["ppo, ent_coef=0", "ppo, ent_coef=0.01", "a2c"]


def test_groups_differ_in_colour_and_the_legend_names_them(tmp_path: Path) -> None:
    for index in range(9):
        write_run(tmp_path / f"run{index}", {1: 1.0, 2: 2.0}, gamma=index / 10)
    plotted = plot_runs([tmp_path], output=tmp_path / "x.png")
    figure = draw(plotted.groups, ["episode_return_mean", "entropy"])
    for panel in figure.axes:
        looks = {(line.get_color(), line.get_linestyle()) for line in panel.get_lines()}
        assert len(looks) == 9
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"gamma={index / 10:g}" for index in range(9)]


def test_the_words_of_the_picture(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"run{seed}", {1_000: 1.0, 2_000_000: 2.0}, seed=seed)
    figure = draw(plot_runs([tmp_path], output=tmp_path / "x.png").groups, ["episode_return_mean"])
    (panel,) = figure.axes
    figure.draw_without_rendering()
    assert panel.get_xlabel() == "environment steps"
    assert panel.get_ylabel() == "return per episode (reward)"
    assert "1,000,000" in [tick.get_text() for tick in panel.get_xticklabels()]
    assert figure.get_suptitle() == "ppo on CartPole-v1"
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["ppo (mean of 2 seeds)", "95% bootstrap confidence interval of the mean"]


def test_the_title_says_which_actions_were_judged(tmp_path: Path) -> None:
    """Dreamer is judged by sampled actions, and logs the returns of greedy ones beside them."""
    greedy = write_run(tmp_path / "greedy", {1_000: 1.0}, metric="eval_return_mean")
    sampled = write_run(tmp_path / "sampled", {1_000: 1.0}, metric="eval_return_mean", algo="dreamer")
    row = {"step": 1_000.0, "eval_return_mean": 1.0, "eval_return_mean_greedy": 2.0}
    (sampled / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    for runs, title in (
        ([greedy], "Evaluation: greedy actions"),
        ([sampled], "Evaluation: sampled actions"),
        ([greedy, sampled], "Evaluation"),
    ):
        (panel,) = panels(plot_runs(runs, output=tmp_path / "x.png"), "eval_return_mean")
        assert panel.get_title() == title


def test_nothing_of_a_long_legend_is_cut_off(tmp_path: Path) -> None:
    for index in range(5):
        write_run(
            tmp_path / f"run{index}", {1: 1.0, 2: 2.0}, some_long_setting=f"a value with number {index}", gamma=index
        )
    figure = draw(plot_runs([tmp_path], output=tmp_path / "x.png").groups, ["episode_return_mean"])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    width, height = figure.canvas.get_width_height()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 < min(panel.get_tightbbox().y0 for panel in figure.axes), "it lies on the picture"
    assert box.height < height / 2


def test_where_the_picture_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = write_run(tmp_path / "runs" / "a", {1: 1.0}, seed=0)
    second = write_run(tmp_path / "runs" / "b", {1: 1.0}, seed=1)
    assert plot_runs([first]).path == first / "plot.png"
    assert (first / "plot.png").read_bytes().startswith(PNG)
    assert plot_runs([first, second]).path.resolve() == tmp_path / "plot.png"
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)
    plot_runs([first], output="other.svg")
    assert "<svg" in (tmp_path / "other.svg").read_text()


def test_folders_of_runs_are_searched_and_a_run_is_drawn_once(tmp_path: Path) -> None:
    inner = write_run(tmp_path / "group" / "b", {1: 1.0})
    outer = write_run(tmp_path / "a", {1: 1.0})
    write_run(tmp_path / ".a.draft", {1: 1.0})
    assert find_runs([tmp_path, inner]) == [outer, inner]


def test_a_repetition_of_a_seed_is_left_out_and_said(tmp_path: Path) -> None:
    short = write_run(tmp_path / "short", {1: 1.0}, seed=3)
    long = write_run(tmp_path / "long", {1: 1.0, 2: 2.0}, seed=3)
    plotted = plot_runs([short, long], output=tmp_path / "x.png")
    assert [run.path for run in plotted.groups[0].runs] == [long]
    assert plotted.notes == [f"{short} is left out: it has the config and the seed of {long}"]


def test_a_line_that_a_crash_cut_short_and_numbers_that_are_none_are_passed_over(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {1: 1.0, 2: float("nan"), 3: 3.0}, tail='{"step": 4, "epis')
    steps, values = read_run(run).curve("episode_return_mean")
    assert (list(steps), list(values)) == ([1.0, 3.0], [1.0, 3.0])


def test_mistakes_are_one_message(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {1: 1.0})
    with pytest.raises(UserError, match=r"'entropi'.*did you mean 'entropy'"):
        plot_runs([run], metrics=["entropi"])
    with pytest.raises(UserError, match="there is no such run"):
        plot_runs([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no run"):
        plot_runs([tmp_path / "empty"])
    with pytest.raises(UserError, match=r"must end with one of \.png"):
        plot_runs([run], output=tmp_path / "x.bmp")
    with pytest.raises(UserError, match="cannot write"):
        plot_runs([run], output=tmp_path / "nowhere" / "x.png")
    with pytest.raises(UserError, match="has no metrics yet"):
        plot_runs([write_run(tmp_path / "new", {})])
    with pytest.raises(UserError, match=r"metrics\.jsonl.: is missing, damaged or foreign"):
        plot_runs([write_run(tmp_path / "damaged", {1: 1.0}, tail="no json\n")])


@pytest.mark.parametrize(
    "settings",
    [
        {"tasks": {"c": 5}},
        {"tasks": {1: {"env_id": [1]}, 2: None}},
        {"tasks": [1]},
        {"tasks": {"c": {"env_id": "x", "score": {"low": "a"}, "env_kwargs": [1]}}},
        {"env_kwargs": 7},
    ],
)
def test_tasks_that_are_none_are_no_reason_to_fail(settings: dict[str, Any], tmp_path: Path) -> None:
    write_run(tmp_path / "whole", {1: 1.0}, tasks={"c": {"env_id": "x"}})
    write_run(tmp_path / "odd", {1: 1.0}, **settings)
    assert len(plot_runs([tmp_path], output=tmp_path / "x.png").groups) == 2


@pytest.mark.parametrize(
    "settings", [{"algo": {"x": "ppo"}}, {"env_id": [1]}, {"seed": [3]}, {"seed": "3"}, {"env_kwargs": {1: 2, "x": 3}}]
)
def test_a_config_of_other_kinds_is_one_line(settings: dict[str, Any], tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "whole", {1: 1.0}), write_run(tmp_path / "damaged", {1: 1.0}, **settings)]
    with pytest.raises(UserError, match=r"damaged/config\.yaml': is missing, damaged or foreign \([^\n]*$"):
        plot_runs(runs, output=tmp_path / "out.png")
    with pytest.raises(UserError, match="no returns yet"):
        plot_runs([write_run(tmp_path / "young", {1: 1.0}, metric="policy_loss")])
    assert not list(tmp_path.rglob("*.png"))


def test_a_picture_for_a_dark_background(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {1: 1.0, 2: 2.0})
    for name, dark, corner in (("light", [], (255, 255, 255)), ("dark", ["--dark"], (13, 17, 23))):
        picture = tmp_path / f"{name}.png"
        CliRunner().invoke(cli, ["plot", str(run), "--output", str(picture), *dark], catch_exceptions=False)
        pixels = matplotlib.image.imread(picture)[..., :3]
        np.testing.assert_allclose(pixels[0, 0] * 255.0, corner, atol=0.5)
        assert np.abs(pixels - pixels[0, 0]).mean(axis=-1).max() > 0.7, "words differ from the background"
    with pytest.raises(UserError, match="--dark: is for learning curves and comparisons alone"):
        CliRunner().invoke(cli, ["plot", str(run), "--search", "--dark"], catch_exceptions=False)


def test_a_missing_matplotlib_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"pip install 'rl-training\[plot\]'"):
        plot_runs([write_run(tmp_path / "run", {1: 1.0})])


def test_the_command_draws_real_runs(tmp_path: Path) -> None:
    outcome = train_seeds(tiny(tmp_path, eval_interval=60), [1, 2])
    picture = tmp_path / "curves.png"
    result = CliRunner().invoke(cli, ["plot", str(outcome.folder), "--output", str(picture)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "ppo: 2 runs" in result.output
    assert str(picture) in result.output
    pixels = matplotlib.image.imread(picture)
    blue = np.abs(pixels[..., :3] * 255.0 - np.array([0x00, 0x72, 0xB2])).max(axis=-1) < 1.0
    assert pixels.shape[1] > 1_000
    assert blue.sum() > 500, "the curves are not in the picture"
    (panel, other) = panels(plot_runs([outcome.folder], output=picture), "eval_return_mean", "episode_return_mean")
    assert len(drawn_line(panel)[0]) > 1
    assert len(drawn_line(other)[0]) > 1


def test_drawing_loads_no_torch(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {1: 1.0, 2: 2.0})
    code = (
        "import sys\n"
        "from rl_training.runtime.plots import plot_runs\n"
        f"plot_runs([{str(run)!r}])\n"
        "assert 'matplotlib' in sys.modules\n"
        "assert not {'torch', 'gymnasium', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (run / "plot.png").is_file()


# Several environments, and runs that are empty.


def test_every_environment_has_a_panel_and_a_label_has_one_colour(tmp_path: Path) -> None:
    for algo in ("ppo", "sac"):
        for env_id in ("A-v0", "B-v0", "C-v0", "D-v0"):
            for seed in (0, 1):
                curve = {1: float(seed), 2: 2.0}
                write_run(tmp_path / f"{algo}{env_id}{seed}", curve, algo=algo, env_id=env_id, seed=seed)
    plotted = plot_runs([tmp_path], output=tmp_path / "x.png")
    figure = draw(plotted.groups, ["episode_return_mean"])
    assert [panel.get_title() for panel in figure.axes] == ["A-v0", "B-v0", "C-v0", "D-v0"]
    for panel in figure.axes:
        assert [line.get_color() for line in panel.get_lines()] == ["#0072B2", "#D55E00"]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words[:2] == ["ppo (mean of 2 seeds)", "sac (mean of 2 seeds)"]
    assert figure.get_suptitle() == "Training: mean of the last 100 episodes"
    assert len(draw(plotted.groups, ["episode_return_mean", "entropy"]).axes) == 8


def test_of_several_environments_one_metric_is_drawn_the_one_with_a_curve(tmp_path: Path) -> None:
    for env_id in ("A-v0", "B-v0"):
        folder = write_run(tmp_path / env_id, {}, env_id=env_id)
        rows = [{"step": 1.0, "episode_return_mean": 1.0}, {"step": 2.0, "episode_return_mean": 2.0}]
        rows[1]["eval_return_mean"] = 5.0
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = CliRunner().invoke(
        cli, ["plot", str(tmp_path), "--output", str(tmp_path / "x.svg")], catch_exceptions=False
    )
    assert "A-v0: ppo: 1 run\n" in result.output
    picture = (tmp_path / "x.svg").read_text()
    assert "<!-- ppo: training: mean of the last 100 episodes -->" in picture


def test_a_group_of_fewer_seeds_is_said(tmp_path: Path) -> None:
    for env_id, seeds in (("A-v0", 3), ("B-v0", 2)):
        for seed in range(seeds):
            write_run(tmp_path / f"{env_id}{seed}", {1: 1.0, 2: 2.0}, env_id=env_id, seed=seed)
    figure = draw(plot_runs([tmp_path], output=tmp_path / "x.png").groups, ["episode_return_mean"])
    assert figure.legends[0].get_texts()[0].get_text() == "ppo (mean of 2 to 3 seeds)"


def test_empty_runs_are_left_out_with_a_word(tmp_path: Path) -> None:
    write_run(tmp_path / "full", {1: 1.0})
    empty = write_run(tmp_path / "empty", {}, seed=4)
    result = CliRunner().invoke(
        cli, ["plot", str(tmp_path), "--output", str(tmp_path / "x.png")], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert f"note: {empty} is left out: it has no metrics yet" in result.output
    assert "ppo: 1 run\n" in result.output


def test_runs_are_found_by_a_pattern(tmp_path: Path) -> None:
    for name in ("a__1", "a__2", "b__1"):
        write_run(tmp_path / name, {1: 1.0})
    assert find_runs([tmp_path / "a__*"]) == [tmp_path / "a__1", tmp_path / "a__2"]
    with pytest.raises(UserError, match="there is no such run"):
        find_runs([tmp_path / "c__*"])
