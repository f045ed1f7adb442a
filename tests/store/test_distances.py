"""tunefa/store/distances.py: each axis has its weight. Devices are in test_lookup.py, ops in
test_lookup_ops.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefa.spec.workload import Workload
from tunefa.store.distances import distance


def test_distance_weighs_each_axis() -> None:
    base = Workload.parse("fwd_b1_h32_kv8_q1024_k1024")
    for other, octaves in [
        ("fwd_b4_h32_kv8_q1024_k1024", 1.0),
        ("fwd_b1_h64_kv16_q1024_k1024", 0.5),
        ("fwd_b1_h32_kv8_q4096_k1024", 2.0),
        ("fwd_b1_h32_kv8_q1024_k512", 1.0),
        ("fwd_b1_h32_kv32_q1024_k1024", 1.0),
        ("fwd_b1_h32_kv8_q8192_k16384", 5.0),
    ]:
        assert distance(base, Workload.parse(other)) == pytest.approx(octaves)
        assert distance(Workload.parse(other), base) == pytest.approx(octaves)
    narrow, wide = Workload.parse("fwd_q8192_w512"), Workload.parse("fwd_q8192_w2048")
    assert distance(narrow, wide) == distance(wide, narrow) == 2.0
    assert distance(narrow, Workload.parse("fwd_q8192")) == 0.0  # of another family


def test_no_batch_makes_up_for_other_heads_where_a_config_is_for_any_batch() -> None:
    asked = Workload.parse("decode_b16_h32_kv8_k8192")
    own, more = (Workload.parse(f"decode_b1_h{heads}_kv8_k2048") for heads in (32, 64))
    assert distance(own, asked) < distance(more, asked)
    free = [replace(each, batchvariant=True) for each in (own, more, asked)]
    assert distance(free[0], free[2]) > distance(free[1], free[2])


def test_octaves_count_whole_where_configs_follow_the_batch() -> None:
    near, far = (Workload.parse(f"decode_b1_k{keys}") for keys in (1024, 16384))
    assert distance(near, far) == 1.0
    free = [Workload.parse(f"{each}_batchvariant") for each in (near, far)]
    assert distance(*free) == distance(near, free[1]) == 4.0
