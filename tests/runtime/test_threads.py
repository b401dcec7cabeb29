"""How many threads a run has: `threads` are torch's, and NumPy's own are held to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from rl_training.runtime.train import build
from rl_training.testing import tiny_config


def numpy_threads() -> list[int]:
    """Of every library of linear algebra that is loaded."""
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with threadpool_limits(user_api="blas"):
        yield


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_has_so_many_threads_of_torch_and_one_of_numpy(threads: int) -> None:
    threadpool_limits(2, user_api="blas")
    assert set(numpy_threads()) == {2}, "there is something to hold back"
    run = build(tiny_config("sac", threads=threads))
    run.close()
    assert set(numpy_threads()) == {1}
    assert torch.get_num_threads() == threads
