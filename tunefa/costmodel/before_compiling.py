"""How fast a config may turn out to be once a compiler has said what it needs.

Before compiling, its registers are estimated. The compiler may need fewer, so that more CTAs fit on
an SM, or spill fewer; then the same model predicts less time. A search without a device compiles
only configs for which that could change its decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefa.costmodel import estimate
from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel.estimate import Estimate
from tunefa.costmodel.ranking import rank_us
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.space import Space
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources, Trial

FEWER_REGISTERS = 26
"""How many registers per thread fewer than expected a compiler may use: two standard deviations of
`gpu.expected_resources` (docs/model.md). On the eight landscapes of the Triton kernel on an H200,
4 % of the configs that are expected to take less than twice the least time take less than the
least time that follows from it, and 19 % take less than expected."""
_FASTER = 2.0
"""No config is expected to become so many times faster by what its compiler says. On those
landscapes it was 1.7 times at most."""


def order_parameters(space: Space) -> tuple[str, ...]:
    """Returns the parameters that only decide in which order tiles run, such as L2_SECTION_MB: the
    host side of a kernel reads them, so they change no binary."""
    others = {k: v for k, v in space.tiling_exprs.items() if k != "l2_section_heads"}
    seen = replace(space, tiling_exprs=others).seen_by_cost_model
    return tuple(name for name in space.seen_by_cost_model if name not in seen)


def expected_and_least_us(
    case: Case, configs: Sequence[Config], expected: Sequence[Estimate]
) -> list[tuple[float, float]]:
    """Returns the time by which each config will be ranked when it is compiled, in us: the expected
    one, and the least that it may be. `expected` are its estimates before.

    A config that spills ranks as if it were slower (see `ranking.rank_us`). The least time of a
    config that is too slow in any case is the expected one.
    """
    fastest_us = min((each.time_us for each in expected), default=0.0)
    names, known = estimate.seen(case), dict[tuple[object, ...], tuple[float, float]]()
    found = []
    for config, own in zip(configs, expected, strict=True):
        key = tuple(config[name] for name in names)
        if key not in known:
            may_win = own.time_us < _FASTER * fastest_us
            known[key] = _both_us(case, config, own.time_us, may_win)
        found.append(known[key])
    return found


def _both_us(case: Case, config: Config, time_us: float, may_win: bool) -> tuple[float, float]:
    tiling, lower = case.tiling_and_estimate(config)
    if tiling.warp_specialised:  # the kernel sets its registers itself
        return time_us, time_us
    smem_bytes, registers = int(lower.get("smem_bytes", 0)), int(lower.get("registers", 0))
    expected = gpu_model.expected_resources(gpu(case.arch), tiling, smem_bytes, registers)
    expected_us = rank_us(Trial(config, "ok", resources=expected, predicted_us=time_us))
    if not may_win:
        return expected_us, expected_us
    fewer = Resources(
        smem_bytes,
        max(registers, (expected.registers or 0) - FEWER_REGISTERS),
        max(0, (expected.spill_bytes or 0) - 4 * FEWER_REGISTERS),
    )
    least_us = estimate.estimate(case, config, fewer).time_us
    return expected_us, min(expected_us, time_us, least_us)
