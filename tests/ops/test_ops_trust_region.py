"""Conjugate gradients against exact solutions, and which length a line search takes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rl_training.ops.trust_region import conjugate_gradient, line_search


def positive_definite(size: int, seed: int = 0) -> np.ndarray:
    root = np.random.default_rng(seed).standard_normal((size, size))
    return root @ root.T + 0.1 * np.eye(size)


def test_a_system_worked_by_hand() -> None:
    """4x + y = 1, x + 3y = 2: x = 1/11, y = 7/11."""
    matrix = np.array([[4.0, 1.0], [1.0, 3.0]])
    solution, residual = conjugate_gradient(lambda v: matrix @ v, np.array([1.0, 2.0]), 2)
    np.testing.assert_allclose(solution, [1 / 11, 7 / 11], rtol=1e-12)
    np.testing.assert_allclose(residual, 0.0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 20])
def test_as_many_steps_as_dimensions_solve_a_known_system(size: int) -> None:
    matrix, goal = positive_definite(size), np.random.default_rng(1).standard_normal(size)
    solution, residual = conjugate_gradient(lambda v: matrix @ v, goal, 2 * size)
    np.testing.assert_allclose(solution, np.linalg.solve(matrix, goal), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(matrix @ solution + residual, goal, rtol=1e-9, atol=1e-9)


def test_fewer_steps_leave_what_they_say_and_more_leave_less() -> None:
    matrix, goal = positive_definite(12), np.ones(12)
    exact = np.linalg.solve(matrix, goal)
    errors = []
    for steps in range(1, 13):
        solution, residual = conjugate_gradient(lambda v: matrix @ v, goal, steps)
        np.testing.assert_allclose(goal - matrix @ solution, residual, rtol=1e-6, atol=1e-8)
        errors.append(float((solution - exact) @ matrix @ (solution - exact)))
    assert all(after < before for before, after in pairwise(errors) if before > 1e-8)


def test_products_are_made_only_as_long_as_they_are_needed() -> None:
    calls = []

    def identity(vector: np.ndarray) -> np.ndarray:
        calls.append(vector.copy())
        return vector

    goal = np.array([3.0, -1.0])
    solution, _ = conjugate_gradient(identity, goal, 10)
    np.testing.assert_array_equal(solution, goal)
    assert len(calls) == 1
    assert not conjugate_gradient(identity, np.zeros(2), 10)[0].any()
    assert len(calls) == 1
    conjugate_gradient(identity, goal, 10, tolerance=100.0)
    assert len(calls) == 1


@pytest.mark.parametrize("curvature", [0.0, -1.0, np.nan])
def test_a_direction_without_positive_curvature_is_not_followed(curvature: float) -> None:
    solution, residual = conjugate_gradient(lambda v: curvature * v, np.array([1.0, 2.0]), 5)
    np.testing.assert_array_equal(solution, [0.0, 0.0])
    np.testing.assert_array_equal(residual, [1.0, 2.0])


def test_the_goal_is_left_as_it_was() -> None:
    goal = np.array([1.0, 2.0])
    conjugate_gradient(lambda v: 2.0 * v, goal, 5)
    np.testing.assert_array_equal(goal, [1.0, 2.0])


@pytest.mark.parametrize(("longest", "taken"), [(2.0, 1.0), (1.0, 1.0), (0.9, 0.5), (0.3, 0.25), (0.125, 0.125)])
def test_the_longest_accepted_length_is_taken(longest: float, taken: float) -> None:
    tried: list[float] = []

    def accepts(fraction: float) -> bool:
        tried.append(fraction)
        return fraction <= longest

    assert line_search(accepts, 0.5, 4) == taken
    assert tried == [0.5**k for k in range(len(tried))]
    assert tried[-1] == taken


def test_nothing_is_taken_where_no_length_is_accepted() -> None:
    tried: list[float] = []
    assert line_search(lambda fraction: bool(tried.append(fraction)), 0.8, 3) == 0.0
    assert tried == pytest.approx([1.0, 0.8, 0.64])
