"""What all tests share: quiet property tests that leave no files behind, and one thread of torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

# Compiled kernels and a busy machine make single examples slow; a database would leave a folder behind.
settings.register_profile(
    "project", database=None, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
