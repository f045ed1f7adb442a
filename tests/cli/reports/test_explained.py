"""tunefa/cli/reports/explained.py: what explanations have in common."""

from __future__ import annotations

from tests.support.explained_case import CONFIG, KERNEL, asked
from tunefa.cli.reports import explanation
from tunefa.spec.trial import Trial


def test_every_refusing_rule_is_named() -> None:
    config = {**CONFIG, "BLOCK_M": 256, "BLOCK_N": 256, "num_stages": 5, "num_warps": 16}
    case = asked("q8192_d256", "sm80")
    found = explanation.explain(case, config, None)
    assert len(found.refused_by) >= 2
    assert found.refused_by[0] == case.refusal(config)
    assert set(found.refused_by) <= set(KERNEL.space.rules)


def test_a_failed_compilation_is_told() -> None:
    trial = Trial(CONFIG, "timeout", "compiling took over 60 s")
    found = explanation.explain(asked("q8192", "sm90"), CONFIG, trial)
    assert found.failure == "timeout: compiling took over 60 s"
    assert not found.compiled
