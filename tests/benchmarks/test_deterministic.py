"""benchmarks/deterministic.py: its grid, its options, its contestants and what it prints."""

from __future__ import annotations

import pytest
import torch

from benchmarks import deterministic
from tunefa.measure.contest import Contest
from tunefa.measure.peer import Unserved
from tunefa.measure.score import Score
from tunefa.spec.workload import Workload


def test_the_grid_has_equally_many_tokens_and_columns() -> None:
    grid = list(deterministic.workloads())
    assert len(set(grid)) == 12 and all(each.deterministic for each in grid)
    for each in grid:
        tokens, columns = each.batch * each.seqlen_q, each.heads * each.head_dim
        assert (tokens, columns) == (deterministic.TOKENS, deterministic.COLUMNS)


def test_configs_are_changes_of_the_fused_kernel() -> None:
    given = deterministic.options().parse_args(["--config", "BLOCK_M=80,L2_SECTION_HEADS=32"])
    assert given.config[0].changes == {"BLOCK_M": 80, "L2_SECTION_HEADS": 32}
    names = list(deterministic.contestants(given.config))
    assert names[0] == deterministic.UNORDERED and names[-1] == "flash-attn-4"
    assert "fused, deterministic BLOCK_M=80,L2_SECTION_HEADS=32" in names
    with pytest.raises(SystemExit):
        deterministic.options().parse_args(["--config", "LEAF_KEYS=64"])


def test_a_config_that_a_rule_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    make = deterministic.launched(deterministic.FUSED, {"STAGGER": 1})
    with pytest.raises(Unserved, match="STAGGER needs"):
        make(Workload.parse("bwd_h16_q4096_d128_full_deterministic"), ())


def test_shares_are_of_the_first_contestant() -> None:
    workload = Workload.parse("bwd_h16_q4096_d128_full_deterministic")
    times = {deterministic.UNORDERED: 90.0, deterministic.SEQUENCE: 100.0}
    scores = {name: Score((us,) * 3, 1e-3, 1e-3, True) for name, us in times.items()}
    made = Contest(workload, "graph", scores, {"flash-attn-4": "it is not installed"})
    head, *rows = deterministic.lines(made)
    assert head == str(workload)
    assert "90.0 us" in rows[0] and " 1.000 " in rows[0] and " 0.900 " in rows[1]
    assert "left out: it is not installed" in rows[2]
