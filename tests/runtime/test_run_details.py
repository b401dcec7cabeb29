"""The picture of one run: shares of experts, stages and targets besides its curves; pictures of several have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rl_training.runtime.plots import draw, group_runs, plot_runs, read_run
from rl_training.runtime.run_details import shares_of, stage_starts
from rl_training.types import UserError
from run_helpers import Command

matplotlib = pytest.importorskip("matplotlib")

TASKS = ("cartpole", "lander", "catch")
SHARES = np.array([0.1, 0.2, 0.3, 0.4])
SWITCH = 600.0
LEFT = 500.0  # the last step at which the first task is trained


def row_of(step: float, prefix: str, *, trained: bool) -> dict[str, float]:
    """What one task reports; the shares of experts turn with time."""
    shares = np.roll(SHARES, int(step) // 100).tolist()
    loads = {f"{prefix}expert_{number}": share for number, share in enumerate(shares) if trained}
    returns = {f"{prefix}{name}": step / 10.0 for name in ("eval_return_mean", "episode_return_mean")}
    return returns | loads


def write(
    folder: Path, tasks: tuple[str, ...] = TASKS, stages: dict[float, int] | None = None, **settings: Any
) -> Path:
    """A run of 1,000 steps with a row every 100; without tasks it is one in a single environment."""
    folder.mkdir(parents=True)
    placed: dict[str, Any] = {task: {"env_id": f"{task}-v0"} for task in tasks}
    if "lander" in tasks:
        placed["lander"]["target_return"] = 80.0
    where = {"tasks": placed} if tasks else {"env_id": "CartPole-v1"}
    (folder / "config.yaml").write_text(yaml.safe_dump({"algo": "mine", "seed": 0} | where | settings, sort_keys=False))
    stages = {SWITCH: 1} if stages is None else stages
    rows = []
    for step in np.arange(100.0, 1_001.0, 100.0).tolist():
        row = {"step": step, "stage": float(max([0, *(stage for start, stage in stages.items() if step >= start)]))}
        for task in tasks or ("",):
            row |= row_of(step, f"{task}/" if task else "", trained=task != "cartpole" or step <= LEFT)
        rows.append(json.dumps(row))
    (folder / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return folder


def picture(folder: Path, *metrics: str) -> Any:
    """The figure of a run with the panels that are usual, or with others."""
    return figure_of([folder], metrics)


def figure_of(folders: list[Path], metrics: tuple[str, ...] = ()) -> Any:
    figures: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rl_training.runtime.plots.write_picture", lambda figure, _: figures.append(figure))
        plot_runs(folders, metrics=metrics)
    (figure,) = figures
    return figure


def titles(figure: Any) -> list[str]:
    return [panel.get_title() for panel in figure.axes]


def stage_lines(panel: Any) -> list[float]:
    """Where vertical lines stand."""
    return [line.get_xdata()[0] for line in panel.get_lines() if list(line.get_ydata()) == [0, 1]]


def target_lines(panel: Any) -> list[float]:
    return [line.get_ydata()[0] for line in panel.get_lines() if line.get_label() == "target return"]


def words(panel: Any) -> list[str]:
    return [text.get_text() for text in panel.texts]


def legend(figure: Any) -> list[str]:
    return [text.get_text() for found in figure.legends for text in found.get_texts()]


# Experts


def test_every_task_has_its_returns_and_its_experts_side_by_side(tmp_path: Path) -> None:
    figure = picture(write(tmp_path / "run"))
    expected = [(f"{task}. Evaluation: greedy actions", f"{task}. Share of tokens by expert") for task in TASKS]
    assert titles(figure) == [title for pair in expected for title in pair]
    grid = {(panel.get_subplotspec().rowspan.start, panel.get_subplotspec().colspan.start) for panel in figure.axes}
    assert grid == {(row, column) for row in range(3) for column in range(2)}
    assert sorted(legend(figure)) == [*(f"expert {number}" for number in range(4)), "target return"]


def test_shares_are_areas_from_0_to_1_in_the_order_of_the_experts(tmp_path: Path) -> None:
    panel = picture(write(tmp_path / "run")).axes[3]
    assert (panel.get_ylim(), panel.get_ylabel()) == ((0.0, 1.0), "share of tokens")
    assert [area.get_label() for area in panel.collections] == [f"expert {number}" for number in range(4)]
    first, second, *_, last = ({tuple(corner) for corner in area.get_paths()[0].vertices} for area in panel.collections)
    assert {(100.0, 0.0), (100.0, 0.4), (200.0, 0.3)} <= first, "the shares turn by one every 100 steps"
    assert {(100.0, 0.4), (100.0, 0.5)} <= second, "the second area stands on the first"
    assert max(y for _, y in last) == pytest.approx(1.0)
    assert len({tuple(area.get_facecolor()[0]) for area in panel.collections}) == 4
    assert not any(area.get_linewidth()[0] for area in panel.collections), "an expert without a share would be a line"


def test_the_areas_of_a_task_end_where_it_leaves_training(tmp_path: Path) -> None:
    returns, gone, _, trained = picture(write(tmp_path / "run")).axes[:4]
    ends = [max(x for x, _ in panel.collections[0].get_paths()[0].vertices) for panel in (gone, trained)]
    assert ends == [LEFT, 1_000.0]
    assert gone.get_xlim() == trained.get_xlim() == returns.get_xlim(), "it is seen against the whole run"


def test_a_run_in_one_environment_has_one_panel_of_experts(tmp_path: Path) -> None:
    figure = picture(write(tmp_path / "run", ()))
    assert titles(figure)[-1] == "Share of tokens by expert"
    assert len(figure.axes) == 3
    assert legend(figure) == [f"expert {number}" for number in range(4)]


def test_ten_experts_are_in_order_and_can_be_told_apart(tmp_path: Path) -> None:
    names = [f"a/expert_{number}" for number in (10, 2, *range(2), *range(3, 10))]
    assert list(shares_of("a/expert_*", [*names, "expert_3", "b/expert_0", "a/expert_x", "a/loss"]).values()) == [
        f"expert {number}" for number in range(11)
    ]
    folder = write(tmp_path / "run", ())
    row = {"step": 1.0} | {f"expert_{number}": 1 / 11 for number in range(11)}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (panel,) = picture(folder).axes
    assert len({tuple(area.get_facecolor()[0]) for area in panel.collections}) == 11
    assert [bool(area.get_hatch()) for area in panel.collections] == [False] * 7 + [True] * 4
    assert all(area.get_linewidth()[0] > 0.0 for area in panel.collections), "a single step has nothing but its edge"


def test_experts_are_drawn_by_name_too(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    assert titles(picture(run, "lander/expert_*", "stage")) == ["lander. Share of tokens by expert", "stage"]
    with pytest.raises(UserError, match=r"'lander/expertt_\*': no such metric; did you mean 'lander/expert_\*'"):
        plot_runs([run], metrics=["lander/expertt_*"])


# Stages


def test_a_line_with_a_label_stands_where_a_stage_begins_in_every_panel(tmp_path: Path) -> None:
    run = write(tmp_path / "run", stages={300.0: 1, 800.0: 2})
    assert stage_starts(read_run(run)) == [(300.0, 1), (800.0, 2)]
    for panel in (*picture(run).axes, *picture(run, "stage").axes):
        assert stage_lines(panel) == [300.0, 800.0]
        assert words(panel) == ["stage 1", "stage 2"]


def test_a_run_of_one_stage_has_no_line(tmp_path: Path) -> None:
    for panel in picture(write(tmp_path / "run", stages={})).axes:
        assert (stage_lines(panel), words(panel)) == ([], [])


def test_stages_that_begin_together_share_a_label(tmp_path: Path) -> None:
    panel = picture(write(tmp_path / "run", stages={300.0: 1, 400.0: 2, 800.0: 3})).axes[0]
    assert stage_lines(panel) == [300.0, 400.0, 800.0]
    assert words(panel) == ["stages 1-2", "stage 3"]
    assert [text.xy[0] for text in panel.texts] == [350.0, 800.0]


def test_nothing_lies_on_anything_else(tmp_path: Path) -> None:
    figure = picture(write(tmp_path / "run", stages={300.0: 1, 500.0: 2}))
    figure.draw_without_rendering()
    (names,) = figure.legends
    for panel in figure.axes:
        labels = [text.get_window_extent() for text in panel.texts]
        title = panel.title.get_window_extent()
        assert not labels[0].overlaps(labels[1])
        assert not any(label.overlaps(title) or label.overlaps(panel.get_window_extent()) for label in labels)
        assert names.get_window_extent().y1 < panel.get_tightbbox().y0


@pytest.mark.parametrize("count", [1, 3, 5, 7])
def test_the_lowest_panel_of_every_column_has_its_steps(count: int, tmp_path: Path) -> None:
    figure = picture(write(tmp_path / "run", tuple(f"a-rather-long-name-of-a-task-{task}" for task in range(count))))
    figure.draw_without_rendering()
    lowest: dict[int, Any] = {}
    for panel in figure.axes:
        lowest[panel.get_subplotspec().colspan.start] = panel
    for panel in figure.axes:
        at_the_bottom = panel in lowest.values()
        assert panel.xaxis.get_tick_params()["labelbottom"] == at_the_bottom
        steps = "environment steps of all tasks" if count > 1 else "environment steps"
        assert panel.get_xlabel() == (steps if at_the_bottom else "")
    heading = figure._suptitle.get_window_extent()
    assert heading.x0 >= 0.0
    assert heading.y0 >= max(panel.title.get_window_extent().y1 for panel in figure.axes)


# Targets


def test_the_target_of_a_task_is_a_line_in_its_returns_alone(tmp_path: Path) -> None:
    figure = picture(write(tmp_path / "run"))
    assert [target_lines(panel) for panel in figure.axes] == [[], [], [80.0], [], [], []]
    assert target_lines(picture(write(tmp_path / "one", ())).axes[0]) == []


# Other pictures


def test_pictures_of_several_runs_show_returns_alone(tmp_path: Path) -> None:
    runs = [write(tmp_path / f"seed{seed}", seed=seed) for seed in range(2)]
    figure = figure_of(runs)
    assert titles(figure) == [f"{task}. Evaluation: greedy actions" for task in TASKS]
    assert legend(figure) == ["mine (mean of 2 seeds)", "95% bootstrap confidence interval of the mean"]
    others = figure_of([runs[0], write(tmp_path / "other", ())])
    for panel in (*figure.axes, *others.axes):
        assert (stage_lines(panel), target_lines(panel), words(panel)) == ([], [], [])
    with pytest.raises(UserError, match="no such metric"):
        plot_runs(runs, metrics=["cartpole/expert_*"])


def test_runs_with_other_tasks_have_a_panel_for_every_task(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one", ("c", "a")), write(tmp_path / "other", ("d", "c"), seed=1)
    figure = figure_of([one, other])
    assert titles(figure) == ["a", "c", "d"]
    assert [len(panel.get_lines()) for panel in figure.axes] == [1, 2, 1]
    assert legend(figure) == ["tasks=c+a", "tasks=d+c"]
    shared = figure.axes[1].get_lines()
    assert len({line.get_color() for line in shared}) == 2
    figure = figure_of([one, other], ("stage", "eval_return_mean"))
    assert titles(figure)[:2] == ["a: Evaluation: greedy actions", "a, c: stage"]
    swapped = with_tasks(tmp_path / "swapped", {"c": {"env_id": "Bot"}, "a": {"env_id": "Cart"}})
    figure = figure_of([one, swapped])
    assert titles(figure) == ["a (Cart)", "a (a-v0)", "c (Bot)", "c (c-v0)"]


def with_tasks(folder: Path, tasks: dict[str, Any]) -> Path:
    """A run whose tasks have these settings."""
    write(folder, tuple(tasks))
    (folder / "config.yaml").write_text(yaml.safe_dump({"algo": "mine", "seed": 0, "tasks": tasks}, sort_keys=False))
    return folder


def test_labels_name_the_settings_of_tasks_that_differ(tmp_path: Path) -> None:
    plain: dict[str, Any] = {task: {"env_id": f"{task}-v0"} for task in ("c", "a", "b")}
    others = [
        plain,
        plain | {"a": {"env_id": "a-v0", "score": {"low": 0, "high": 9}}},
        plain | {"a": {"env_id": "x"}},
        {"c": plain["c"]},
    ]
    first, scored, moved, fewer = (read_run(with_tasks(tmp_path / str(n), tasks)) for n, tasks in enumerate(others))
    for other, labels in (
        (scored, [f"tasks.a.score.high={high}, tasks.a.score.low={low}" for high, low in (("null", "null"), (9, 0))]),
        (moved, ["tasks.a.env_id=a-v0", "tasks.a.env_id=x"]),
        (fewer, ["tasks=c+a+b", "tasks=c"]),
    ):
        assert [group.label for group in group_runs([first, other])] == labels


def test_a_run_without_these_metrics_is_drawn_without_a_legend(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "run", ("catch",), stages={}))
    assert draw(group_runs([run]), ["catch/eval_return_mean"]).legends == []


def test_the_command_draws_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write(tmp_path / "run")
    said = Command(monkeypatch, capsys)("plot", run, "--output", tmp_path / "x.svg")
    assert (said.code, said.err) == (0, "")
    drawn = (tmp_path / "x.svg").read_text()
    for text in ("stage 1", "expert 3", "target return", "catch. Share of tokens by expert"):
        assert f"<!-- {text} -->" in drawn
