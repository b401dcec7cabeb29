"""Every kind of curve at its start, middle, end and beyond; the parser's complaints; the bounds of whole curves."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rl_training.runtime.schedules import Control, ScheduleError, ScheduleSet, parse_control, parse_schedule

HORIZON = 100


def at(schedule: Any, step: int, base: float | None = 0.8, horizon: int | None = HORIZON) -> float:
    return parse_schedule(schedule, base).at(step, horizon)


@pytest.mark.parametrize(
    ("schedule", "start", "middle", "end"),
    [
        ({"type": "constant"}, 0.8, 0.8, 0.8),
        ({"type": "constant", "start": 0.3}, 0.3, 0.3, 0.3),
        ("linear", 0.8, 0.4, 0.0),
        (0.2, 0.8, 0.5, 0.2),
        (1, 0.8, 0.9, 1.0),
        ({"type": "linear", "end": 0.4}, 0.8, 0.6, 0.4),
        ({"end": 0.4}, 0.8, 0.6, 0.4),
        ({"type": "linear", "start": 0.0, "end": 1.0}, 0.0, 0.5, 1.0),
        ({"type": "linear", "end": 0.4, "steps": 50}, 0.8, 0.4, 0.4),
        ({"type": "linear", "end": 0.4, "steps": 200}, 0.8, 0.7, 0.6),
        ({"type": "linear", "end": 0.4, "fraction": 0.5}, 0.8, 0.4, 0.4),
        ({"type": "exponential", "end": 0.2, "fraction": 1}, 0.8, 0.4, 0.2),
        ({"type": "polynomial", "fraction": None}, 0.8, 0.2, 0.0),
        ("cosine", 0.8, 0.4, 0.0),
        ({"type": "cosine", "end": 0.2}, 0.8, 0.5, 0.2),
        ({"type": "exponential", "end": 0.2}, 0.8, 0.4, 0.2),
        ({"type": "exponential", "start": 0.01, "end": 1.0}, 0.01, 0.1, 1.0),
        ({"type": "polynomial"}, 0.8, 0.2, 0.0),
        ({"type": "polynomial", "end": 0.4, "power": 3}, 0.8, 0.45, 0.4),
        ({"type": "polynomial", "power": 1.0}, 0.8, 0.4, 0.0),
        ({"type": "step", "every": 30}, 0.8, 0.4, 0.1),
        ({"type": "step", "every": 30, "factor": 0.1, "end": 0.02}, 0.8, 0.08, 0.02),
        ({"type": "step", "every": 25, "factor": 2.0, "end": 5.0}, 0.8, 3.2, 5.0),
        ({"type": "piecewise", "points": [[0, 1.0], [50, 0.5], [100, 0.0]]}, 1.0, 0.5, 0.0),
        ({"type": "piecewise", "points": [[20, 1.0], [80, 0.0]]}, 1.0, 0.5, 0.0),
        ({"type": "piecewise", "points": [[10, 0.7]]}, 0.7, 0.7, 0.7),
    ],
)
def test_every_kind_at_its_start_middle_and_end(schedule: Any, start: float, middle: float, end: float) -> None:
    assert at(schedule, 0) == pytest.approx(start, abs=1e-12)
    assert at(schedule, 50) == pytest.approx(middle, abs=1e-12)
    assert at(schedule, 100) == pytest.approx(end, abs=1e-12)


@pytest.mark.parametrize("kind", ["linear", "cosine", "exponential", "polynomial"])
@pytest.mark.parametrize(("start", "end"), [(0.3, 0.1), (0.1, 0.3), (0.7, 1e-5)])
def test_the_end_is_reached_exactly_and_held_beyond(kind: str, start: float, end: float) -> None:
    curve = {"type": kind, "start": start, "end": end}
    assert [at(curve, step) for step in (100, 101, 10_000)] == [end, end, end]
    assert at(curve | {"steps": 40}, 40) == end
    assert at(curve | {"steps": 40}, 39) != end


def test_cosine_and_exponential_at_a_quarter() -> None:
    assert at("cosine", 25, base=1.0) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert at({"type": "exponential", "start": 16.0, "end": 1.0}, 25) == pytest.approx(8.0)


def test_steps_fall_at_the_multiples_and_not_before() -> None:
    curve = {"type": "step", "start": 1.0, "every": 10}
    assert [at(curve, step) for step in (0, 9, 10, 19, 20)] == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_piecewise_between_uneven_points() -> None:
    curve = {"type": "piecewise", "points": [[0, 0.0], [10, 1.0], [90, 5.0]]}
    assert [at(curve, step) for step in (5, 10, 30, 90, 500)] == [0.5, 1.0, 2.0, 5.0, 5.0]


def test_a_schedule_without_a_horizon_says_so_and_one_with_its_own_steps_needs_none() -> None:
    with pytest.raises(ScheduleError, match="needs total_timesteps, or its own 'steps'"):
        at("linear", 0, horizon=None)
    assert at({"type": "linear", "steps": 10}, 5, horizon=None) == pytest.approx(0.4)
    assert at({"type": "step", "every": 10}, 10, horizon=None) == pytest.approx(0.4)
    assert at({"type": "constant"}, 10, horizon=None) == 0.8
    with pytest.raises(ScheduleError, match="needs total_timesteps"):
        at("linear", 0, horizon=0)


@pytest.mark.parametrize(
    ("schedule", "complaint"),
    [
        ("liner", "'liner' is not a schedule; give a number, 'linear' or 'cosine', or a mapping"),
        ("exponential", "'exponential' is not a schedule"),
        (True, "end=True is not a number"),
        ([0.1, 0.2], "is not a number"),
        (math.inf, "end=inf is not a number"),
        (math.nan, "end=nan is not a number"),
        pytest.param(10**400, "is not a number", id="a number too large to be one"),
        ({"type": "liner"}, "type 'liner' is not known; allowed are constant, linear"),
        ({"type": ["linear"]}, r"type \['linear'\] is not known"),
        ({"type": None}, "type None is not known"),
        ({"type": "linear", "stop": 0.1}, "linear does not take 'stop'; it takes end, fraction, start, steps"),
        ({"type": "linear", "stop": 0.1, 3: 0.1}, "linear does not take"),
        ({"type": "linear", "power": 2}, "linear does not take 'power'"),
        ({"type": "constant", "end": 0.1}, "constant does not take 'end'"),
        ({"type": "linear", "end": "low"}, "end='low' is not a number"),
        ({"type": "linear", "start": "high"}, "start='high' is not a number"),
        ({"type": "linear", "steps": 0}, "steps=0 must be a whole number of at least 1"),
        ({"type": "linear", "steps": 2.5}, "steps=2.5 must be a whole number"),
        ({"type": "linear", "fraction": 0}, "fraction=0 must be above 0 and at most 1"),
        ({"type": "cosine", "fraction": 1.5}, "fraction=1.5 must be above 0 and at most 1"),
        ({"type": "linear", "fraction": "half"}, "fraction='half' is not a number"),
        ({"type": "linear", "fraction": 0.5, "steps": 9}, "'steps' and 'fraction' both say how long it lasts"),
        ({"type": "step", "every": 5, "fraction": 0.5}, "step does not take 'fraction'"),
        ({"type": "exponential"}, "exponential needs start and end above 0, not 0.8 and 0"),
        ({"type": "exponential", "start": -1, "end": 1}, "exponential needs start and end above 0"),
        ({"type": "polynomial", "power": 0}, "power=0 must be above 0"),
        ({"type": "step"}, "step needs 'every'"),
        ({"type": "step", "every": 0}, "every=0 must be a whole number"),
        ({"type": "step", "every": 5, "factor": 0}, "factor=0 must be above 0"),
        ({"type": "step", "every": 5, "factor": 2}, "factor=2 grows without limit; give it an 'end'"),
        ({"type": "step", "every": 5, "factor": 2, "start": 0, "end": 1}, "needs a start above 0"),
        ({"type": "step", "every": 5, "factor": 2, "end": 0.1}, "an end that is not below it"),
        (
            {"type": "step", "every": 5, "factor": 0.5, "end": 0.9},
            "start=0.8 must be at least 0, and at least end=0.9",
        ),
        ({"type": "step", "every": 5, "start": -1, "end": -1}, "start=-1 must be at least 0"),
        ({"type": "piecewise"}, "piecewise needs 'points'"),
        ({"type": "piecewise", "points": []}, "piecewise needs 'points'"),
        ({"type": "piecewise", "points": [[0, 1, 2]]}, r"point \[0, 1, 2\] must be \[step, value\]"),
        ({"type": "piecewise", "points": [0, 1]}, r"point 0 must be \[step, value\]"),
        ({"type": "piecewise", "points": [[0, "a"]]}, "value='a' is not a number"),
        ({"type": "piecewise", "points": [[5, 1], [5, 2]]}, "must increase"),
        ({"type": "piecewise", "points": [[5, 1], [1, 2]]}, "must increase"),
    ],
)
def test_the_parser_says_what_is_wrong(schedule: Any, complaint: str) -> None:
    with pytest.raises(ScheduleError, match=complaint):
        parse_schedule(schedule, 0.8)


def test_a_fraction_is_a_share_of_the_run() -> None:
    curve = {"type": "linear", "start": 1.0, "end": 0.0, "fraction": 0.1}
    assert [at(curve, step, horizon=1000) for step in (0, 25, 50, 100, 101)] == pytest.approx([1, 0.75, 0.5, 0, 0])
    assert at(curve, 100, horizon=2000) == pytest.approx(0.5)
    with pytest.raises(ScheduleError, match="needs total_timesteps"):
        at(curve, 0, horizon=None)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"type": "constant"}, "0.8"),
        ("linear", "linear from 0.8 to 0 over the run"),
        ({"type": "cosine", "end": 0.1, "fraction": 0.25}, "cosine from 0.8 to 0.1 over the first 25% of the run"),
        ({"type": "linear", "start": 1, "steps": 500}, "linear from 1 to 0 over 500 steps"),
        ({"type": "step", "every": 10, "end": 0.1}, "from 0.8, times 0.5 every 10 steps, until 0.1"),
        ({"type": "piecewise", "points": [[0, 1], [5, 0.5]]}, "through 1 at step 0, 0.5 at step 5"),
    ],
)
def test_a_curve_in_words(schedule: Any, words: str) -> None:
    assert str(parse_schedule(schedule, 0.8)) == words


def test_a_schedule_needs_somewhere_to_start() -> None:
    with pytest.raises(ScheduleError, match="has no value to start from"):
        parse_schedule("linear", None)
    assert parse_schedule({"type": "linear", "start": 0.5}, None).at(0, 10) == 0.5


@pytest.mark.parametrize("warmup", [-1, 1.5, "soon", True])
def test_a_warm_up_is_a_whole_number_of_steps(warmup: Any) -> None:
    with pytest.raises(ScheduleError, match="warmup_steps"):
        parse_control(0.5, None, warmup)


def test_a_warm_up_multiplies_a_fixed_value_and_needs_no_schedule() -> None:
    control = parse_control(0.2, None, 4)
    assert [control.at(step, None) for step in range(6)] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2, 0.2])
    assert control.at(3, None) == 0.2


def test_a_warm_up_multiplies_a_schedule_without_shifting_it() -> None:
    warm, cold = parse_control(1.0, "linear", 10), parse_control(1.0, "linear", None)
    for step in range(0, 101, 5):
        assert warm.at(step, 100) == pytest.approx(cold.at(step, 100) * min((step + 1) / 10, 1.0))


@pytest.mark.parametrize("warmup", [None, 0, 1])
def test_no_warm_up_is_no_warm_up(warmup: int | None) -> None:
    assert parse_control(0.5, None, warmup).at(0, None) == 0.5


def test_a_set_gives_every_value_over_the_horizon_it_first_had() -> None:
    controls = {"ent_coef": parse_control(0.4, "linear", None), "gamma": parse_control(0.9, 0.99, None)}
    schedules = ScheduleSet(controls, horizon=100)
    assert schedules.values(50) == pytest.approx({"ent_coef": 0.2, "gamma": 0.945})
    assert schedules.values(100) == {"ent_coef": 0.0, "gamma": 0.99}
    assert schedules.values(250) == {"ent_coef": 0.0, "gamma": 0.99}


positive = st.floats(1e-6, 1e6)
anything = st.floats(-1e6, 1e6)
whole = st.integers(1, 1000)
points = st.lists(st.tuples(st.integers(0, 1000), anything), min_size=1, max_size=6, unique_by=lambda point: point[0])
curves = st.one_of(
    st.fixed_dictionaries({"type": st.just("constant"), "start": anything}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["linear", "cosine"]), "start": anything, "end": anything}, optional={"steps": whole}
    ),
    st.fixed_dictionaries(
        {"type": st.just("exponential"), "start": positive, "end": positive}, optional={"steps": whole}
    ),
    st.fixed_dictionaries(
        {"type": st.just("polynomial"), "start": anything, "end": anything, "power": st.floats(0.1, 10)},
        optional={"steps": whole},
    ),
    st.fixed_dictionaries(
        {"type": st.just("step"), "start": anything, "end": anything, "every": whole, "factor": st.floats(0.01, 10)}
    ),
    points.map(lambda chosen: {"type": "piecewise", "points": [list(point) for point in sorted(chosen)]}),
)


def parsed_or_skipped(curve: dict[str, Any], warmup: int) -> Control:
    try:
        return parse_control(None, curve, warmup)
    except ScheduleError:
        assume(False)
        raise


@example({"type": "linear", "start": 1.0, "end": 0.1, "steps": 1}, 4, 100, [1])
@example({"type": "piecewise", "points": [[0, 1.0], [1, 0.001]]}, 100, 100, [1])
@given(curves, st.integers(0, 50), st.integers(1, 500), st.lists(st.integers(0, 2000), min_size=1, max_size=20))
def test_the_extremes_bound_every_value_of_the_curve(
    curve: dict[str, Any], warmup: int, horizon: int, steps: list[int]
) -> None:
    control = parsed_or_skipped(curve, warmup)
    low, high = control.extremes()
    slack = 1e-9 * max(abs(low), abs(high), 1e-300)
    for step in [0, 1, warmup, horizon - 1, horizon, *steps]:
        assert low - slack <= control.at(step, horizon) <= high + slack


@given(curves, st.integers(1, 500))
def test_the_extremes_of_a_curve_are_reached_and_not_merely_a_safe_guess(curve: dict[str, Any], horizon: int) -> None:
    assume(curve["type"] != "step")  # its end may lie below what any number of drops reaches
    control = parsed_or_skipped(curve, 0)
    low, high = control.extremes()
    knots = [0, 1_000_000, *(point[0] for point in curve.get("points", []))]
    reached = [control.at(step, horizon) for step in knots]
    assert min(reached) == pytest.approx(low, rel=1e-9, abs=1e-9)
    assert max(reached) == pytest.approx(high, rel=1e-9, abs=1e-9)


@given(positive, st.integers(1, 50))
def test_the_extremes_of_a_warmed_up_number_are_its_first_and_last_value(value: float, warmup: int) -> None:
    control = parse_control(value, None, warmup)
    assert control.extremes() == pytest.approx((value / warmup, value))
