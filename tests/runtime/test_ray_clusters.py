"""Workers on Ray clusters of several nodes, on the loopback interface: who is let in, and what a lost node means."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_worlds import Head, When, alive, cluster, fateful, settings
from rl_training.experiment.config import load_config
from rl_training.runtime.actors.pool import Pool
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.train import Run, build, train
from rl_training.types import Metrics, UserError
from run_helpers import latest

ray: Any = pytest.importorskip("ray", reason="Ray is not installed: pip install 'rl-training[ray]'")
pytestmark = pytest.mark.slow
TOKEN = "5" * 64


@pytest.fixture
def said() -> Iterator[When]:
    handler, log = When(), logging.getLogger("rl_training")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with cluster(TOKEN) as started:
        yield started


class KillNode(Callback):
    """Kills a node after so many steps."""

    def __init__(self, head: Head, number: int, step: int) -> None:
        self.head, self.number, self.step, self.when = head, number, step, 0.0

    def on_step(self, run: Run, metrics: Metrics) -> None:
        if run.steps >= self.step and not self.when:
            self.when = time.monotonic()
            self.head.kill(self.number)


def test_a_run_goes_on_without_a_node_that_is_killed(head: Head, tmp_path: Path, said: When) -> None:
    number = head.add()
    head.wait_until_ready(2)
    kill = KillNode(head, number, 128)
    config = fateful(tmp_path / "never", "kill", ray_address=head.address, total_timesteps=1024)
    result = train(config, run_dir=tmp_path / "run", callbacks=[kill])
    assert result["step"] == 1024
    (noticed, how), (_, then) = [line for line in said.said if line[1].startswith("worker ")]
    assert noticed - kill.when < 10.0
    assert "127.0.0.1" in how
    assert "found no room in the Ray cluster within 20 seconds; 1 of 2 workers go on" in then


def test_in_fixed_order_the_run_is_saved_when_a_node_is_killed(head: Head, tmp_path: Path) -> None:
    number = head.add()
    head.wait_until_ready(2)
    config = fateful(tmp_path / "never", "kill", ray_address=head.address, total_timesteps=1024, order="fixed")
    with pytest.raises(UserError) as caught:
        train(config, run_dir=tmp_path / "run", callbacks=[KillNode(head, number, 128)])
    first, second = str(caught.value).splitlines()
    assert "found no room in the Ray cluster within 20 seconds, and order=fixed needs every worker" in first
    assert latest(tmp_path / "run").meta["step"] >= 128
    assert "The last good checkpoint is " in second


def test_the_run_is_saved_when_the_head_is_killed(head: Head, tmp_path: Path) -> None:
    head.add(2)
    head.wait_until_ready(2)
    kill = KillNode(head, 0, 128)
    config = fateful(tmp_path / "never", "kill", ray_address=head.address, total_timesteps=100_000)
    with pytest.raises(UserError) as caught:
        train(config, run_dir=tmp_path / "run", callbacks=[kill])
    assert time.monotonic() - kill.when < 60.0, "before Ray ends this process"
    first, second = str(caught.value).splitlines()
    assert first.endswith("and none is left; the run can be resumed")
    assert latest(tmp_path / "run").meta["step"] >= 128
    assert "The last good checkpoint is " in second


def test_who_is_not_let_in_is_told_why(
    head: Head, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def refusal() -> str:
        with pytest.raises(UserError) as caught:
            build(load_config(settings(ray_address=head.address)))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    monkeypatch.setenv("RAY_AUTH_TOKEN", "6" * 64)
    assert "the cluster does not take this token" in refusal()
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/dev/null")
    assert refusal().endswith("RAY_AUTH_TOKEN_PATH='/dev/null' has no token (it is empty)")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "the cluster does not take this token" in refusal()
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setattr(ray, "__version__", "2.1.0")
    assert "the cluster has another version of Ray or Python; both must be the same everywhere" in refusal()
    assert capfd.readouterr() == ("", "")


def test_a_cluster_of_somebody_else_loses_only_our_workers(head: Head, tmp_path: Path) -> None:
    head.add()
    head.wait_until_ready(2)
    run = build(load_config(settings(ray_address=head.address)))
    run.start()
    run.advance()
    assert isinstance(run.source, Pool)
    holders = [p for number in (0, 1) for p in head.processes(number) if p.name() == "ray::Holder"]
    assert len(holders) == 2
    run.close()
    end = time.monotonic() + 10
    while time.monotonic() < end and any(alive(p.pid) for p in holders):
        time.sleep(0.1)
    assert not any(alive(p.pid) for p in holders)
    assert "raylet" in {p.name() for p in head.processes(0)}


def test_too_many_workers_are_one_line(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.runtime.actors import ray_engine

    monkeypatch.setattr(ray_engine, "STARTED_WITHIN", 8.0)
    with pytest.raises(UserError) as caught:
        build(load_config(settings(ray_address=head.address)))
    assert str(caught.value) == (
        "num_workers=2: 1 found room in the Ray cluster within 8 s; it has 1 CPUs, and every worker needs one that is "
        "free"
    )
