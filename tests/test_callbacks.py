"""What happens around the steps of a loop: its order, its cadence, early stopping, and callbacks of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance import OFF_POLICY
from rl_training import PPO, Callback, UserError, resume_training, train
from rl_training.experiment.config import load_config
from rl_training.experiment.registry import REGISTRY
from rl_training.experiment.settings import EarlyStoppingRule
from rl_training.runtime import clock as clock_module
from rl_training.runtime.callbacks import EarlyStopping, Evaluate, Log, Save, crossed
from rl_training.runtime.evaluations import Evaluation
from rl_training.runtime.train import build
from run_helpers import Pulled, PullPlug, Recording, latest, metrics_rows, pace, tiny

# Synchronous environments give every update the same number of steps: 24.
STEADY = tiny(vectorization="sync")
EVERY_ALGORITHM = pytest.mark.parametrize("algo", REGISTRY)
EVERY_OFF_POLICY = pytest.mark.parametrize("algo", OFF_POLICY)


class Scripted(Callback):
    """Makes evaluations come to what a test wants; it repeats the last score when it runs out of them."""

    def __init__(self, *scores: float) -> None:
        self.scores = list(scores)

    def on_start(self, run: Any) -> None:
        def scored(episodes: int, *, deterministic: bool | None = None) -> Evaluation:
            if deterministic:  # beside the evaluation of a policy that is judged by samples
                return Evaluation((0.0,), (1,))
            return Evaluation((self.scores.pop(0) if len(self.scores) > 1 else self.scores[0],), (1,))

        run.evaluate = scored


def stopped(tmp_path: Path, rules: Any, *scores: float, **changes: Any) -> Any:
    config = STEADY | {"eval_interval": 24, "early_stopping": rules} | changes
    return train(config, run_dir=tmp_path / "run", callbacks=[Scripted(*scores)])


@pytest.mark.parametrize(
    ("before", "now", "interval", "expected"),
    [
        (0, 24, 24, True),
        (0, 23, 24, False),
        (23, 24, 24, True),
        (24, 47, 24, False),
        (0, 1000, 24, True),
        (90, 110, 100, True),
        (100, 100, 100, False),
        (99, 101, None, False),
    ],
)
def test_a_cadence_fires_when_the_clock_crosses_a_multiple(
    before: int, now: int, interval: int | None, expected: bool
) -> None:
    assert crossed(before, now, interval) is expected


@EVERY_ALGORITHM
def test_evaluations_and_checkpoints_come_at_crossings_though_no_step_hits_a_multiple(
    algo: str, tmp_path: Path
) -> None:
    """Of the intervals, 50 and 70, none is ever hit exactly by steps of 24; updates from a dataset hit every one."""
    stride = pace(algo)
    judged = {24: [72, 120, 168, 216, 240], 1: [50, 100, 150, 200, 240]}[stride]
    due = {24: {72, 144, 216, 240}, 1: {70, 140, 210, 240}}[stride]
    recording = Recording()
    config = tiny(algo=algo, vectorization="sync", eval_interval=50, checkpoint_interval=70, log_interval=100)
    train(config, run_dir=tmp_path / "run", callbacks=[recording])
    assert recording.at("step") == list(range(stride, 240 + stride, stride))
    assert recording.at("eval") == judged
    assert due <= set(recording.at("checkpoint"))
    new_bests = {
        step
        for step, metrics in zip(recording.at("eval"), recording.evaluations, strict=True)
        if metrics["eval_return_mean"] == metrics["eval_return_best"]
    }
    assert set(recording.at("checkpoint")) <= due | new_bests
    assert [row["step"] for row in metrics_rows(tmp_path / "run")] == judged


def test_log_rows_are_written_at_their_cadence_at_evaluations_and_at_the_end(tmp_path: Path) -> None:
    config = STEADY | {"eval_interval": 120, "log_interval": 50, "total_timesteps": 264}
    train(config, run_dir=tmp_path / "run")
    rows = metrics_rows(tmp_path / "run")
    assert [row["step"] for row in rows] == [72, 120, 168, 216, 240, 264]
    assert [row["step"] for row in rows if "eval_return_mean" in row] == [120, 240, 264]


@pytest.mark.parametrize("interval", [None, 24, 100, 100_000])
def test_one_evaluation_always_runs_at_the_end_and_only_one(interval: int | None, tmp_path: Path) -> None:
    recording = Recording()
    result = train(STEADY | {"eval_interval": interval}, run_dir=tmp_path / "run", callbacks=[recording])
    assert recording.at("eval")[-1] == 240
    assert recording.at("eval").count(240) == 1
    assert result["eval_return_mean"] == recording.evaluations[-1]["eval_return_mean"]
    assert metrics_rows(tmp_path / "run")[-1]["eval_return_mean"] == result["eval_return_mean"]


class Order(Recording):
    """What the others have done by the time that a callback of one's own is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, bool, bool, bool]] = []

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        judged = run.evaluated_now
        logged = (run.folder.path / "metrics.jsonl").stat().st_size > 0
        saved = (run.folder.checkpoints / f"step_{run.steps}").exists()
        self.seen.append((judged, run.should_stop, logged, saved))


def test_the_order_is_evaluate_stop_own_log_save(tmp_path: Path) -> None:
    order = Order()
    config = STEADY | {
        "eval_interval": 24,
        "log_interval": 24,
        "checkpoint_interval": 24,
        "early_stopping": {"target_value": 0},
    }
    train(config, run_dir=tmp_path / "run", callbacks=[order])
    assert order.seen == [(True, True, False, False)]
    assert (tmp_path / "run" / "checkpoints" / "step_24").is_dir()
    # The row was written before the checkpoint, which knows its length.
    assert latest(tmp_path / "run").state["trainer"]["metrics_length"] == (
        (tmp_path / "run" / "metrics.jsonl").stat().st_size
    )
    run = build(load_config(config), callbacks=[order])
    run.close()
    kinds = [type(callback) for callback in run.callbacks]
    assert kinds[:3] == [Evaluate, EarlyStopping, Order]
    assert kinds[-2:] == [Log, Save]


def test_hooks_are_called_in_turn(tmp_path: Path) -> None:
    recording = Recording()
    config = STEADY | {"total_timesteps": 48, "eval_interval": 24, "checkpoint_interval": 24}
    train(config, run_dir=tmp_path / "run", callbacks=[recording])
    assert recording.calls[0] == ("start", 0)
    first = [name for name, step in recording.calls if step == 24]
    assert first == ["eval", "step", "checkpoint"]
    last = [name for name, step in recording.calls if step == 48]
    assert last == ["eval", "step", "end", "checkpoint"]


def test_the_paths_of_checkpoints_exist_when_they_are_told(tmp_path: Path) -> None:
    class Reads(Callback):
        steps: list[int] = []

        def on_checkpoint(self, run: Any, path: Path) -> None:
            self.steps = [*self.steps, json.loads((path / "meta.json").read_text())["step"]]
            assert path.name == f"step_{run.steps}"
            assert path.parent == run.folder.checkpoints
            assert (path.parent / "latest").read_text().strip() == path.name

    reads = Reads()
    result = train(STEADY, run_dir=tmp_path / "run", callbacks=[reads])
    assert reads.steps[-2:] == [192, 240]
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / "step_240"


# Early stopping.


def test_patience_stops_at_the_pth_evaluation_without_improvement(tmp_path: Path) -> None:
    result = stopped(tmp_path, {"patience": 3}, 1.0, 2.0, 2.0, 1.0, 2.0, 9.0)
    assert result["step"] == 24 * 5
    assert result.stop_reason == "early_stopping: eval_return_mean did not improve in 3 evaluations"


def test_improvement_starts_the_wait_again(tmp_path: Path) -> None:
    result = stopped(tmp_path, {"patience": 2}, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0)
    assert result["step"] == 24 * 7


def test_min_delta_says_what_counts_as_improvement(tmp_path: Path) -> None:
    assert stopped(tmp_path, {"patience": 2, "min_delta": 0.5}, 1.0, 1.4, 1.5, 9.0)["step"] == 24 * 3
    result = stopped(tmp_path / "b", {"patience": 2, "min_delta": 0.5}, 1.0, 1.6, 2.2, 2.8, 3.4, 4.0)
    assert result["step"] == 24 * 8


def test_min_steps_holds_every_stop_back(tmp_path: Path) -> None:
    assert stopped(tmp_path, {"patience": 1, "min_steps": 100}, 1.0)["step"] == 120
    assert stopped(tmp_path / "b", {"target_value": 1, "min_steps": 120}, 1.0)["step"] == 120


@EVERY_ALGORITHM
def test_target_value(algo: str, tmp_path: Path) -> None:
    config = tiny(algo=algo, vectorization="sync", eval_interval=24, early_stopping={"target_value": 5})
    recording = Recording()
    result = train(config, run_dir=tmp_path / "run", callbacks=[Scripted(1.0, 4.9, 5.0), recording])
    assert recording.at("step") == list(range(pace(algo), 73, pace(algo))), "the loop went on"
    assert result.stop_reason == "early_stopping: eval_return_mean reached 5"
    trainer = latest(tmp_path / "run").state["trainer"]
    assert (trainer["should_stop"], trainer["stop_reason"]) == (True, result.stop_reason)


def test_sustained_wants_the_target_in_a_row(tmp_path: Path) -> None:
    result = stopped(tmp_path, {"target_value": 5, "sustained": 3}, 5.0, 6.0, 4.0, 5.0, 5.0, 5.0, 0.0)
    assert result["step"] == 24 * 6


def test_mode_min(tmp_path: Path) -> None:
    rules = {"mode": "min", "target_value": 2}
    assert stopped(tmp_path, rules, 5.0, 3.0, 2.0)["step"] == 24 * 3
    assert stopped(tmp_path / "b", {"mode": "min", "patience": 2}, 3.0, 2.0, 2.0, 2.5)["step"] == 24 * 4


def test_any_metric_can_be_watched(tmp_path: Path) -> None:
    rules = {"metric": "n_updates", "target_value": 16}
    result = stopped(tmp_path, rules, 1.0)
    assert result["n_updates"] == 16
    assert result.stop_reason == "early_stopping: n_updates reached 16"


def test_a_metric_of_episodes_is_waited_for_until_one_has_ended(tmp_path: Path) -> None:
    """The first evaluations come before any episode of Pendulum, which takes 200 steps, has ended."""
    rules = {"metric": "episode_length_mean", "target_value": 200}
    result = stopped(tmp_path, rules, 1.0, env_id="Pendulum-v1", total_timesteps=1000)
    assert result.stop_reason == "early_stopping: episode_length_mean reached 200"
    assert result["step"] == 600


def test_the_first_of_several_rules_that_holds_ends_the_run(tmp_path: Path) -> None:
    rules = [{"patience": 4}, {"target_value": 3}, {"metric": "n_updates", "target_value": 1e9}]
    assert stopped(tmp_path, rules, 1.0, 2.0, 3.0).stop_reason.endswith("reached 3")
    assert stopped(tmp_path / "b", rules, 1.0).stop_reason.endswith("did not improve in 4 evaluations")


def test_an_unknown_metric_is_said_with_what_is_known(tmp_path: Path) -> None:
    """After the first step, and not only when the first evaluation comes."""
    with pytest.raises(UserError) as complaint:
        stopped(tmp_path, {"metric": "entropyy", "patience": 1}, 1.0, eval_interval=10_000)
    message = str(complaint.value)
    assert "early_stopping.metric='entropyy': no such metric; did you mean 'entropy'?" in message
    assert "eval_return_best" in message
    assert f"The last good checkpoint is {tmp_path / 'run' / 'checkpoints' / 'step_0'}" in message


@EVERY_OFF_POLICY
def test_a_metric_of_updates_is_waited_for_until_there_is_one(algo: str, tmp_path: Path) -> None:
    """Two evaluations come before the first update; the patience of one begins after the third."""
    config = tiny(algo=algo, vectorization="sync", eval_interval=24)
    rules = {"metric": "q_mean", "patience": 1, "min_delta": 1e9}
    result = train(config | {"early_stopping": rules}, run_dir=tmp_path / "run", callbacks=[Scripted(1.0)])
    assert result["step"] == 96
    assert result.stop_reason == "early_stopping: q_mean did not improve in 1 evaluations"


def test_an_unknown_metric_is_said_at_the_first_update(tmp_path: Path) -> None:
    recording = Recording()
    config = tiny(algo="sac", vectorization="sync", eval_interval=24)
    with pytest.raises(UserError, match="no such metric; did you mean 'entropy'"):
        train(
            config | {"early_stopping": {"metric": "entropyy", "patience": 1}},
            run_dir=tmp_path / "run",
            callbacks=[recording],
        )
    assert recording.at("step") == [24, 48]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"patience": 0}, "patience=0: must be at least 1"),
        ({"min_steps": 5}, "needs 'patience' or 'target_value'"),
        ({"sustained": 2, "patience": 1}, "'sustained' needs 'target_value'"),
        ({"patience": 1, "mode": "maximum"}, "must be one of max, min; did you mean 'max'?"),
        ({"pateince": 3}, "did you mean 'patience'?"),
        ("soon", "early_stopping"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rules: Any, words: str) -> None:
    with pytest.raises(UserError) as complaint:
        load_config(STEADY | {"eval_interval": 24, "early_stopping": rules})
    assert words in str(complaint.value)


def test_early_stopping_without_evaluations_is_refused() -> None:
    with pytest.raises(UserError, match="give eval_interval too"):
        load_config(STEADY | {"early_stopping": {"patience": 3}})


def test_counters_survive_a_resume(tmp_path: Path) -> None:
    """Two evaluations of the wait are before the cut, one after it."""
    config = STEADY | {"eval_interval": 24, "checkpoint_interval": 24, "early_stopping": {"patience": 3}}
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "run", callbacks=[Scripted(5.0, 4.0, 4.0, 4.0), PullPlug(72)])
    state = latest(tmp_path / "run").state["callbacks"]["EarlyStopping.0"]
    rule = EarlyStoppingRule(patience=3).model_dump(mode="json")
    assert state == {"rule": rule, "known": True, "best": 5.0, "waited": 2, "reached": 0}
    result = resume_training(tmp_path / "run", callbacks=[Scripted(4.0)])
    assert result["step"] == 96
    assert result["eval_return_best"] == 5.0
    assert latest(tmp_path / "run", "best").meta["step"] == 24


def test_a_changed_rule_counts_from_the_resume_on(tmp_path: Path) -> None:
    """The rule before it has waited for two evaluations; with them this one would stop at 120."""
    config = STEADY | {"eval_interval": 24, "checkpoint_interval": 24, "early_stopping": {"patience": 9}}
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "run", callbacks=[Scripted(5.0, 4.0), PullPlug(72)])
    result = resume_training(tmp_path / "run", early_stopping={"patience": 4}, callbacks=[Scripted(4.0)])
    assert result["step"] == 72 + 24 * 5


def test_a_learn_after_an_early_stop_waits_anew() -> None:
    settings = STEADY | {"eval_interval": 24, "early_stopping": {"patience": 2}}
    agent = PPO(settings.pop("env_id"), **{key: value for key, value in settings.items() if key != "algo"})
    try:
        assert agent.learn(240, callback=Scripted(1.0)).num_timesteps == 72
        assert agent.learn(240, callback=Scripted(1.0)).num_timesteps == 144
    finally:
        agent.close()


def test_sustained_counts_across_a_resume(tmp_path: Path) -> None:
    rules = [{"patience": 99}, {"target_value": 5, "sustained": 3}]
    config = STEADY | {"eval_interval": 24, "checkpoint_interval": 24, "early_stopping": rules}
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "run", callbacks=[Scripted(5.0), PullPlug(48)])
    assert latest(tmp_path / "run").state["callbacks"]["EarlyStopping.1"]["reached"] == 2
    assert resume_training(tmp_path / "run", callbacks=[Scripted(5.0)])["step"] == 72


def test_the_rule_in_isolation() -> None:
    class FakeRun:
        steps = 10
        metrics: dict[str, float] = {}
        reasons: list[str] = []

        def request_stop(self, reason: str) -> None:
            self.reasons.append(reason)

    run: Any = FakeRun()
    stopping = EarlyStopping(EarlyStoppingRule(patience=2))
    for value in (1.0, float("nan"), 0.5):
        stopping.on_eval(run, {"eval_return_mean": value})
    assert run.reasons == ["early_stopping: eval_return_mean did not improve in 2 evaluations"]


# Callbacks of one's own.


class StopsAt(Callback):
    def __init__(self, steps: int, reason: str = "enough") -> None:
        self.steps, self.reason = steps, reason

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        if run.steps >= self.steps:
            run.request_stop(self.reason)


@EVERY_ALGORITHM
def test_a_callback_can_stop_the_run(algo: str, tmp_path: Path) -> None:
    recording = Recording()
    config = tiny(algo=algo, vectorization="sync")
    result = train(config, run_dir=tmp_path / "run", callbacks=[StopsAt(72), recording])
    assert result.stop_reason == "enough"
    assert result["step"] == 72
    assert recording.at("step") == list(range(pace(algo), 73, pace(algo)))
    # It ends as every run does: judged, logged and saved.
    assert recording.at("eval") == [72]
    assert metrics_rows(tmp_path / "run")[-1]["step"] == 72
    trainer = latest(tmp_path / "run").state["trainer"]
    assert (trainer["should_stop"], trainer["stop_reason"]) == (True, "enough")
    assert json.loads((tmp_path / "run" / "metadata.json").read_text())["stop_reason"] == "enough"


def test_the_first_reason_is_the_one_that_is_kept(tmp_path: Path) -> None:
    callbacks = [StopsAt(48, "first"), StopsAt(48, "second"), StopsAt(24, "third")]
    assert train(STEADY, run_dir=tmp_path / "a", callbacks=callbacks).stop_reason == "third"
    assert train(STEADY, run_dir=tmp_path / "b", callbacks=callbacks[:2]).stop_reason == "first"


def test_a_stop_before_the_first_step_ends_at_step_0(tmp_path: Path) -> None:
    class NeverStarts(Callback):
        def on_start(self, run: Any) -> None:
            run.request_stop("no")

    result = train(STEADY, run_dir=tmp_path / "run", callbacks=[NeverStarts()])
    assert result.stop_reason == "no"
    assert latest(tmp_path / "run").meta["step"] == 0


class Counts(Callback):
    """Remembers how many steps it has seen."""

    def __init__(self, name: str = "") -> None:
        self.name, self.seen = name, 0

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        self.seen += 1

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "name": self.name}

    def load_state_dict(self, state: Any) -> None:
        assert state["name"] == self.name
        self.seen = state["seen"]


def test_what_a_callback_remembers_is_saved_and_restored(tmp_path: Path) -> None:
    with pytest.raises(Pulled):
        train(STEADY, run_dir=tmp_path / "run", callbacks=[Counts("a"), Counts("b"), PullPlug(150)])
    assert latest(tmp_path / "run").state["callbacks"]["Counts.1"] == {"seen": 4, "name": "b"}
    first, second = Counts("a"), Counts("b")
    resume_training(tmp_path / "run", callbacks=[first, second])
    assert (first.seen, second.seen) == (10, 10)


def test_a_callback_that_comes_or_goes_takes_no_others_memory(tmp_path: Path) -> None:
    with pytest.raises(Pulled):
        train(STEADY, run_dir=tmp_path / "run", callbacks=[Counts(), PullPlug(150)])
    counts, recording = Counts(), Recording()
    resume_training(tmp_path / "run", callbacks=[recording, counts])
    assert counts.seen == 10
    assert recording.at("step")[0] == 120
    # A run that remembers a callback can go on without it.
    resume_training(tmp_path / "run", total_timesteps=264)


def test_callbacks_are_given_by_reference_too(tmp_path: Path) -> None:
    config = STEADY | {"callbacks": ["test_callbacks:Counts", "test_callbacks:StopsSoon", "test_callbacks:STOPS_LATER"]}
    result = train(config, run_dir=tmp_path / "run")
    assert result.stop_reason == "soon"
    assert latest(tmp_path / "run").state["callbacks"]["Counts.0"]["seen"] == 2


class StopsSoon(StopsAt):
    def __init__(self) -> None:
        super().__init__(48, "soon")


STOPS_LATER = StopsAt(72, "later")


def test_metrics_that_callbacks_see_hold_the_coefficients(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []

    class Sees(Callback):
        def on_step(self, run: Any, metrics: dict[str, float]) -> None:
            seen.append(dict(metrics))

    train(STEADY | {"ent_coef": 0.25, "clip_coef_schedule": "linear"}, run_dir=tmp_path / "run", callbacks=[Sees()])
    assert {metrics["ent_coef"] for metrics in seen} == {0.25}
    assert [metrics["clip_coef"] for metrics in seen] == pytest.approx(
        [0.2 * (1 - s / 240) for s in range(24, 264, 24)]
    )
    assert {"learning_rate", "episode_return_mean", "entropy", "approx_kl"} <= seen[-1].keys()


def test_a_callback_that_fails_leaves_its_traceback_and_a_run_that_can_go_on(tmp_path: Path) -> None:
    class Fails(Callback):
        def on_step(self, run: Any, metrics: dict[str, float]) -> None:
            if run.steps > 100:
                raise ZeroDivisionError("a mistake in my code")

    with pytest.raises(ZeroDivisionError, match="a mistake in my code"):
        train(STEADY, run_dir=tmp_path / "run", callbacks=[Fails()])
    kept = json.loads((tmp_path / "run" / "metadata.json").read_text())
    assert kept["stop_reason"] == "failed: ZeroDivisionError('a mistake in my code')"
    assert resume_training(tmp_path / "run").stop_reason == "completed"


def test_the_clock_counts_training_and_not_the_time_between(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 100.0

        def perf_counter(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(clock_module, "time", clock)
    run = build(load_config(STEADY))
    for start, stop in ((110.0, 115.0), (200.0, 207.0)):
        clock.now = start
        run.clock.start()
        clock.now = stop
        run.clock.stop()
    clock.now = 300.0
    run.close()
    assert run.clock.seconds == 12.0
