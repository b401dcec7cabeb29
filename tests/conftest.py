"""What all tests share: property tests that leave no files, one thread of torch and of BLAS, and quick processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

# Compiled kernels and a busy machine make single examples slow; a database would leave a folder behind.
settings.register_profile(
    "project", database=None, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")


threadpool_limits(1, user_api="blas")  # tests that step a loop themselves would be slow with more


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the user's runs name of code is noted here, not in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def processes() -> Any:
    """Processes that start quickly, from a server that has imported everything and trained nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["run_helpers", "rl_training.api"])
    # The server lives as long as this process: start it where importing counts for no test.
    warm_up = context.Process(target=time.sleep, args=(0.0,))
    warm_up.start()
    warm_up.join()
    return context
