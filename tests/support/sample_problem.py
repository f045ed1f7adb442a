"""A search problem with a planted optimum, small enough to exhaust."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tunefa.search import strategies
from tunefa.search.strategy import SearchProblem, Strategy
from tunefa.spec.space import Parameter
from tunefa.spec.trial import Config, Trial

PARAMETERS = (
    Parameter("BLOCK_M", (16, 32, 64, 128, 256), ""),
    Parameter("BLOCK_N", (16, 32, 64, 128, 256), ""),
    Parameter("num_stages", (1, 2, 3, 4, 5), ""),
    Parameter("COPIES", ("pointer", "tma"), ""),
    Parameter("ORDER", (0, 1, 2, 3), ""),
    Parameter("ONE", (7,), ""),
)
BEST = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 3, "COPIES": "tma", "ORDER": 3, "ONE": 7}


def feasible() -> list[Config]:
    names = [parameter.name for parameter in PARAMETERS]
    everything = itertools.product(*(parameter.values for parameter in PARAMETERS))
    configs = [dict(zip(names, values, strict=True)) for values in everything]
    return [c for c in configs if c["BLOCK_M"] * c["BLOCK_N"] <= 2**14
            and c["BLOCK_M"] * c["num_stages"] <= 512]  # fmt: skip


def landscape_us(config: Config) -> float:
    """Smooth, with an interaction of two parameters and its minimum at BEST."""
    place = {p.name: p.values.index(config[p.name]) for p in PARAMETERS}
    off = {p.name: abs(place[p.name] - p.values.index(BEST[p.name])) for p in PARAMETERS}
    slower = 0.15 * off["BLOCK_M"] ** 2 + 0.1 * off["BLOCK_N"] ** 2 + 0.05 * off["num_stages"]
    slower += 0.2 * off["COPIES"] + 0.07 * off["ORDER"]
    return 100 * (1 + slower + 0.05 * abs(place["BLOCK_M"] - place["BLOCK_N"] - 1))


FEASIBLE = feasible()
SMALL = FEASIBLE[::49]
"""Few configs that have all values of all parameters: a model is asked after ten of them."""


def problem(
    configs: Sequence[Config] = SMALL,
    first: Sequence[Config] = (),
    trials: int | None = None,
    seed: int = 0,
    memories: tuple[str, ...] = (),
) -> SearchProblem:
    expected = [landscape_us(config) * (1 + 0.3 * math.sin(i)) for i, config in enumerate(configs)]
    made = SearchProblem(PARAMETERS, list(configs), expected, list(first), trials, seed)
    return replace(made, memories=memories)


def good(config: Config) -> Trial:
    return Trial(config, "ok", predicted_us=landscape_us(config))


def proposals(
    name: str,
    count: int,
    judge: Callable[[Config], Trial],
    configs: Sequence[Config] = FEASIBLE,
    **of: Any,
) -> list[Config]:
    """The first proposals of a strategy, each told at once."""
    strategy = strategies.create(name, problem(configs, **of))
    proposed = []
    for _ in range(count):
        config = strategy.ask()
        assert config is not None
        proposed.append(config)
        strategy.tell(judge(config))
    return proposed


def asked(strategy: Strategy, judge: Callable[[Config], Trial | None] = good) -> list[Config]:
    """Everything it proposes until it has nothing left, each told at once."""
    proposed: list[Config] = []
    while (config := strategy.ask()) is not None:
        proposed.append(dict(config))
        assert len(proposed) <= len(FEASIBLE), "it does not come to an end"
        if (trial := judge(config)) is not None:
            strategy.tell(trial)
    return proposed
