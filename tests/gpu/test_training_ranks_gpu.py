"""Training on two GPUs of one host: DDP, FSDP2, torch.compile and DTensor, against one process."""

from __future__ import annotations

import pytest
import torch

from tests.support import training_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.device_count() < training_ranks.WORLD, reason="needs two NVIDIA GPUs"
    ),
]


@pytest.mark.parametrize("check", training_ranks.CHECKS)
def test_ranks_compute_what_one_process_does(check: str) -> None:
    training_ranks.run([check], "cuda")
