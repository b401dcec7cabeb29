"""A pool whose workers are lost for good, as on a cluster that shrinks: who goes on, and what is saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from rl_training.experiment.config import load_config
from rl_training.runtime.actors import make_pool as making
from rl_training.runtime.actors.actor import Steps
from rl_training.runtime.actors.engines import Delivery, Inline, Loss, WorkerLost, WorkersLost
from rl_training.runtime.actors.pool import Pool
from rl_training.runtime.actors.worker import Request
from rl_training.runtime.train import Run, build
from rl_training.types import UserError
from run_helpers import latest, tiny


class Shrinking(Inline):
    """Loses workers for good: `lost` says which, when they are next asked for a rollout."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lost: set[int] = set()
        self.asked: list[tuple[int, int]] = []

    def send(self, worker: int, request: Request, weights: Mapping[str, Tensor]) -> None:
        self.asked.append((worker, request.number))
        super().send(worker, request, weights)

    def wait(self, seconds: float | None) -> Delivery | Loss | None:  # type: ignore[override]
        worker = self._waiting[0][0]
        if worker in self.lost:
            return Loss(worker, "is gone")
        return super().wait(seconds)

    def call(self, worker: int, name: str, *arguments: Any) -> Any:
        if worker in self.lost:
            raise WorkerLost(Loss(worker, "is gone"))
        return super().call(worker, name, *arguments)

    def replace(self, worker: int, life: int) -> None:
        self._waiting = type(self._waiting)(one for one in self._waiting if one[0] != worker)
        raise WorkerLost(Loss(worker, "found no room", final=True))


@pytest.fixture
def shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "Inline", Shrinking)


def started(**changes: Any) -> tuple[Run, Pool, Shrinking]:
    run = build(load_config(tiny(**{"num_envs": 6, "num_workers": 3, "order": "arrival", **changes})))
    run.start()
    assert isinstance(run.source, Pool)
    assert isinstance(run.source._engine, Shrinking)
    return run, run.source, run.source._engine


@pytest.mark.usefixtures("shrinking")
def test_the_workers_that_are_left_give_what_a_lost_one_owes(caplog: pytest.LogCaptureFixture) -> None:
    run, pool, engine = started()
    run.advance()
    engine.lost.add(1)
    run.advance()
    assert run.steps == 2 * 8 * 6, "a round is as large as ever"
    assert "worker 1 found no room; 2 of 3 workers go on" in caplog.text
    asked = list(engine.asked)
    run.advance()
    run.advance()
    assert {worker for worker, _ in engine.asked[len(asked) :]} == {0, 2}
    numbers = [number for _, number in engine.asked]
    assert sorted(set(numbers)) == list(range(12)), "every rollout was asked for, and that of the lost worker again"
    assert pool.restarts == 0
    assert pool.state_dict().keys() == {"actor", "actor/2", "pool"}
    run.close()


@pytest.mark.usefixtures("shrinking")
def test_when_none_is_left_the_run_is_saved_and_ends_with_one_line(tmp_path: Any) -> None:
    from rl_training.runtime.train import run as run_training

    run, _, engine = started()
    run.archive.open(run, tmp_path / "run")
    run.advance()
    engine.lost |= {0, 1, 2}
    with pytest.raises(UserError) as caught:
        run_training(run)
    run.close()
    first, *rest = str(caught.value).splitlines()
    assert first == "worker 2 found no room, and none is left; the run can be resumed"
    assert len(rest) == 1
    assert latest(tmp_path / "run").meta["step"] == 48
    assert latest(tmp_path / "run").meta["resume"] == "restarted"


@pytest.mark.usefixtures("shrinking")
def test_in_fixed_order_a_lost_worker_ends_the_run() -> None:
    run, pool, engine = started(order="fixed")
    run.advance()
    engine.lost.add(1)
    with pytest.raises(WorkersLost) as caught:
        run.advance()
    assert str(caught.value) == "worker 1 found no room, and order=fixed needs every worker; the run can be resumed"
    assert not pool.exact
    assert pool.why_not_exact == ["worker 1 was lost, and with it its episodes"]
    assert pool.state_dict().keys() == {"actor", "actor/2", "pool"}
    with pytest.raises(WorkersLost, match="worker 1 found no room, and"):
        run.advance()
    run.close()


@pytest.mark.usefixtures("shrinking")
def test_a_memory_whose_columns_are_environments_cannot_do_without_one() -> None:
    run, _, engine = started(algo="dqn")
    engine.lost.add(0)
    with pytest.raises(WorkersLost, match="worker 0 found no room, and this memory needs every worker; the run can be"):
        run.advance()
    run.close()


@pytest.mark.usefixtures("shrinking")
def test_random_steps_are_those_of_the_workers_that_are_left() -> None:
    run, pool, engine = started()
    engine.lost.add(2)
    steps = pool.gather(3, Steps(), randomly=True)
    assert [len(step.reward) for step in steps] == [4] * 3
    assert pool.gather(3, Steps(), randomly=True)[0].obs.shape == (4, 4)
    run.close()


@pytest.mark.usefixtures("shrinking")
def test_out_of_fixed_order_columns_are_in_the_order_of_the_workers() -> None:
    run, pool, engine = started()
    run.advance()
    engine._waiting.rotate(1)
    pool._count = 8
    pool._ask_due()
    engine._waiting.rotate(1)  # the last worker is the first to deliver
    taken: list[Any] = []

    class Taking(Steps):
        def take(self, strip: Any) -> None:
            taken.append(strip.envs)

    pool.gather(8, Taking())
    np.testing.assert_array_equal(taken[0], np.arange(6))
    run.close()
