"""kernels/hopper/first_tiles.py: what a CTA reads before its first copy."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from tests.support.launch_specs import Kept, spec_of
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_cuda_sm90")


def tables(workload: Workload, cluster: int, dependent_launch: int) -> Any:
    """The tables of the default config with these parameters, for 7 SMs."""
    config = KERNEL.default(workload, archs.load("sm90"))
    config |= {"CLUSTER_SIZE": cluster, "DEPENDENT_LAUNCH": dependent_launch}
    return KERNEL.module.first_tiles.tables(spec_of(KERNEL, workload, config, sms=7), "cpu")


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("text", ["b2_h3_kv1_q700_k900", "b2_h6_kv2_q1000_full", "h1_q40"])
def test_a_row_holds_what_the_kernel_would_read_from_both_tables(text: str, cluster: int) -> None:
    workload = Workload.parse(text)
    ends, plain = tables(workload, cluster, 0)
    made, table = tables(workload, cluster, 1)
    assert table.equal(plain) and len(made) == len(ends) and made.is_contiguous()
    for cta, (first, end) in enumerate(itertools.pairwise(ends.tolist())):
        last_of_cluster = first + (cluster - 1 - cta % cluster) * (end - first)
        row = [first, int(table[last_of_cluster, 3]), 0, 0, *table[first].tolist()]
        assert made[cta].tolist() == row
    assert made[:, 0].equal(ends)


def test_both_kinds_of_tables_are_kept_apart() -> None:
    """Launches of one process share tables by their keys."""
    kept = Kept()
    workload = Workload.parse("b2_h3_kv1_q700")
    for dependent_launch in (0, 1, 0, 1):
        config = KERNEL.default(workload, archs.load("sm90"))
        config["DEPENDENT_LAUNCH"] = dependent_launch
        spec = replace(spec_of(KERNEL, workload, config, sms=7), tables=kept)
        found, _ = KERNEL.module.first_tiles.tables(spec, "cpu")
        assert found.dim() == 1 + dependent_launch
    assert len(kept.made) == 2
