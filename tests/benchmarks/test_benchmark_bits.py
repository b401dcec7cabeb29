"""The comparison of two checkouts to the bit: what is written down, how records are compared, and one tiny run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmark_helpers import BENCHMARKS, bit_cases, bit_records, bits
from rl_training.experiment.registry import REGISTRY

SRC = BENCHMARKS.parent / "src"
SOME = {"policy/w": "float32[2] aa", "state/rng/torch": "bb", "metrics/001/loss": "0.5"}


def record(**changes: str) -> dict[str, Any]:
    """A record of SOME paths, of which `/` is `__` in the names of changes."""
    return {"values": SOME | {name.replace("__", "/"): value for name, value in changes.items()}}


def leaves(value: Any, path: str = "x") -> dict[str, str]:
    return dict(bit_records.leaves(value, path))


def test_arrays_are_hashed_with_their_kind_and_shape() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    digest = hashlib.sha1(array.tobytes()).hexdigest()
    assert leaves(array) == {"x": f"float32[2, 3] {digest}"}
    assert leaves(torch.from_numpy(array)) == leaves(array)
    assert leaves(array.T) != leaves(array.reshape(3, 2))
    assert leaves(array) != leaves(array.astype(np.float64))
    assert leaves(np.array(0.0)) != leaves(np.array(-0.0))


def test_nested_data_is_written_path_by_path() -> None:
    value = {"counts": {"a": 1, "b": 2.0}, "none": None, "empty": {}, "list": [], "rows": [[1, "x"], {"c": True}]}
    assert leaves(value) == {
        "x/counts/a": "1",
        "x/counts/b": "2.0",
        "x/none": "None",
        "x/empty": "{}",
        "x/list": "[]",
        "x/rows/0": "[1, 'x']",
        "x/rows/1/c": "True",
    }
    assert leaves(np.float64(0.1)) == leaves(0.1) == {"x": "0.1"}
    assert leaves((1, 2)) == leaves([1, 2])


def test_long_lists_are_hashed_as_a_whole() -> None:
    assert leaves(list(range(600))) == {"x": hashlib.sha1(repr(list(range(600))).encode()).hexdigest()}


def test_wall_clock_is_left_out() -> None:
    assert leaves({"seconds": 1.0, "steps_per_second": 2.0, "metrics_length": 3, "loss": 4.0}) == {"x/loss": "4.0"}


def test_what_cannot_be_written_down_is_named() -> None:
    with pytest.raises(TypeError, match="x/part: a object cannot be written down"):
        leaves({"part": object()})


def test_metrics_of_many_steps_are_one_hash() -> None:
    def written(last: float) -> dict[str, str]:
        found = bit_records.Record()
        for step in range(60):
            found.add_metrics({"loss": last if step == 59 else 0.5, "seconds": float(step)})
        return dict(found.answer()["values"])

    assert len(written(0.5)) == 51
    assert written(0.5)["metrics/050/loss"] == "0.5"
    assert written(0.5) == written(0.5)
    changed = {path for path in written(0.5) if written(0.5)[path] != written(0.25)[path]}
    assert changed == {"metrics/rest"}


def test_equal_records() -> None:
    found = bits.compare(record(), record())
    assert (found.changed, found.added) == ([], [])
    assert not found.fails(strict=True)


def test_changed_and_missing_paths_are_found() -> None:
    new = record(policy__w="float32[2] cc")
    del new["values"]["metrics/001/loss"]
    found = bits.compare(record(), new)
    assert found.changed == [
        "policy/w: float32[2] aa became float32[2] cc",
        "metrics/001/loss: is gone (was 0.5)",
    ]
    assert found.fails(strict=False)


def test_new_paths_count_only_when_strict() -> None:
    found = bits.compare(record(), record(state__more="1"))
    assert found.added == ["state/more"]
    assert not found.fails(strict=False)
    assert found.fails(strict=True)


def test_failed_case_is_a_difference() -> None:
    assert bits.compare(record(), {"error": "ValueError: no"}).changed == ["new: ValueError: no"]
    assert bits.compare({"error": "ValueError: no"}, {"error": "ValueError: no"}).fails(strict=False)
    assert bits.compare(record(), {"skipped": "Box2D is not installed"}).changed == ["new: Box2D is not installed"]


@pytest.mark.parametrize("part", ["", "before/", "after/"])
@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        ("envs/steps", "24", "envs/actor/steps"),
        ("envs/keeper/own/0/state", "aa", "envs/actor/keeper/own/0/state"),
        ("envs/raw", "float32[2, 4] aa", "envs/actor/raw"),
        ("state/parts/episodes/carry", "float32[2, 8] aa", "envs/actor/carry"),
        ("state/parts/episodes/carry/h", "aa", "envs/actor/carry/h"),
        ("envs/steps", "0", None),
        ("envs/raw", "[]", None),
        ("envs/keeper", "{}", None),
        ("state/parts/replay/size", "3", "state/parts/replay/size"),
        ("policy/envs/weight", "aa", "policy/envs/weight"),
    ],
)
def test_rules(part: str, old: str, value: str, new: str | None) -> None:
    assert bits.renamed(part + old, value) == (None if new is None else part + new)


def test_renamed_paths_are_compared_with_their_new_names() -> None:
    old = record(envs__steps="24", envs__raw="float32[2] aa", state__parts__episodes__carry="float32[1] bb")
    new = record(
        envs__actor__steps="24",
        envs__actor__raw="float32[2] zz",
        envs__actor__carry="float32[1] bb",
        envs__actor__new="1",
    )
    found = bits.compare(old, new)
    assert found.changed == ["envs/raw -> envs/actor/raw: float32[2] aa became float32[2] zz"]
    assert found.added == ["envs/actor/new"]


def test_rules_leave_paths_alone_that_both_have() -> None:
    both = record(envs__steps="0", envs__keeper="{}", state__parts__episodes__carry="aa")
    assert bits.compare(both, both).added == []
    assert bits.compare(both, record(envs__steps="1", envs__actor__carry="aa")).changed == ["envs/steps: 0 became 1"]


def test_report_names_cases_and_paths() -> None:
    old = {"a": record(), "b": record(), "c": {"skipped": "mujoco is not installed"}}
    new = {"a": record(after__envs__more="1"), "b": record(policy__w="zz"), "c": {"skipped": "mujoco is not installed"}}
    words, well = bits.report(old, new, ["a", "b", "c"], strict=False)
    assert not well
    assert words.splitlines() == [
        "2 cases compared: 1 equal, 1 differ",
        "c: was not run: mujoco is not installed",
        "b",
        "  policy/w: float32[2] aa became zz",
        "new: envs/more (1 times)",
    ]
    assert bits.report(old, new, ["a"], strict=False)[1]
    assert not bits.report(old, new, ["a"], strict=True)[1]


def test_report_shows_cases_of_one_mistake_together() -> None:
    names = ["a", "b", "c"]
    many = {"values": {f"metrics/{step:03}/loss": "1.0" for step in range(8)}}
    old = {"a": record(), "b": record(), "c": many}
    new = {"a": {"error": "no"}, "b": {"error": "no"}, "c": {"values": {}}}
    words, _ = bits.report(old, new, names, strict=False)
    gone = [f"  metrics/{step:03}/loss: is gone (was 1.0)" for step in range(5)]
    assert words.splitlines()[1:] == ["a, b", "  new: no", "c", *gone, "  and 3 more"]


def test_every_algorithm_has_three_environments_with_both_engines() -> None:
    assert set(bit_cases.SETTINGS) == set(bit_cases.VARIANTS) == set(REGISTRY)
    for algo in REGISTRY:
        for engine in ("auto", "autograd"):
            cases = [case for name, case in bit_cases.CASES.items() if name.startswith(f"{algo}/")]
            worlds = {case.settings.get("env_id", "TinyEnv") for case in cases if case.settings.get("engine") == engine}
            assert len(worlds) >= 3, (algo, engine)


def test_cases_are_chosen_by_name_beginning_or_wildcard() -> None:
    names = ["ppo/sde/auto", "ppo/sde_sample_freq/auto", "ppg/sde/auto", "resume/ppo/tiny"]
    assert bit_cases.chosen(names, None) == names
    assert bit_cases.chosen(names, ["ppo"]) == names[:2]
    assert bit_cases.chosen(names, ["ppo/sde"]) == names[:1]
    assert bit_cases.chosen(names, ["*/sde/auto", "resume/ppo/tiny"]) == [names[0], *names[2:]]


@pytest.mark.parametrize("name", ["recurrent_ppo/tiny_discrete/auto", "td3/n_step/autograd", "bc/validation/auto"])
def test_case_writes_down_everything_and_repeats_itself(name: str) -> None:
    case = bit_cases.find_case(name)
    first, again = (bit_records.record_of(case, None, 0.0) for _ in range(2))
    assert "values" in first, first
    assert first == again
    assert first["steps"] == case.steps + 1  # one more after the evaluation
    roots = {"/".join(path.split("/")[:2]) for path in first["values"]}
    assert {"state/algorithm", "state/rng", "evaluation/eval_return_mean", "meta/config", "metrics/001"} <= roots
    assert any(path.startswith("policy/") for path in first["values"])
    assert any(path.startswith("memory/") for path in first["values"]) == (name == "td3/n_step/autograd")


def test_resumed_case_has_both_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = bit_records.record_of(bit_cases.find_case("resume/td3/tiny"), None, 0.0)
    values = found["values"]
    assert int(values["after/meta/step"]) == 2 * int(values["before/meta/step"]) == 120
    assert (tmp_path / "saved").is_dir()


def test_preset_stops_at_its_limit_and_repeats_as_many_steps() -> None:
    case = bit_cases.find_case("preset/trpo/cartpole")
    limited = bit_records.record_of(case, None, 0.0)
    assert limited["steps"] == 1
    again = bit_records.record_of(case, 1, 60.0)
    assert again == limited
    assert limited["values"]["evaluation/eval_return_mean"] != "nan"


def test_error_of_a_case_says_where() -> None:
    case = bit_cases.Case("wrong", {"algo": "ppo", "env_id": "NoSuchEnv-v0"}, 1)
    found = bit_records.record_of(case, None, 0.0)
    assert "NoSuchEnv-v0" in found["error"]
    assert ".py, line " in found["error"]


def test_tiny_run_of_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bits, "fingerprint", lambda src: {"code": "the same, even if somebody edits it meanwhile"})
    file, name = tmp_path / "old.json", "a2c/tiny_discrete/auto"
    command = [str(SRC), str(SRC), "--cases", name, "--old-record", str(file), "--jobs", "1"]
    assert bits.main(command) == 0
    said = capsys.readouterr()
    assert said.out == "1 cases compared: 1 equal, 0 differ\n"
    assert "old: 1 of 1" in said.err
    content = json.loads(file.read_text())
    found = content["records"][name]["values"]
    recorded: list[list[str]] = []

    def record_again(side: Any, steps: dict[str, int | None]) -> dict[str, Any]:
        recorded.append([side.name, *steps])
        return {case: {"values": found} for case in steps}

    monkeypatch.setattr(bits.Side, "record", record_again)
    path = next(path for path in found if path.startswith("policy/"))
    content["records"][name]["values"] = found | {path: "float32[1] another"}
    file.write_text(json.dumps(content))
    assert bits.main(command) == 1
    assert recorded == [["old"], ["new", name]]  # of the old side nothing is missing
    said = capsys.readouterr()
    assert said.out.startswith(f"1 cases compared: 0 equal, 1 differ\n{name}\n  {path}: float32[1] another")


def test_old_record_holds_for_its_code_and_its_cases(tmp_path: Path) -> None:
    file, name = tmp_path / "old.json", "ppo/tiny_discrete/auto"
    case = repr(bit_cases.find_case(name))
    records = {name: record() | {"case": case}, "ppo/sde/auto": record() | {"case": "another"}, "gone": record()}
    content = {"fingerprint": bits.fingerprint(SRC), "records": records}
    file.write_text(json.dumps(content))
    assert list(bits.read_records(file, SRC)) == [name]
    assert bits.read_records(tmp_path / "nothing.json", SRC) == {}
    content["fingerprint"]["code"] = "another"
    file.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match="was made with another code; delete it"):
        bits.read_records(file, SRC)
    file.write_text("{}")
    with pytest.raises(SystemExit, match=r"was not written by bits\.py"):
        bits.read_records(file, SRC)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nowhere SRC", "nowhere: holds no rl_training; give the src folder of a checkout"),
        ("SRC SRC --jobs 0", "--jobs 0: must be at least 1"),
        ("SRC SRC --old-record nowhere/old.json", "--old-record nowhere/old.json: there is no such folder"),
    ],
)
def test_mistakes(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bits.parse([str(SRC) if word == "SRC" else word for word in arguments.split()])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_unknown_case_is_said_plainly() -> None:
    with pytest.raises(SystemExit, match="--cases ppq: no case has such a name"):
        bits.main([str(SRC), str(SRC), "--cases", "ppq"])
