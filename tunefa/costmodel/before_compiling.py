"""The expected and the least time of a config once a compiler has said what it needs.

Before compiling, its registers are estimated. The compiler may need fewer, so that more CTAs fit on
an SM, or spill fewer; then the same model predicts less time. A search without a device compiles
only configs for which that could change its decision.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from tunefa.costmodel import latency
from tunefa.costmodel.estimate import Estimate, estimates
from tunefa.costmodel.features import model_keys
from tunefa.costmodel.ranking import rank_us
from tunefa.spec.space import Space
from tunefa.spec.target import Case
from tunefa.spec.tiling import ORDER
from tunefa.spec.trial import Config, Resources, Trial

_FASTER = 2.0
"""No config is expected to become so many times faster by what its compiler says. On the eight
landscapes of the Triton kernel on an H200 it was 1.7 times at most."""


def order_parameters(space: Space) -> tuple[str, ...]:
    """Returns the parameters that only decide in which order tiles run, such as L2_SECTION_MB: the
    host side of a kernel reads them, so they change no binary."""
    others = {k: v for k, v in space.tiling_exprs.items() if k not in ORDER}
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
    keys = model_keys(case, configs, [None] * len(configs))
    known = dict[Hashable, _Needs]()
    found: list[tuple[float, float]] = []
    open_places, fewer = list[int](), list[Resources]()
    for place, (config, own, key) in enumerate(zip(configs, expected, keys, strict=True)):
        needs = known.get(key) or known.setdefault(key, _needs(case, config))
        trial = Trial(config, "ok", resources=needs.expected, predicted_us=own.time_us)
        found.append((rank_us(trial), rank_us(trial)))
        if needs.fewest != needs.expected and own.time_us < _FASTER * fastest_us:
            open_places.append(place)
            fewer.append(needs.fewest)
    least = estimates(case, [configs[place] for place in open_places], fewer)
    for place, each in zip(open_places, least, strict=True):
        ranked_us = found[place][0]
        found[place] = ranked_us, min(ranked_us, expected[place].time_us, each.time_us)
    return found


@dataclass(frozen=True)
class _Needs:
    """The resources that a compiler is expected to report for a config, and the fewest it may."""

    expected: Resources
    fewest: Resources


def _needs(case: Case, config: Config) -> _Needs:
    model = latency.of(case)
    expected, registers = model.needs(case, config)
    if registers is None:
        return _Needs(expected, expected)
    fewest = Resources(
        expected.smem_bytes,
        max(registers, (expected.registers or 0) - model.fewer_registers),
        max(0, (expected.spill_bytes or 0) - 4 * model.fewer_registers),
    )
    return _Needs(expected, fewest)
