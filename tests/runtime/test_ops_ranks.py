"""tunefa/runtime/ops.py on two ranks, on the CPU: DDP, FSDP2, torch.compile and DTensor."""

from __future__ import annotations

import pytest

from tests.support import training_ranks


@pytest.mark.slow
def test_ranks_compute_what_one_process_does() -> None:
    """All checks run in one pair of processes, which take seconds to start."""
    training_ranks.run(training_ranks.CHECKS, "cpu")
