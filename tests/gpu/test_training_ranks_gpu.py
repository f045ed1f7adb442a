"""Training on two GPUs of one host: DDP, FSDP2, torch.compile and DTensor, against one process."""

from __future__ import annotations

import pytest
import torch

from tests.support import agreeing_ranks, training_ranks
from tests.support.made_here import made_here

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.device_count() < training_ranks.WORLD, reason="needs two NVIDIA GPUs"
    ),
]


@pytest.mark.parametrize("check", training_ranks.CHECKS)
def test_ranks_compute_what_one_process_does(check: str) -> None:
    training_ranks.run([check], "cuda")


def test_ranks_agree_on_the_records_of_the_first() -> None:
    records = [[made_here("b1_h4_q512_d64_bf16").to_dict()], []]
    one, two = agreeing_ranks.run("cuda", records, ["", ""])
    assert one["error"] == two["error"] == "" and one["before"] != two["before"]
    assert one["shared"] == two["shared"] == one["after"] == two["after"]
    assert one["chosen"] == two["chosen"]
