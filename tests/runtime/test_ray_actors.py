"""Workers on Ray: what they gather, how losses are noticed, and what a cluster leaves behind.

They share one cluster of this process's own. Clusters of several nodes have a file of their own.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pool_worlds import Uneven
from ray_worlds import Touch, When, alive, fateful, settings
from rl_training.experiment.config import load_config
from rl_training.experiment.notes import recall, remember
from rl_training.experiment.trust import Gate, code_in
from rl_training.runtime.train import build, train
from rl_training.runtime.workflows import resume_training
from rl_training.testing.contract import tiny_config
from rl_training.types import UserError
from run_helpers import Pulled, PullPlug, latest, run_differences, tiny, training_differences

try:
    import ray
except ImportError:
    ray = None

needs_ray = pytest.mark.skipif(ray is None, reason="Ray is not installed: pip install 'rl-training[ray]'")


@pytest.fixture
def said() -> Iterator[When]:
    handler, log = When(), logging.getLogger("rl_training")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@pytest.fixture(scope="module")
def own() -> Iterator[Any]:
    """One cluster for all: runs of a process share it."""
    from rl_training.runtime.actors.ray_cluster import join

    joined = join(None, workers=2, store=0)
    yield joined
    joined.leave()


# Without a cluster.


def test_an_address_is_for_ray_only() -> None:
    with pytest.raises(UserError) as caught:
        load_config(tiny(ray_address="10.0.0.1:6379"))
    assert "ray_address='10.0.0.1:6379' is for actors: ray; actors is inline" in str(caught.value)


def test_without_ray_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # type: ignore[arg-type]
    with pytest.raises(UserError) as caught:
        build(load_config(settings()))
    assert str(caught.value).startswith(
        "actors='ray': needs an extra that is not installed: pip install 'rl-training[ray]' ("
    )
    assert "\n" not in str(caught.value)


@needs_ray
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("somewhere", "must be HOST:PORT of the cluster's head, such as 10.0.0.1:6379"),
        ("ray://10.0.0.1:10001", "must be HOST:PORT of the cluster's head, such as 10.0.0.1:6379"),
        ("127.0.0.1:1", "nothing answers there"),
    ],
)
def test_a_wrong_address_is_one_line(address: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        build(load_config(settings(ray_address=address)))
    assert str(caught.value) == f"ray_address={address!r}: {words}"


def test_the_address_in_a_run_of_somebody_else_is_asked_about(tmp_path: Path) -> None:
    config = load_config(settings(env_id="CartPole-v1", ray_address="10.0.0.1:6379"))
    names = list(code_in(config))
    assert names == [("ray_address", "10.0.0.1:6379")]
    with pytest.raises(UserError, match=r"its ray_address='10.0.0.1:6379' would let that cluster run code here, and"):
        Gate.before(tmp_path, "0" * 32, []).admit(names)
    Gate.before(tmp_path, "0" * 32, ["10.0.0.1:6379"]).admit(names)
    Gate.before(tmp_path, "0" * 32, [], trust=True).admit(names)
    remember(tmp_path, "0" * 32, names)
    assert recall(tmp_path, "0" * 32) == {("ray_address", "10.0.0.1:6379"): None}
    Gate.before(tmp_path, "0" * 32, []).admit(names)


# With a cluster of its own.


@needs_ray
@pytest.mark.usefixtures("own")
def test_in_fixed_order_the_bits_are_those_of_this_process(tmp_path: Path) -> None:
    for actors in ("inline", "ray"):
        train(settings(actors=actors, order="fixed", normalize_obs=True), run_dir=tmp_path / actors)
    differences = [line for line in run_differences(tmp_path / "inline", tmp_path / "ray") if "actors" not in line]
    assert differences == []
    assert latest(tmp_path / "ray").meta["resume"] == "exact"
    assert latest(tmp_path / "ray").meta["step"] == 256


@needs_ray
@pytest.mark.usefixtures("own")
@pytest.mark.filterwarnings("ignore:.*shows no time limit")  # episodes end by their own count
def test_several_tasks_gather_what_they_would_in_this_process() -> None:
    size = {"width": 16, "layers": 1, "expert_size": 8, "experts": 2, "learning_starts": 4, "train_every": 12}
    found = []
    for actors in ("inline", "ray"):
        run = build(tiny_config("scalezero", tasks=2, stages=2, stage_updates=6, order="fixed", actors=actors, **size))
        run.start()
        for _ in range(3):
            run.advance()
        found.append(run.snapshot())
        run.close()
    # The streams of the environments and of the policy are those of the workers, and are saved with them.
    left = [line for line in training_differences(*found) if not line.startswith(("envs", "rng.streams"))]
    assert left == []


@needs_ray
@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("first", "then"), [("ray", "inline"), ("inline", "ray")])
def test_a_run_resumes_on_the_other_engine(first: str, then: str, tmp_path: Path) -> None:
    config = settings(order="fixed", checkpoint_interval=64)
    train(config | {"actors": "inline"}, run_dir=tmp_path / "whole")
    with pytest.raises(Pulled):
        train(config | {"actors": first}, run_dir=tmp_path / "half", callbacks=[PullPlug(100)])
    assert resume_training(tmp_path / "half", actors=then).stop_reason == "completed"
    left = [line for line in run_differences(tmp_path / "whole", tmp_path / "half") if "actors" not in line]
    assert left == []
    assert latest(tmp_path / "half").meta["resume"] == "exact"


@needs_ray
def test_by_default_order_is_arrival_which_says_restarted(own: Any, tmp_path: Path) -> None:
    from ray._private.worker import global_worker

    kept = len(global_worker.core_worker.get_all_reference_counts())
    # Rollouts of this size are objects of the cluster's, not part of an answer.
    run = build(load_config(settings(env_id="CartPole-v1", num_workers=1, n_steps=2048, n_epochs=1)))
    run.start()
    for _ in range(4):
        run.advance()
    left = len(global_worker.core_worker.get_all_reference_counts()) - kept
    assert left <= 8, "what was learned from is not kept"
    meta = run.snapshot().meta
    assert meta["resume"] == "restarted"
    assert meta["why_restarted"] == [
        "order=arrival: rollouts are learned from as they arrive, which no second run repeats"
    ]
    run.close()
    assert own.ray.is_initialized(), "others still use it"


@needs_ray
@pytest.mark.usefixtures("own")
def test_a_worker_that_is_killed_is_replaced(tmp_path: Path, said: When) -> None:
    touch = Touch(tmp_path / "now")
    result = train(fateful(touch.file, "kill"), run_dir=tmp_path / "run", callbacks=[touch])
    assert result["step"] == 256
    assert result["restarts"] == 1
    ((when, words),) = [(when, words) for when, words in said.said if "replaced" in words]
    assert "is gone: its process on 127.0.0.1 ended; it is replaced, and its episodes are broken off" in words
    assert when - touch.when < 2.0


@needs_ray
@pytest.mark.usefixtures("own")
def test_a_worker_that_is_frozen_is_replaced_at_its_deadline(tmp_path: Path, said: When) -> None:
    touch = Touch(tmp_path / "now")
    config = fateful(touch.file, "freeze", rollout_deadline=3.0, num_workers=1)
    result = train(config, run_dir=tmp_path / "run", callbacks=[touch])
    assert result["step"] == 256
    assert result["restarts"] == 1
    ((when, words),) = [(when, words) for when, words in said.said if "replaced" in words]
    assert "did not deliver a rollout within rollout_deadline=3 seconds; it is replaced" in words
    assert 2.5 < when - touch.when < 6.0


@needs_ray
@pytest.mark.usefixtures("own")
def test_an_error_in_an_environment_is_one_line_and_its_traceback_is_kept(tmp_path: Path) -> None:
    touch = Touch(tmp_path / "now")
    with pytest.raises(UserError) as caught:
        train(fateful(touch.file, "raise", num_workers=1), run_dir=tmp_path / "run", callbacks=[touch])
    first, second = str(caught.value).splitlines()
    assert first.startswith("worker ")
    assert first.endswith(f": ValueError: the pole broke (where: {tmp_path / 'run' / 'error.log'})")
    assert second.startswith("The last good checkpoint is ")
    trace = (tmp_path / "run" / "error.log").read_text()
    assert "Traceback" in trace
    assert "pool_worlds.py" in trace


@needs_ray
@pytest.mark.usefixtures("own")
def test_a_module_that_a_worker_cannot_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_here")
    exec("import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(UserError) as caught:
        build(load_config(settings(env_id="custom", num_workers=1)), env_factory=module.make)
    assert str(caught.value) == (
        "worker 0 on 127.0.0.1: cannot import 'only_here', which the function of the environment needs; install it "
        "there, or put its folder on PYTHONPATH before `ray start`"
    )


@needs_ray
@pytest.mark.usefixtures("own")
def test_functions_of_the_main_module_are_sent_along() -> None:
    run = build(load_config(settings(env_id="custom", num_workers=1)), env_factory=lambda: Uneven(0.0))
    run.start()
    run.advance()
    assert run.steps == 64
    run.close()


@needs_ray
@pytest.mark.usefixtures("own")
def test_nobody_else_can_reach_a_cluster_of_its_own() -> None:
    import psutil

    names, listening = set(), []
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # a worker of an earlier test has just ended
            names.add(process.name())
            sockets = process.net_connections("inet")
            listening += [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
    assert {"raylet", "gcs_server"} <= names
    assert len(listening) >= 4
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@needs_ray
@pytest.mark.usefixtures("own")
def test_a_process_has_one_cluster() -> None:
    with pytest.raises(UserError, match=r"ray_address='127.0.0.1:9': this process is connected to another Ray cluster"):
        build(load_config(settings(ray_address="127.0.0.1:9")))


# A process of its own, from beginning to end.

SCRIPT = """
import getpass, json, os, signal, sys, tempfile
from pathlib import Path
from rl_training import Callback
from rl_training.runtime.train import train

class Note(Callback):
    def on_step(self, run, metrics):
        import psutil
        self.pids = [process.pid for process in psutil.Process().children(recursive=True)]

def what_others_see():
    own = [path for path in Path(tempfile.gettempdir()).glob("rl-ray-*") if path.owner() == getpass.getuser()]
    variables = {name: value for name, value in os.environ.items() if name != "RAY_CLIENT_MODE"}  # set by the import
    return signal.getsignal(signal.SIGTERM), sorted(own), variables

note, before = Note(), what_others_see()
train(json.loads(sys.argv[1]), callbacks=[note])
assert what_others_see() == before
import ray
assert not ray.is_initialized()
print(json.dumps(note.pids))
"""


@needs_ray
def test_nothing_is_left_and_nothing_is_shown(tmp_path: Path) -> None:
    import psutil

    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = json.dumps(settings(env_id="CartPole-v1", output_dir=str(tmp_path / "runs")))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    # A short folder of its own: tests beside this one have clusters too, and the names of sockets are limited.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": folder}
        done = subprocess.run(
            [sys.executable, str(script), words],
            env=environment, capture_output=True, text=True, timeout=200, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    pids = json.loads(done.stdout)
    assert len(pids) >= 4
    end = time.monotonic() + 5
    while time.monotonic() < end and any(alive(pid) for pid in pids):
        time.sleep(0.1)
    assert [psutil.Process(pid).cmdline() for pid in pids if alive(pid)] == []
