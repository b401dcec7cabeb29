"""Whole runs, several at a time: equal to those of one after the other, and nothing is lost or left behind."""

from __future__ import annotations

import io
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rl_training import Callback, UserError, resume_seeds, train_seeds
from rl_training.runtime.executor import Ended, Executor, Job, Lost
from rl_training.runtime.jobs.job import Word, packed, unpacked
from rl_training.runtime.progress import Reading, RunsDisplay
from rl_training.runtime.run import TrainResult
from rl_training.runtime.seeds import SeedsFailed, SeedsInterrupted, SeedsResult
from run_helpers import Command, as_overrides, limited_walk, metadata, run_differences, tiny

SEEDS = [101, 102, 103]
CONFIG = tiny(
    env_id="run_helpers:limited_walk",
    vectorization="sync",
    normalize_obs=True,
    checkpoint_interval=24,
    eval_interval=48,
    total_timesteps=96,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SeedsResult:
    """The seeds one after the other, in this process; they are only read."""
    return train_seeds(CONFIG | {"output_dir": str(tmp_path_factory.mktemp("whole"))}, SEEDS)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def check_equal(whole: SeedsResult, outcome: SeedsResult) -> None:
    assert list(outcome.runs) == [seed for seed in whole.runs if seed not in outcome.missing]
    for seed, run in outcome.runs.items():
        other = whole.runs[seed]
        assert run.run_dir is not None
        assert other.run_dir is not None
        assert run_differences(other.run_dir, run.run_dir) == []
        assert (run.stop_reason, run["eval_return_mean"]) == (other.stop_reason, other["eval_return_mean"])
        assert run.keys() == other.keys()


class Notes(Callback):
    """Writes the ids of the processes that train, and can wait or kill itself at a step of a seed."""

    def __init__(self, folder: Path, *, kills: int | None = None, waits: bool = False) -> None:
        self.folder, self.kills, self.waits = folder, kills, waits

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        seed = run.config.run.seed
        (self.folder / f"pid{seed}").write_text(str(os.getpid()))
        if run.steps == 72 and seed == self.kills:
            (self.folder / "struck").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kills is not None:  # others are under way when it happens, however slowly a process starts
            while run.steps == 72 and not (self.folder / "struck").exists():
                time.sleep(0.01)
        if run.steps == 48 and self.waits:
            (self.folder / f"waits{seed}").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.01)

    @property
    def pids(self) -> list[int]:
        return [int(file.read_text()) for file in self.folder.glob("pid*")]


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def check_gone(pids: Sequence[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(map(lives, pids)):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if lives(pid)]}"
        time.sleep(0.01)


def wait_until(files: Sequence[Path], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline, f"{files} did not appear"
        time.sleep(0.01)


def test_two_at_a_time_equal_one_after_the_other_though_a_process_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With an environment that no module has, in processes that the runs start themselves."""
    config = CONFIG | {"env_id": "my-walk", "vectorization": "async"}
    notes, told, how = Notes(tmp_path, kills=102), [], {"env_factory": lambda: limited_walk(0.3)}
    whole = train_seeds(config | {"output_dir": str(tmp_path / "whole")}, SEEDS, **how)
    with pytest.raises(SeedsFailed) as failed:
        train_seeds(
            config | {"output_dir": str(tmp_path / "sets")},
            SEEDS,
            callbacks=[notes],
            parallel=2,
            report=lambda seed, result: told.append(seed),
            **how,
        )
    outcome = failed.value.outcome
    assert str(failed.value) == (
        f"seed 102: its process was ended by signal 9; the runs are in {outcome.folder}; done: 101, 103; "
        f"continue with: rl-training resume {outcome.folder}"
    )
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["seed 102: its process was ended by signal 9; the other runs go on"]
    assert sorted(told) == [101, 103]
    assert len({os.getpid(), *notes.pids}) == 4, "every run had a process of its own"
    check_gone(notes.pids, 0.0)
    check_equal(whole, outcome)
    assert outcome.missing == (102,)
    resumed = resume_seeds(outcome.folder, **how)
    check_equal(whole, resumed)
    assert resumed.missing == ()
    assert metadata(resumed.runs[102].run_dir)["resumed"][0]["step"] == 48, "it went on from its last checkpoint"


def set_of(folder: Path) -> Path:
    (found,) = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return found


def in_a_group(notes: Notes, folder: Path) -> None:
    """The main process of a set, which a terminal would send Ctrl-C to together with all others."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        train_seeds(CONFIG | {"output_dir": str(folder)}, SEEDS, callbacks=[notes], parallel=2)
    except SeedsInterrupted as stop:
        missing = ",".join(map(str, stop.outcome.missing))
        (notes.folder / "interrupted").write_text(f"{missing} {stop.result.stop_reason}")


def test_ctrl_c_saves_every_run_and_the_set_goes_on(processes: Any, whole: SeedsResult, tmp_path: Path) -> None:
    notes = Notes(tmp_path, waits=True)
    main = processes.Process(target=in_a_group, args=(notes, tmp_path / "sets"))
    main.start()
    try:
        wait_until([tmp_path / "waits101", tmp_path / "waits102"])
        os.killpg(main.pid, signal.SIGINT)
        time.sleep(0.3)
        (tmp_path / "go").touch()  # the step that they are in ends, and with it the run
        main.join(60)
        assert main.exitcode == 0
    finally:
        main.kill()
        main.join()
    check_gone(notes.pids, 0.0)
    assert (tmp_path / "interrupted").read_text() == "101,102,103 interrupted"
    folder = set_of(tmp_path / "sets")
    for run in folder.glob("*seed10[12]*"):
        assert (metadata(run)["stop_reason"], metadata(run)["steps"]) == ("interrupted", 48)
    assert not list(folder.glob("*seed103*")), "no other was begun"
    check_equal(whole, resume_seeds(folder))


def test_nothing_is_left_when_the_main_process_is_killed(processes: Any, whole: SeedsResult, tmp_path: Path) -> None:
    notes = Notes(tmp_path, waits=True)
    main = processes.Process(target=in_a_group, args=(notes, tmp_path / "sets"))
    main.start()
    try:
        wait_until([tmp_path / "waits101", tmp_path / "waits102"])
    finally:
        main.kill()
    check_gone([main.pid, *notes.pids], 1.0)
    main.join()
    check_equal(whole, resume_seeds(set_of(tmp_path / "sets")))


RESULT = TrainResult({"step": 1.0}, None, None, "completed")


class Script:
    """An engine that says what is in a script, job by job, and notes how many are under way."""

    def __init__(self, **endings: Word) -> None:
        self.endings, self.running, self.most, self.stopped, self.closed = endings, {}, 0, False, False

    def start(self, number: int, job: Job) -> None:
        self.running[number] = job.name
        self.most = max(self.most, len(self.running))

    def wait(self, seconds: float) -> list[tuple[int, Word]]:
        number = max(self.running)  # the last that was begun ends first
        return [(number, self.endings[self.running.pop(number)])]

    def stop(self) -> None:
        self.stopped = True
        self.endings = dict.fromkeys(self.endings, Word("unbegun"))

    def close(self) -> None:
        self.closed = True


def scripted(monkeypatch: pytest.MonkeyPatch, executor: Executor, **endings: Word) -> Script:
    script = Script(**endings)
    monkeypatch.setattr(executor, "_engine", lambda: script)
    return script


def test_jobs_are_asked_for_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, asked = Executor(2), []
    script = scripted(monkeypatch, executor, **dict.fromkeys("abcd", Word("done", RESULT)))

    def jobs() -> Iterator[Job]:
        for name in "abcd":
            asked.append(name)
            yield Job(name)

    ends = []
    for ended in executor.run(jobs()):
        ends.append(ended.job.name)
        assert len(asked) <= len(ends) + 1
    assert (ends, script.most, script.closed) == (["b", "c", "d", "a"], 2, True)


def test_every_ending_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor(9)
    words = {"a": Word("done", RESULT), "b": Word("interrupted", RESULT), "c": Word("unbegun")}
    words |= {"d": Word("refused", "no"), "e": Word("lost", "its process is gone")}
    words |= {"f": Word("failed", ("ZeroDivisionError: boom", "Traceback of the other process"))}
    scripted(monkeypatch, executor, **words)
    ends: dict[str, Ended] = {ended.job.name: ended for ended in executor.run(map(Job, words))}
    assert {name: type(ended.problem).__name__ for name, ended in ends.items()} == {
        "a": "NoneType",
        "b": "Interrupted",
        "c": "NoneType",
        "d": "UserError",
        "e": "Lost",
        "f": "RunFailed",
    }
    assert "Traceback of the other process" in "".join(traceback.format_exception(ends["f"].problem))
    assert ends["a"].result == ends["b"].result == RESULT
    assert issubclass(Lost, UserError)


def test_a_signal_stops_all_and_a_caller_that_leaves_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor(2)
    script = scripted(monkeypatch, executor, **dict.fromkeys("abcd", Word("done", RESULT)))
    ends = []
    for ended in executor.run(map(Job, "abcd")):
        ends.append(ended)
        if len(ends) == 1:
            signal.raise_signal(signal.SIGTERM)
    assert (executor.interrupted, script.stopped, [end.job.name for end in ends]) == (True, True, ["b", "a"])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    for _ in executor.run(map(Job, "abcd")):
        break
    assert script.closed
    assert executor.running == []


def test_a_failure_lets_those_under_way_end_and_begins_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = Executor(2)
    done = TrainResult({"step": 1.0, "eval_return_mean": 3.0, "seconds": 1.0}, None, None, "completed")
    words = {"seed 1": Word("done", done), "seed 2": Word("refused", "training diverged"), "seed 3": Word("done", done)}
    scripted(monkeypatch, executor, **words)
    # Without any run in the folder it would be taken for a mistake in the config.
    monkeypatch.setattr("rl_training.runtime.seeds._runs_in", lambda folder: [folder])
    with pytest.raises(SeedsFailed, match=r"(?s)^seed 2: training diverged; the runs are in .*; done: 1$") as failed:
        train_seeds(tiny(tmp_path), [1, 2, 3], executor=executor)
    assert failed.value.outcome.missing == (2, 3)
    assert "seed 2: training diverged; the other runs go on" in caplog.text


def test_a_mistake_is_one_message_and_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    executor = Executor(2)
    scripted(monkeypatch, executor, **{f"seed {seed}": Word("refused", "env_id='x': unknown") for seed in (1, 2, 3)})
    with pytest.raises(UserError, match=r"^env_id='x': unknown$"):
        train_seeds(tiny(tmp_path), [1, 2, 3], executor=executor)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("parallel", [0, -1, 1.5, "two", True])
def test_a_wrong_number_is_one_line(parallel: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^parallel=.*: must be a whole number of at least 1$"):
        train_seeds(tiny(tmp_path), SEEDS, parallel=parallel)
    assert list(tmp_path.iterdir()) == []


def test_an_executor_has_its_own_number(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="parallel=2 and executor: give one of them"):
        train_seeds(tiny(tmp_path), SEEDS, parallel=2, executor=Executor(2))


class Open(Callback):
    """Has something that no process can send."""

    def __init__(self) -> None:
        self.file = io.TextIOWrapper(io.BytesIO())


def test_what_cannot_cross_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^callbacks=Open: cannot be sent to another process \(.*\); give it by name"):
        train_seeds(tiny(tmp_path), SEEDS, callbacks=[Open()], parallel=2)
    monkeypatch.setattr(sys.modules["__main__"], "make_walk", limited_walk, raising=False)
    with pytest.raises(UserError, match=r"^env_id='__main__:make_walk': is in the script itself"):
        train_seeds(tiny(tmp_path, env_id="__main__:make_walk"), SEEDS, parallel=2)
    assert list(tmp_path.iterdir()) == []


def test_code_is_imported_from_where_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the same name that comes first in the other process is not taken for it."""
    for place in ("mine", "other"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "twice_there.py").write_text(f"place = {place!r}\ndef make(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    import twice_there  # type: ignore[import-not-found]

    carried = packed(Job("seed 1", tiny(tmp_path, env_id="twice_there:make")))
    del sys.modules["twice_there"], twice_there
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path / "mine")])
    monkeypatch.chdir(tmp_path / "other")
    here, there = Pipe()
    here.send_bytes(carried)
    assert unpacked(there).name == "seed 1"
    assert sys.modules.pop("twice_there").place == "mine"


def test_options_for_several_runs_are_refused_for_one(command: Command, whole: SeedsResult) -> None:
    said = command("train", "ppo/cartpole", "--parallel", 2)
    assert (said.code, said.err) == (2, "error: --parallel=2: is for several runs; give several --seeds\n")
    said = command("resume", whole.runs[101].run_dir, "--ray", "auto")
    assert said.code == 2
    assert said.err.startswith("error: --ray=auto: is for several runs; '")
    assert command("train", "ppo/cartpole", "--seeds", "1,2", "--parallel", 0).code == 2


READING = Reading(12_000, 20_000, 4_000.0, 57.25)


def shown(display: RunsDisplay) -> None:
    display.begin("seed 1")
    display.begin("seed 2")
    display.show("seed 1", READING)
    display.show("seed 2", "step 5,000: evaluation return 9.0 +- 1.0 over 10 episodes")
    display.show("seed 2", READING._replace(steps=5_000, score=None))


def test_a_terminal_has_a_line_for_every_run() -> None:
    screen = io.StringIO()
    display = RunsDisplay(Console(file=screen, force_terminal=True, width=120))
    try:
        shown(display)
        assert display._live is not None
        display._live.refresh()
        last = screen.getvalue().rpartition("seed 1 ")[2]
        assert "12,000/20,000 steps  4,000 steps/s  return 57.2  0:02 left" in last
        assert "5,000/20,000 steps  4,000 steps/s  return -  0:04 left" in last
        assert "seed 2: step 5,000: evaluation return 9.0" in screen.getvalue()
        display.end("seed 1")
        display._live.refresh()
        assert "seed 1" not in screen.getvalue().rpartition("seed 2 ")[2]
    finally:
        display.close()


def test_elsewhere_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("rl_training.runtime.progress.SECONDS_BETWEEN_LINES", 0.0)
    shown(RunsDisplay(Console(file=screen, width=40)))
    assert screen.getvalue().splitlines() == [
        "seed 1: 12,000/20,000 steps  4,000 steps/s  return 57.2  0:02 left",
        "seed 2: step 5,000: evaluation return 9.0 +- 1.0 over 10 episodes",
        "seed 2: 5,000/20,000 steps  4,000 steps/s  return -  0:04 left",
    ]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"^--ray=127.0.0.1:1: needs an extra .* pip install 'rl-training\[ray\]'"):
        train_seeds(tiny(tmp_path), SEEDS, executor=Executor(ray="127.0.0.1:1"))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A Ray cluster of this machine alone: its address, and the environment that may connect to it."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'rl-training[ray]'")
    folder = Path("/tmp") / f"ray-{secrets.token_hex(4)}"  # sockets need short names
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(24), "RAY_TMPDIR": str(folder)}
    environment = os.environ | settings | {"RAY_USAGE_STATS_ENABLED": "0"}
    arguments = ["--head", "--block", "--node-ip-address=127.0.0.1", f"--port={address.split(':')[1]}"]
    limits = ["--num-cpus=1", "--include-dashboard=false", "--object-store-memory=80000000"]
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, *limits],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield address, environment
    finally:
        head.terminate()
        head.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def test_runs_on_a_cluster_are_equal_too(
    cluster: tuple[str, dict[str, str]], whole: SeedsResult, tmp_path: Path
) -> None:
    address, environment = cluster
    settings = as_overrides({key: value for key, value in CONFIG.items() if key != "algo"})
    command = [sys.executable, "-c", "from rl_training.cli import main; main()", "train", "ppo", *settings]
    support = str(Path(__file__).parents[1] / "support")
    place = [f"output_dir={tmp_path / 'sets'}", "--seeds", "101", "--ray", address, "--quiet"]
    paths = os.pathsep.join(filter(None, [support, environment.get("PYTHONPATH", "")]))
    # The driver alone knows where the environment's module is, and tells the nodes.
    done = subprocess.run(
        [*command, *place], env=environment | {"PYTHONPATH": paths}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (run,) = set_of(tmp_path / "sets").glob("*seed101*")
    assert f"seed 101: return {whole.returns[101]:.2f}" in done.stdout
    assert run_differences(whole.runs[101].run_dir, run) == []
