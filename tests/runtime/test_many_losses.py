"""Workers that are killed and frozen at random moments, again and again; and learners that are killed. Minutes long."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rl_training import train
from rl_training.runtime.callbacks import Callback
from rl_training.types import Metrics
from run_helpers import latest, own_process, tiny, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ENGINES = ("process", "ray")
LAG = 4


def needs(actors: str) -> None:
    if actors == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'rl-training[ray]'")


def state_of(pid: int) -> str:
    """What the kernel says of a process: R, S, T for a frozen one, Z for one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, tasks.read_text().split()):
            found += [child, *descendants(child)]
    return found


def marked(folder: Path) -> list[int]:
    """The workers that are at work: neither gone nor frozen, and not this process."""
    pids = [int(file.name) for file in folder.iterdir()]
    return [pid for pid in pids if pid != os.getpid() and state_of(pid) not in "TXZ"]


class Strikes(Callback):
    """Kills and freezes workers at random moments from a thread, and ends the run when all of it was noticed."""

    def __init__(self, folder: Path, kills: int, freezes: int) -> None:
        self.fates = [signal.SIGKILL] * kills + [signal.SIGSTOP] * freezes
        random.Random(0).shuffle(self.fates)
        self.struck: list[int] = []
        self.lags: list[float] = []
        self._folder = folder
        self._calm = 0
        self._thread = threading.Thread(target=self._strike, daemon=True)

    def _strike(self) -> None:
        moments = random.Random(1)
        while self.fates:
            time.sleep(moments.uniform(0.0, 4.0))
            there = marked(self._folder)
            if there:
                self.struck.append(moments.choice(there))
                os.kill(self.struck[-1], self.fates.pop())

    def on_start(self, run: Any) -> None:
        self._thread.start()

    def on_step(self, run: Any, metrics: Metrics) -> None:
        self.lags.append(metrics["lag"])
        # In fixed order every worker has delivered after so many updates, so whoever was struck has a successor.
        self._calm = 0 if self.fates else self._calm + 1
        if self._calm == 50:
            run.request_stop("enough")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("actors", ENGINES)
def test_a_run_survives_thirty_kills_and_ten_freezes(
    actors: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    needs(actors)
    folder = tmp_path / "pids"
    folder.mkdir()
    strikes = Strikes(folder, kills=30, freezes=10)
    config = tiny(
        algo="impala",
        env_id="pool_worlds:Marked",
        env_kwargs={"folder": str(folder)},
        num_envs=4,
        num_workers=2,
        actors=actors,
        order="fixed",
        lag=LAG,
        rollout_deadline=2.0,
        worker_restarts=100,
        total_timesteps=10**7,
        checkpoint_interval=2000,
        eval_episodes=1,
    )
    result = train(config, run_dir=tmp_path / "run", callbacks=[strikes])
    print(actors, result["step"], result["restarts"], len(strikes.lags))
    assert result.stop_reason == "enough"
    assert len(strikes.struck) == 40
    assert [pid for pid in strikes.struck if state_of(pid) not in "XZ"] == []
    # On a busy machine a slow worker is replaced too, and one that was about to be replaced may be struck.
    assert result["restarts"] == sum("it is replaced" in line for line in caplog.messages)
    assert strikes.lags == [min(update, LAG) for update in range(len(strikes.lags))]
    assert latest(tmp_path / "run").envs["pool"]["steps"] == result["step"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("actors", ENGINES)
def test_no_worker_outlives_ten_learners(actors: str, tmp_path: Path) -> None:
    needs(actors)
    moments, before = random.Random(2), left_in_folders()
    for number in range(10):
        folder = tmp_path / f"pids-{number}"
        folder.mkdir()
        config = tiny(num_envs=4, num_workers=2, actors=actors, total_timesteps=10**7)
        config |= {"env_id": "pool_worlds:Marked", "env_kwargs": {"folder": str(folder)}}
        there = tmp_path / f"there-{number}"
        job = {"config": config, "run_dir": str(tmp_path / f"run-{number}"), "slow_after": 0, "signal_file": str(there)}
        with own_process(tmp_path / "job", **job) as process:
            wait_for(there, process, 300.0)  # on a busy machine
            time.sleep(moments.uniform(0.0, 0.5))
            family = descendants(process.pid)
            workers = [pid for pid in marked(folder) if pid != process.pid]
            assert len(workers) >= 2
            process.kill()
            process.wait(timeout=60)
            assert left_after(1.0, workers) == []
            assert left_after(5.0, family) == []
    assert left_in_folders() - before == set()


def left_in_folders() -> set[Path]:
    return {*Path("/dev/shm").iterdir(), *Path(tempfile.gettempdir()).glob("rl-ray-*")}


def left_after(seconds: float, pids: list[int]) -> list[str]:
    """The command lines of those processes that have not ended after so many seconds."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if state_of(pid) not in "XZ"]) and time.monotonic() < end:
        time.sleep(0.01)
    return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:100] for pid in left]
