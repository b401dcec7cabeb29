"""What a checkpoint holds, how it is found, evaluated and refused."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conformance import OFF_POLICY, OFFLINE
from forgery import reseal, write_state
from rl_training import PPO, Callback, UserError, evaluate_checkpoint, resume_training, train
from rl_training.experiment.config import load_config
from rl_training.experiment.registry import REGISTRY
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import FORMAT_VERSION, read_checkpoint, write_checkpoint
from rl_training.runtime.datasets import Behaviour, collect
from rl_training.runtime.train import build
from run_helpers import (
    Pulled,
    PullPlug,
    Recording,
    Walk,
    checkpoint_names,
    differences,
    latest,
    metadata,
    metrics_rows,
    run_differences,
    tiny,
)

FILES = {"meta.json", "model.safetensors", "state.json", "state.safetensors", "envs.json", "envs.safetensors"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended; it is only read."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    train(tiny(eval_interval=96, normalize_obs=True, keep_checkpoints=9), run_dir=run_dir)
    return run_dir


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """The same run, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


class LooksAtStart(Callback):
    """What is on disk before the first step."""

    found: list[str] = []

    def on_start(self, run: Any) -> None:
        assert run.steps == 0
        self.found = sorted(path.name for path in run.folder.checkpoints.iterdir())
        self.latest = find_checkpoint(run.folder.path)


def test_a_checkpoint_is_written_before_the_first_step(tmp_path: Path) -> None:
    looking = LooksAtStart()
    train(tiny(), run_dir=tmp_path / "run", callbacks=[looking])
    assert looking.found == ["latest", "step_0"]
    assert looking.latest == tmp_path / "run" / "checkpoints" / "step_0"


def test_a_run_can_be_resumed_from_its_first_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Pulled):
        train(tiny(), run_dir=tmp_path / "cut", callbacks=[PullPlug(0)])
    assert checkpoint_names(tmp_path / "cut") == ["step_0"]
    resume_training(tmp_path / "cut")
    train(tiny(), run_dir=tmp_path / "whole")
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []


def test_the_folder_of_a_checkpoint(finished: Path) -> None:
    path = find_checkpoint(finished)
    assert {file.name for file in path.iterdir()} == FILES
    meta = json.loads((path / "meta.json").read_text())
    assert meta["format"] == FORMAT_VERSION
    assert meta["config"]["env_id"] == "CartPole-v1"
    assert meta["config"]["hidden_sizes"] == [8]
    assert {"torch", "numpy", "gymnasium", "python", "rl_training"} <= meta["versions"].keys()
    assert meta["threads"] == 1
    assert meta["engine"]
    assert meta["resume"] == "exact"
    assert meta["spaces"]["obs_shape"] == [4]
    assert meta["step"] == int(path.name.removeprefix("step_"))
    # What a policy needs to act is in the one file that every language can read.
    policy = load_file(path / "model.safetensors")
    assert any(name.startswith("network.") for name in policy)
    assert "obs_normalizer.mean" in policy


def test_the_trainer_state_holds_horizon_and_stop(finished: Path) -> None:
    trainer = latest(finished).state["trainer"]
    assert trainer["horizon"] == 240
    assert trainer["should_stop"] is False
    assert trainer["stop_reason"] == "completed"
    assert trainer["metrics_length"] == (finished / "metrics.jsonl").stat().st_size
    assert latest(finished, "step_0").state["trainer"]["stop_reason"] is None


def test_latest_and_best_are_one_line_files(finished: Path) -> None:
    folder = finished / "checkpoints"
    names = checkpoint_names(finished)
    assert (folder / "latest").read_text() == names[-1] + "\n"
    evaluations = {
        f"step_{row['step']:.0f}": row["eval_return_mean"]
        for row in metrics_rows(finished)
        if "eval_return_mean" in row
    }
    best = (folder / "best").read_text().strip()
    assert evaluations[best] == max(evaluations.values())
    assert find_checkpoint(finished, "best") == folder / best
    assert find_checkpoint(folder) == folder / names[-1]
    assert find_checkpoint(folder / names[0]) == folder / names[0]
    assert find_checkpoint(finished, "step_0") == folder / "step_0"


class Scores(Callback):
    """Decides by itself what the evaluations come to."""

    def __init__(self, *scores: float) -> None:
        self.scores = list(scores)

    def on_start(self, run: Any) -> None:
        from rl_training.runtime.evaluations import Evaluation

        def scored(episodes: int) -> Evaluation:
            return Evaluation((self.scores.pop(0),), (1,))

        run.evaluate = scored


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    config = tiny(vectorization="sync", checkpoint_interval=24, eval_interval=24, keep_checkpoints=3)
    scores = Scores(1.0, 9.0, *[2.0] * 8)
    train(config, run_dir=tmp_path / "run", callbacks=[scores])
    assert scores.scores == []
    assert checkpoint_names(tmp_path / "run") == ["step_48", "step_192", "step_216", "step_240"]
    assert (tmp_path / "run" / "checkpoints" / "best").read_text() == "step_48\n"
    hidden = [path.name for path in (tmp_path / "run" / "checkpoints").glob(".*")]
    assert hidden == []


def test_a_new_best_is_saved_though_no_checkpoint_is_due(tmp_path: Path) -> None:
    config = tiny(vectorization="sync", checkpoint_interval=10_000, eval_interval=24, keep_checkpoints=2)
    train(config, run_dir=tmp_path / "run", callbacks=[Scores(5.0, 1.0, 7.0, *[2.0] * 7)])
    assert find_checkpoint(tmp_path / "run", "best").name == "step_72"
    assert checkpoint_names(tmp_path / "run") == ["step_72", "step_240"]


def test_a_missing_or_broken_pointer_is_no_loss(copied: Path) -> None:
    folder = copied / "checkpoints"
    newest = checkpoint_names(copied)[-1]
    for content in (None, "", "step_99999999\n"):
        (folder / "latest").unlink(missing_ok=True)
        if content is not None:
            (folder / "latest").write_text(content)
        assert find_checkpoint(copied).name == newest


def test_evaluate_checkpoint_is_the_runs_own_evaluation(finished: Path) -> None:
    rows = {row["step"]: row for row in metrics_rows(finished) if "eval_return_mean" in row}
    assert len(rows) >= 2
    compared = 0
    for name in checkpoint_names(finished):
        step = float(name.removeprefix("step_"))
        if step in rows:
            judged = evaluate_checkpoint(finished / "checkpoints" / name)
            assert judged["step"] == step
            assert {key: rows[step][key] for key in judged} == judged
            compared += 1
    assert compared >= 2


@pytest.mark.parametrize("algo", REGISTRY)
def test_evaluate_checkpoint_judges_every_algorithm(algo: str, tmp_path: Path) -> None:
    """From the checkpoint alone it comes to what the run itself came to, at its end and halfway."""
    config = tiny(algo=algo, vectorization="sync", eval_interval=96, total_timesteps=192, keep_checkpoints=9)
    result = train(config | {"normalize_obs": True, "learning_rate": 0.01}, run_dir=tmp_path / "run")
    rows = {row["step"]: row for row in metrics_rows(tmp_path / "run") if "eval_return_mean" in row}
    for step in (96, 192):
        judged = evaluate_checkpoint(tmp_path / "run" / "checkpoints" / f"step_{step}")
        assert {key: rows[step][key] for key in judged} == judged
    assert judged["eval_return_mean"] == result["eval_return_mean"]
    assert evaluate_checkpoint(tmp_path / "run", num_episodes=3)["eval_episodes"] == 3.0


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_a_policy_is_judged_without_its_replay(algo: str, tmp_path: Path) -> None:
    """What a policy needs to act is in one file; the memory of its training is not read for that."""
    train(tiny(algo=algo, total_timesteps=96), run_dir=tmp_path / "run")
    path = find_checkpoint(tmp_path / "run")
    whole = evaluate_checkpoint(path)
    shutil.rmtree(path / "replay")
    assert evaluate_checkpoint(path) == whole
    with pytest.raises(UserError):
        resume_training(tmp_path / "run", total_timesteps=240)


@pytest.mark.parametrize("algo", OFFLINE)
def test_a_policy_is_judged_without_its_dataset(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(algo=algo, total_timesteps=8), run_dir=tmp_path / "run")
    whole = evaluate_checkpoint(tmp_path / "run")
    monkeypatch.delattr("made_up_data.noise")
    assert evaluate_checkpoint(tmp_path / "run") == whole
    with pytest.raises(UserError, match="dataset='made_up_data:noise': 'made_up_data' has no 'noise'"):
        resume_training(tmp_path / "run", total_timesteps=16)


def test_evaluate_checkpoint_of_a_run_takes_its_latest_or_best(finished: Path) -> None:
    assert evaluate_checkpoint(finished)["step"] == latest(finished).meta["step"]
    assert evaluate_checkpoint(finished, which="best")["step"] == latest(finished, "best").meta["step"]
    judged = evaluate_checkpoint(finished, num_episodes=5, device="cpu")
    assert judged["eval_episodes"] == 5.0
    assert evaluate_checkpoint(finished, num_episodes=5) == judged


def test_judging_and_loading_change_nothing_on_disk(copied: Path) -> None:
    from rl_training import PPO

    # As a run that is still going on would leave it: rows beyond the latest checkpoint.
    with (copied / "metrics.jsonl").open("a") as file:
        file.write('{"step": 999999}\n')
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    evaluate_checkpoint(copied)
    PPO.load(copied).close()
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_resume_cuts_the_metrics_to_what_the_checkpoint_knows(tmp_path: Path) -> None:
    config = tiny(vectorization="sync", log_interval=24, checkpoint_interval=96)
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "run", callbacks=[PullPlug(180)])
    file = tmp_path / "run" / "metrics.jsonl"
    assert metrics_rows(tmp_path / "run")[-1]["step"] == 168
    with file.open("a") as stream:
        stream.write('{"step": 192, "torn')  # the kill came in the middle of a row

    class SeesTheRows(Recording):
        def on_start(self, run: Any) -> None:
            self.rows = metrics_rows(tmp_path / "run")

    seen = SeesTheRows()
    resume_training(tmp_path / "run", callbacks=[seen])
    assert [row["step"] for row in seen.rows] == [24, 48, 72, 96]
    assert [row["step"] for row in metrics_rows(tmp_path / "run")] == list(range(24, 264, 24))


def test_nothing_is_unpickled(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("something was unpickled")

    for owner, name in ((torch, "load"), (pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")):
        monkeypatch.setattr(owner, name, forbidden)
    read_checkpoint(find_checkpoint(finished))


class Trap:
    """Unpickling it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("save", [torch.save, lambda value, file: file.write_bytes(pickle.dumps(value))])
def test_code_in_a_checkpoint_is_refused_and_does_not_run(
    name: str, save: Callable[[Any, Path], Any], copied: Path, tmp_path: Path
) -> None:
    path = find_checkpoint(copied)
    save({"algorithm": Trap(tmp_path / "trace"), "trainer": {}}, path / name)
    if name != "meta.json":
        reseal(path)
    with pytest.raises(UserError, match=rf"{name}.*damaged or foreign"):
        resume_training(copied, total_timesteps=480)
    assert not (tmp_path / "trace").exists()
    # The trap would have worked: this is what a careless reader does.
    with suppress(RuntimeError):
        torch.load(shutil.copy(path / name, tmp_path / "copy.pt"), weights_only=False)
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("version", [1, 2, FORMAT_VERSION + 1, "7b", True])
def test_another_format_is_refused_by_name(version: Any, copied: Path) -> None:
    path = find_checkpoint(copied)
    meta = json.loads((path / "meta.json").read_text()) | {"format": version}
    (path / "meta.json").write_text(json.dumps(meta))
    refused = f"{str(path)!r}: has format {version}; this version of rl_training reads {FORMAT_VERSION}"
    for work in (resume_training, evaluate_checkpoint, PPO.load, lambda run: collect(None, [Behaviour(run)], steps=3)):
        with pytest.raises(UserError) as caught:
            work(copied)
        assert str(caught.value) == refused


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("damage", ["truncated", "empty", "missing", "noise"])
def test_a_damaged_file_is_one_clear_message(name: str, damage: str, copied: Path) -> None:
    file = find_checkpoint(copied) / name
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        noise = np.random.default_rng(1).bytes(len(whole))
        file.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "noise": noise}[damage])
    with pytest.raises(UserError) as complaint:
        # Naming the checkpoint keeps a run without its meta.json from falling back to an older one.
        resume_training(file.parent, total_timesteps=480)
    message = str(complaint.value)
    assert file.parent.name in message
    assert "\n" not in message
    assert len(message) < 400
    assert "damaged" in message or "no latest checkpoint" in message
    assert "resumed" not in metadata(copied)


def test_a_run_whose_latest_checkpoint_lost_its_description_falls_back(copied: Path) -> None:
    newest, before = checkpoint_names(copied)[-1], checkpoint_names(copied)[-2]
    (copied / "checkpoints" / newest / "meta.json").unlink()
    assert find_checkpoint(copied).name == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f'{{"format": {FORMAT_VERSION}}}', "damaged or foreign .*its checksum"),
        ("[1, 2]", "damaged or foreign .*no 'format'"),
        ('{"model": "something else"}', "damaged or foreign .*no 'format'"),
    ],
)
def test_a_foreign_folder_is_refused(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(content)
    for work in (resume_training, evaluate_checkpoint):
        with pytest.raises(UserError, match=words):
            work(tmp_path)


def test_state_of_something_else_is_refused(copied: Path) -> None:
    path = find_checkpoint(copied)
    for name, content in (("state", {"epoch": 3}), ("envs", [1.0]), ("state", torch.zeros(3))):
        whole = shutil.copytree(path, path.with_name("whole"))
        write_state(path, name, content)
        with pytest.raises(UserError, match=rf"{name}\.json.*foreign"):
            resume_training(copied, total_timesteps=480)
        shutil.rmtree(path)
        whole.rename(path)


def test_weights_of_another_network_are_refused(copied: Path, tmp_path: Path) -> None:
    train(tiny(hidden_sizes=[16], normalize_obs=True), run_dir=tmp_path / "other")
    shutil.copy(find_checkpoint(tmp_path / "other") / "model.safetensors", find_checkpoint(copied))
    for work in (resume_training, evaluate_checkpoint):
        with pytest.raises(UserError, match=r"model\.safetensors.*damaged"):
            work(copied)
    reseal(find_checkpoint(copied))
    for work in (resume_training, evaluate_checkpoint):
        with pytest.raises(UserError, match="does not fit the network of its config"):
            work(copied)


def test_what_is_not_there_is_said(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such run or checkpoint"):
        evaluate_checkpoint(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no latest checkpoint of rl_training"):
        resume_training(tmp_path)
    with pytest.raises(UserError, match=r"has no checkpoint 'step_7'; it has latest, best, step_"):
        evaluate_checkpoint(finished, which="step_7")
    with pytest.raises(UserError, match="there is no such run or checkpoint"):
        evaluate_checkpoint(finished / "metrics.jsonl")


def test_a_checkpoint_outside_a_run_is_not_resumed_in_place(finished: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(find_checkpoint(finished), tmp_path / "alone")
    with pytest.raises(UserError, match="not in a run's folder"):
        resume_training(alone, total_timesteps=480)
    assert evaluate_checkpoint(alone)["step"] == evaluate_checkpoint(finished)["step"]


def test_resuming_from_a_checkpoint_of_a_run_goes_on_in_that_run(copied: Path) -> None:
    result = resume_training(copied / "checkpoints" / checkpoint_names(copied)[1])
    assert result.run_dir == copied
    assert metadata(copied)["resumed"][0]["step"] == int(checkpoint_names(copied)[1].removeprefix("step_"))


class RemembersNumpy(Callback):
    """Its numbers are numpy's, as means usually are."""

    def __init__(self) -> None:
        self.mean = np.float64(0.0)
        self.count = np.int64(0)

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        self.count += 1
        self.mean = np.mean([self.mean, self.count])

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "counts": [self.count]}

    def load_state_dict(self, state: Any) -> None:
        self.mean, self.count = np.float64(state["mean"]), np.int64(state["counts"][0])


def test_numbers_of_numpy_in_a_callbacks_state_come_back(tmp_path: Path) -> None:
    with pytest.raises(Pulled):
        train(tiny(), run_dir=tmp_path / "run", callbacks=[RemembersNumpy(), PullPlug(150)])
    again = RemembersNumpy()
    resume_training(tmp_path / "run", callbacks=[again])
    whole = RemembersNumpy()
    train(tiny(), run_dir=tmp_path / "whole", callbacks=[whole])
    assert (again.mean, again.count) == (whole.mean, whole.count)


class RemembersAnObject(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"seen": {Path("a")}}


class StatefulWalk(Walk):
    """Its own state is not plain data."""

    def get_state(self) -> dict[str, Any]:
        return {"generator": self.np_random}

    def set_state(self, state: Any) -> None:
        raise AssertionError("it was saved")


def test_what_could_not_be_loaded_again_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"state\.callbacks\.RemembersAnObject\.0\.seen: .*cannot hold a set"):
        train(tiny(), run_dir=tmp_path / "run", callbacks=[RemembersAnObject()])
    with pytest.raises(UserError, match=r"keeper\.anchors\[0\]\.state\[0\]\.own\.generator: .*cannot hold a Generator"):
        train(tiny(env_id="test_checkpoint_workflows:StatefulWalk"), run_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_written_checkpoint_reads_back_equal(finished: Path, tmp_path: Path) -> None:
    first = latest(finished)
    second = read_checkpoint(write_checkpoint(tmp_path / "again", first))
    assert differences(first.policy, second.policy) == []
    assert differences(first.state, second.state) == []
    assert differences(first.envs, second.envs) == []
    assert differences(first.meta, second.meta) == []


def test_files_are_synced_before_the_rename(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        happened.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_fsync(descriptor)

    def rename(source: Any, target: Any) -> None:
        happened.append("rename")
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    write_checkpoint(tmp_path / "step_1", latest(finished))
    before = happened[: happened.index("rename")]
    assert set(before) >= FILES
    assert any(name.startswith(".draft-") for name in before)
    assert happened[-1] == tmp_path.name


def test_versions_that_changed_are_reported(copied: Path) -> None:
    path = find_checkpoint(copied)
    meta = json.loads((path / "meta.json").read_text())
    reseal(path, versions=meta["versions"] | {"numpy": "0.1"}, threads=7)
    resume_training(copied, total_timesteps=300)
    changes = metadata(copied)["resumed"][0]["changes"]
    assert any("numpy is" in change and "was 0.1" in change for change in changes)
    assert any("threads is 1, was 7" in change for change in changes)


def test_environments_are_never_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, protocol: int) -> Any:
        raise AssertionError("an environment was pickled")

    monkeypatch.setattr(gym.Env, "__reduce_ex__", refuse)
    train(tiny(env_id="Pendulum-v1", total_timesteps=48), run_dir=tmp_path / "run")
    assert latest(tmp_path / "run").meta["resume"] == "exact"


def test_two_processes_never_train_one_run(tmp_path: Path) -> None:
    run = build(load_config(tiny()))
    run.start()
    run.archive.open(run, tmp_path / "run")
    try:
        with pytest.raises(UserError, match=f"is being trained by process {os.getpid()}"):
            resume_training(tmp_path / "run")
        assert "resumed" not in metadata(tmp_path / "run")
    finally:
        run.close()
    assert resume_training(tmp_path / "run").stop_reason == "completed"


def test_best_is_never_one_that_a_resumed_run_will_write_over(tmp_path: Path) -> None:
    config = tiny(vectorization="sync", eval_interval=24, checkpoint_interval=24, keep_checkpoints=99)
    best = tmp_path / "run" / "checkpoints" / "best"
    train(config, run_dir=tmp_path / "run", callbacks=[Scores(1.0, 5.0, *[2.0] * 20)])
    assert best.read_text().strip() == "step_48"
    with pytest.raises(Pulled):
        resume_training(tmp_path / "run", which="step_24", callbacks=[PullPlug(24)])
    assert best.read_text().strip() == "step_24"
    with pytest.raises(Pulled):
        resume_training(tmp_path / "run", which="step_0", callbacks=[PullPlug(0)])
    assert not best.exists()


class CountsItsMaking(Callback):
    made = 0

    def __init__(self) -> None:
        type(self).made += 1


class CountedWalk(Walk):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1


def test_judging_makes_no_callbacks_and_no_environments_to_learn_in(tmp_path: Path) -> None:
    here = "test_checkpoint_workflows"
    config = tiny(env_id=f"{here}:CountedWalk", callbacks=[f"{here}:CountsItsMaking"], time_limit=20)
    train(config, run_dir=tmp_path / "run")
    CountsItsMaking.made = CountedWalk.made = 0
    evaluate_checkpoint(tmp_path / "run", num_episodes=2)
    assert CountsItsMaking.made == 0
    assert CountedWalk.made == 1 + 2
