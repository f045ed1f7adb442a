"""tunefa/sweep/seat.py: the place of a worker."""

from __future__ import annotations

import pickle

from tunefa.sweep.cores import Share
from tunefa.sweep.seat import Seat


def test_it_can_be_sent_to_a_process_and_has_no_gpu_unless_it_says_so() -> None:
    seat = Seat("a.log", "name", "GPU 0", Share(frozenset({1})), {"CUDA_VISIBLE_DEVICES": "0"})
    assert pickle.loads(pickle.dumps(seat)) == seat and not seat.measured
