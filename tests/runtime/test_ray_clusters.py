"""Workers on Ray clusters of several nodes, on the loopback interface: who is let in, and what a lost node means."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_worlds import HEALTH, Head, When, alive, cluster, fateful, settings
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


# Two machines, as far as the network is concerned: each has its own interfaces, joined by a cable that can be cut.

TWO_MACHINES = """
set -e
ip link set lo up
unshare -n sleep 300 & OTHER=$!
sleep 0.5
ip link add here type veth peer name there
ip link set there netns $OTHER
ip addr add 10.77.0.1/24 dev here
ip link set here up
nsenter -t $OTHER -n ip link set lo up
nsenter -t $OTHER -n ip addr add 10.77.0.2/24 dev there
nsenter -t $OTHER -n ip link set there up
START="$PYTHON -m ray.scripts.scripts start --block --num-cpus=1 --object-store-memory=100000000"
$START --head --node-ip-address=10.77.0.1 --port=6399 --include-dashboard=false --temp-dir=$FOLDER > head.log 2>&1 &
HEAD=$!
for i in $(seq 90); do grep -q "runtime started" head.log && break; sleep 1; done
nsenter -t $OTHER -n $START --node-ip-address=10.77.0.2 --address=10.77.0.1:6399 > node.log 2>&1 & NODE=$!
for i in $(seq 90); do grep -q "runtime started" node.log && break; sleep 1; done
$PYTHON learner.py || echo failed
kill -TERM $NODE $HEAD
sleep 3
kill -KILL $NODE $HEAD $OTHER 2> kill.log || true
"""
LEARNER = """
import json, subprocess, sys, time
import ray_worlds
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.train import train

class Cut(Callback):
    when = 0.0
    def on_step(self, run, metrics):
        if run.steps >= 128 and not self.when:
            self.nodes = sorted(actor.node for actor in run.source._engine._actors)
            subprocess.run(["ip", "link", "set", "here", "down"], check=True)
            self.when = time.monotonic()

cut, said = Cut(), ray_worlds.When()
import logging
logging.getLogger("rl_training").addHandler(said)
config = ray_worlds.fateful("never", "kill", ray_address="10.77.0.1:6399", total_timesteps=512)
result = train(config, run_dir="run", callbacks=[cut])
lines = [(when - cut.when, words) for when, words in said.said if words.startswith("worker")]
json.dump({"step": result["step"], "nodes": cut.nodes, "lines": lines}, open("result.json", "w"))
"""


def test_a_machine_that_is_cut_off_is_noticed_in_ten_seconds(tmp_path: Path) -> None:
    if shutil.which("ip") is None or subprocess.run(["unshare", "-rnm", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no network namespaces")
    (tmp_path / "learner.py").write_text(LEARNER)
    with tempfile.TemporaryDirectory(prefix="rlt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        environment = os.environ | HEALTH | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "FOLDER": folder}
        environment |= {"PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            ["unshare", "-rnm", "bash", "-c", TWO_MACHINES],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280,
        )  # fmt: skip
    assert (tmp_path / "result.json").exists(), done.stdout + done.stderr
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["nodes"] == ["10.77.0.1", "10.77.0.2"]
    assert found["step"] == 512
    (noticed, how), (_, then) = found["lines"]
    assert noticed < 10.0
    assert "its node 10.77.0.2 died" in how or "cannot be reached on 10.77.0.2" in how
    assert "1 of 2 workers go on" in then
