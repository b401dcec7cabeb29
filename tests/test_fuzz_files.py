"""Damaged files of any kind end in one line that names them, or change nothing: no traceback, no silent acceptance."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from damage import PLAIN
from fuzzing import Door, Fuzzer, Probe, Target, said_by
from offline_data import write_file
from replay_feed import Feed, info_of
from rl_training import (
    BC,
    PPO,
    SAC,
    UserError,
    evaluate_checkpoint,
    from_sb3,
    resume_seeds,
    resume_training,
    train,
    train_seeds,
)
from rl_training.data import checked_files
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.files import read_dataset, save_npz, to_arrays
from rl_training.data.datasets.minari_layout import write_minari
from rl_training.data.replay import Replay
from rl_training.runtime.checkpoints import fitting
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.datasets import Behaviour, collect
from rl_training.runtime.train import WALL_CLOCK
from run_helpers import Pulled, PullPlug, latest, metadata, tiny
from sb3_files import write_model, write_statistics

DATA = "data.hdf5"
ENDED, BEGUN = "step_72/", "step_48/"
SEED = 20_240_501
SMALL: dict[str, Any] = {"eval_episodes": 1, "checkpoint_interval": 72, "total_timesteps": 72, "vectorization": "sync"}


# Doors.


def resumed(run: Path, **how: Any) -> Any:
    """Everything that a resumed run ends with."""
    parts = metadata_parts(run)
    result = resume_training(run, **how)
    if parts is not None:
        assert any(parts in note for note in metadata(run)["resumed"][-1]["changes"]), "damage must be noted"
    return outcome_of(run), {name: value for name, value in result.items() if name not in WALL_CLOCK}


def metadata_parts(run: Path) -> str | None:
    """What a resumed run must say of its metadata."""
    file = run / "metadata.json"
    if not file.exists():
        return "metadata.json was missing"
    try:
        return None if isinstance(json.loads(file.read_bytes()), dict) else "metadata.json was damaged"
    except (ValueError, OSError, RecursionError):
        return "metadata.json was damaged"


def outcome_of(run: Path | None) -> Any:
    assert run is not None
    saved = latest(run)
    return saved.policy, saved.state["algorithm"], saved.state["rng"], saved.envs


def loaded(kind: Any, **how: Any) -> Callable[[Path], Any]:
    def load(run: Path) -> Any:
        agent = kind.load(run, **how)
        try:
            return agent._run.steps, agent._run.algorithm.policy.policy_state()
        finally:
            agent.close()

    return load


def rules(newest: str, read: tuple[str, ...] = ("",), *, resumes: bool = False) -> Callable[[str], str]:
    """The rules of a run's folder, at a door that reads files of the newest checkpoint whose names begin so."""

    def rule(file: str) -> str:
        name = file.removeprefix(f"{newest}/")
        if file == DATA:  # a resumed run knows its data by a checksum
            return "equal" if read == ("",) else "kept"
        if name == "meta.json":
            return "described"
        if file == f"{newest.rpartition('/')[0]}/latest" and not resumes:
            return "pointer"
        return "checked" if name != file and name.startswith(read) else "kept"

    return rule


def rule_of_check(file: str) -> str:
    return "checked" if "/step_" in file else "open"


def rule_of_plot(file: str) -> str:
    return "open" if Path(file).name in ("config.yaml", "metrics.jsonl") else "none"


def run_target(name: str, folder: Path, kind: Any, further: int, place: str = "", **how: Any) -> Target:
    """A run; `place` is where it is in the target's folder."""
    newest = find_checkpoint(folder / place).relative_to(folder).as_posix()

    def settings(root: Path) -> dict[str, Any]:
        return {key: str(root / value) for key, value in how.items()}

    def resume(root: Path) -> Any:
        return resumed(root / place, total_timesteps=further, **settings(root))

    doors = [
        Door("resume", resume, rules(newest, resumes=True), share=0.2),
        Door("load", lambda root: loaded(kind, **settings(root))(root / place), rules(newest)),
        Door("eval", lambda root: evaluate_checkpoint(root / place), rules(newest, ("meta.json", "model."))),
        Door("check", lambda root: said_by("check", root / place), rule_of_check),
    ]
    files = [path.relative_to(folder).as_posix() for path in sorted((folder / newest).rglob("*")) if path.is_file()]
    return Target(name, folder, doors, [file for file in files if not file.endswith(".bin")])


def rule_of_seeds(file: str) -> str:
    """Of a run that has ended its result is read, of one that goes on everything."""
    run, _, name = file.rpartition("/checkpoints/")
    if name == ENDED + "meta.json" or ("seed2" in run and name == BEGUN + "meta.json"):
        return "described"
    ended, begun = name.startswith(f"{ENDED}state."), "seed2" in run and name.startswith(BEGUN)
    return "checked" if file == "summary.json" or ended or begun else "kept"


def seeds_resumed(folder: Path) -> Any:
    outcome = resume_seeds(folder)
    return outcome.returns, outcome_of(outcome.runs[2].run_dir)


def each_checked(folder: Path) -> Any:
    return [said_by("check", folder / run) for run in ("seed1", "seed2")]


def plotted(folder: Path) -> Any:
    return said_by("plot", folder, "--output", folder.with_name("picture.png"))


def seeds_target(folder: Path) -> Target:
    doors = [
        Door("resume", seeds_resumed, rule_of_seeds, share=0.1),
        Door("check", each_checked, lambda file: rule_of_check(file) if "/" in file else "none"),
        Door("plot", plotted, rule_of_plot, share=0.5),
    ]
    texts = [f"{run}/{name}" for run in ("seed1", "seed2") for name in ("config.yaml", "metrics.jsonl")]
    return Target("seeds", folder, doors, ["summary.json", *texts])


def dataset_target(name: str, folder: Path, place: str, rule: str) -> Target:
    def columns(root: Path) -> Any:
        found = read_dataset(str(root / place))
        arrays = [getattr(found, name) for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")]
        return [torch.from_numpy(array) for array in (*arrays, found.starts)]

    def inspected(root: Path) -> Any:
        return said_by("dataset", "inspect", root / place)

    def converted(root: Path) -> Any:
        said_by("dataset", "convert", root / place, root.with_name("converted.npz"))
        return None

    doors = [Door(door.__name__, door, lambda file: rule) for door in (columns, inspected, converted)]
    files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))]
    return Target(name, folder, doors, [file for file in files if file.endswith(("json", "npz", "hdf5"))])


class PullSecond(PullPlug):
    """Ends the run of seed 2 alone."""

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        if run.config.run.seed == 2:
            super().on_step(run, metrics)


@functools.cache
def pole_data() -> OfflineDataset:
    """Random steps, enough for arrays of more than a block of a file."""
    return collect("CartPole-v1", [Behaviour()], steps=300)


def numbers_of(data: OfflineDataset) -> dict[str, Any]:
    return {name: array for name, array in to_arrays(data).items() if array.dtype.kind != "U"}


# Targets.


def sac(root: Path) -> Target:
    """A run with a replay, and another one that differs in its seed."""
    return online(root, "sac", SAC)


def ppo(root: Path) -> Target:
    return online(root, "ppo", PPO)


def online(root: Path, algo: str, kind: Any) -> Target:
    for seed, place in ((1, "whole"), (2, "twin")):
        train(tiny(algo=algo, seed=seed, **SMALL), run_dir=root / place)
    return run_target(algo, root / "whole", kind, 96)


def bc(root: Path) -> Target:
    """An offline run, and the data that it learns from."""
    (root / "whole").mkdir()
    data = write_file(root / "whole" / DATA, numbers_of(pole_data()))
    offline = {"total_timesteps": 3, "checkpoint_interval": 2, "dataset": str(data)}
    train(tiny(algo="bc", **SMALL | offline), run_dir=root / "whole" / "run")
    return run_target("bc", root / "whole", BC, 4, "run", dataset=DATA)


def seeds(root: Path) -> Target:
    """A set of seeds: one run has ended, and one was killed."""
    settings = SMALL | {"checkpoint_interval": 48}
    with pytest.raises(Pulled):
        train_seeds(tiny(**settings, output_dir=str(root)), [1, 2], callbacks=[PullSecond(48)])
    (folder,) = root.iterdir()
    for seed in (1, 2):  # what is drawn follows from names, which have the time in them
        next(folder.glob(f"*__seed{seed}__*")).rename(folder / f"seed{seed}")
    return seeds_target(folder)


def npz(root: Path) -> Target:
    """Its members have checksums; what a damaged index leads to is equal, or refused."""
    save_npz(pole_data(), root / "data.npz")
    return dataset_target("npz", root, "data.npz", "equal")


def hdf5(root: Path) -> Target:
    """The format has no checksums. A run that has learned from such a file knows it again by its own."""
    write_file(root / "data.hdf5", numbers_of(pole_data()) | {"env_id": np.bytes_("CartPole-v1")})
    return dataset_target("hdf5", root, "data.hdf5", "open")


def minari(root: Path) -> Target:
    env = gym.make("CartPole-v1")
    spaces: dict[str, Any] = {"observation_space": env.observation_space, "action_space": env.action_space}
    spec = None if env.spec is None else env.spec.to_json()
    write_minari(root, pole_data(), dataset_id="pole/random-v0", **spaces, env_spec=spec)
    env.close()
    return dataset_target("minari", root, "pole/random-v0", "open")


def replay(root: Path) -> Target:
    made, feed = Replay(info_of((1,)), 2, 12), Feed(2, lambda episode: np.array([episode[-1]], np.float32))
    for events in (["go", "go"], ["terminated", "go"], ["go", "truncated"]):
        feed.play(events, made)
    made.save(root / "data")
    return dataset_target("replay", root, "data", "checked")


def sb3(root: Path) -> Target:
    """A model of Stable-Baselines3, whose parts have checksums, and a pickle of VecNormalize, which has none."""
    write_model(root / "model.zip")
    write_statistics(root / "vecnormalize.pkl")

    def taken(folder: Path) -> Any:
        agent = from_sb3(folder / "model.zip", "CartPole-v1", vec_normalize=folder / "vecnormalize.pkl", num_envs=1)
        try:
            return agent._run.algorithm.policy.policy_state()
        finally:
            agent.close()

    door = Door("from_sb3", taken, lambda file: "equal" if file == "model.zip" else "open")
    return Target("sb3", root, [door], ["model.zip"])


TARGETS = (sac, ppo, bc, seeds, npz, hdf5, minari, replay, sb3)


@pytest.fixture(scope="module")
def target_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[Path], Target]], Target]:
    """Makes every target once."""
    return functools.cache(lambda make: make(tmp_path_factory.mktemp(make.__name__)))


# The suite.


def fuzz(target: Target, scratch: Path, seed: int, **counts: int) -> None:
    verdicts = Fuzzer([target], scratch, seed).run(**counts)
    print(f"{target.name}: {verdicts}")
    again = "Fuzzer([target], scratch, seed).probe(Probe(...)) does the same again"
    assert not verdicts.failures, "\n".join([str(verdicts), again, *verdicts.failures[:20]])
    assert verdicts.files == {(target.name, file) for file in target.files}


@pytest.mark.parametrize("make", TARGETS)
def test_damaged_files_are_refused_or_make_no_difference(make: Any, target_of: Any, tmp_path: Path) -> None:
    """One probe of each file, and some of each that can be forged."""
    fuzz(target_of(make), tmp_path, SEED, plain=1, forged=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("make", TARGETS)
def test_many_damaged_files_are_refused_or_make_no_difference(make: Any, target_of: Any, tmp_path: Path) -> None:
    fuzz(target_of(make), tmp_path, SEED + 1, plain=20, forged=60)


# That it would notice.


def verdict_of(read: Callable[[Path], Any], rule: str, tmp_path: Path) -> tuple[str | None, str]:
    """The verdict on a file of numbers that a door reads, and the words of a failure."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file.txt").write_text("1 2 3")
    target = Target("made up", tmp_path / "folder", [Door("read", read, lambda file: rule)])
    fuzzer = Fuzzer([target], tmp_path, SEED)
    verdict = fuzzer.probe(Probe("made up", "file.txt", "truncated", "read", forged=False, number=0))
    return verdict, "\n".join(fuzzer.verdicts.failures)


def careless(folder: Path) -> int:
    return len((folder / "file.txt").read_text().split())


def refusing(folder: Path, words: str = "file.txt", change: str | None = None) -> int:
    if careless(folder) != 3:
        if change is not None:
            (folder / change).touch()
        raise UserError(f"{folder / words}: is damaged")
    return 3


@pytest.mark.parametrize(
    ("read", "rule", "verdict", "words"),
    [
        (careless, "equal", "silent", "another outcome"),
        (careless, "kept", "silent", "another outcome"),
        (careless, "open", "legitimate", ""),
        (lambda folder: 3, "checked", "silent", "a damaged file was taken for whole"),
        (lambda folder: 3, "kept", "legitimate", ""),
        (lambda folder: (folder / "file.txt").read_text().split()[2], "equal", "traceback", "IndexError"),
        (refusing, "checked", "refused", ""),
        (refusing, "equal", "refused", ""),
        (refusing, "kept", "untidy", "refused though it is not needed"),
        (lambda folder: refusing(folder, "other.txt"), "checked", "untidy", "names no file"),
        (lambda folder: refusing(folder, "file.txt\n"), "checked", "untidy", "several lines"),
        (lambda folder: refusing(folder, change="more.txt"), "checked", "untidy", "changed ['more.txt']"),
    ],
)
def test_the_fuzzer_notices(read: Callable[[Path], Any], rule: str, verdict: str, words: str, tmp_path: Path) -> None:
    found, said = verdict_of(read, rule, tmp_path)
    assert found == verdict
    assert words in said
    assert bool(said) == (verdict not in ("refused", "legitimate"))
    assert not said or f"seed={SEED}, Probe(target='made up', file='file.txt', damage='truncated'" in said


def test_the_fuzzer_notices_that_checksums_are_not_compared(
    target_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_files, "check", lambda *_: None)
    fuzzer = Fuzzer([target_of(ppo)], tmp_path, SEED)
    for number in range(8):
        probe = Probe("ppo", "checkpoints/step_72/model.safetensors", "zeroed", "load", forged=False, number=number)
        fuzzer.probe(probe)
    assert fuzzer.verdicts.counts["silent"] > 0


def test_the_fuzzer_notices_that_errors_of_loading_are_not_caught(
    target_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_MISFITS", ())
    fuzzer = Fuzzer([target_of(ppo)], tmp_path, SEED)
    for number in range(8):
        fuzzer.probe(Probe("ppo", "checkpoints/step_72/state.json", "removed", "load", forged=True, number=number))
    assert fuzzer.verdicts.counts["traceback"] > 0


def test_what_is_drawn_follows_from_the_seed(target_of: Any, tmp_path: Path) -> None:
    def drawn(seed: int) -> list[Probe]:
        fuzzer = Fuzzer([target_of(npz)], tmp_path, seed)
        probes = fuzzer._drawn(target_of(npz), "data.npz", PLAIN, forged=False)
        return [next(probes) for _ in range(2 * len(PLAIN))]

    assert drawn(0) == drawn(0) != drawn(1)
    assert {probe.damage for probe in drawn(0)} == set(PLAIN)
