"""The report of `tunefa export --portfolio`: configs, which workload runs which, and the bound."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from tunefa.cli.export_portfolio import Found
from tunefa.cli.reports import text
from tunefa.store.portfolio import Portfolio, mean_regret


def to_data(found: Found) -> dict[str, Any]:
    """Plain data for `--json`. Regrets are ratios: 0.02 is 2 %."""
    chosen, dispatch = found.portfolio, found.portfolio.dispatch
    place = {key: number for number, key in enumerate(chosen.configs)}
    return {
        "arch": chosen.target.arch.name,
        "device": chosen.target.device.name,
        "regret": chosen.regret,
        "configs": [
            {"kernel": key[0], "config": dict(chosen.config(key))} for key in chosen.configs
        ],
        "bound": chosen.bound,
        "exact": chosen.is_exact,
        "bound_if_unmeasured_were_good": found.least_possible,
        "unmeasured_pairs": found.choices.unmeasured,
        "dispatch": [
            {
                "workload": str(each.workload),
                "config": place[dispatch[each.workload]],
                "time_us": each.times_us[dispatch[each.workload]],
                "best_us": min(each.times_us.values()),
                "regret": by,
                "mode": each.mode,
            }
            for each, by in zip(chosen.workloads, chosen.regrets, strict=True)
        ],
        "curve": [_step(each) for each in found.curve],
    }


def _step(each: Portfolio) -> dict[str, Any]:
    return {
        "configs": len(each.configs),
        "bound": each.bound,
        "worst_regret": max(each.regrets),
        "mean_regret": mean_regret(each),
    }


def show(found: Found, out: Console) -> None:
    """Prints the portfolio, its dispatch, and the curve of regret over the number of configs."""
    chosen, workloads = found.portfolio, found.choices.workloads
    modes = text.listed(sorted({each.mode for each in workloads}))
    out.print(text.heading(f"{chosen.target}, measured in {modes} mode"))
    few, many = text.plural(len(chosen.configs), "config"), text.plural(len(workloads), "workload")
    out.print(
        f"{few} for {many}, each at most {_percent(chosen.regret)} slower than the fastest config "
        f"that was measured for it. {_bound(chosen)}",
        soft_wrap=True,
    )
    if found.choices.unmeasured:
        out.print(
            f"{found.choices.unmeasured:,} pairs of a workload and a config that its rules allow "
            "were not measured, and count as not served. If all of them were good, the bound would "
            f"be {found.least_possible}.",
            soft_wrap=True,
        )
    out.print()
    _configs(chosen, out)
    out.print()
    _dispatch(chosen, out)
    out.print(
        "us, fastest: times of the screening, and of races by the same scale; the records have the "
        "medians of their own trials. A workload between them takes the config of the nearest one, "
        "see docs/search.md.",
        style="dim",
        soft_wrap=True,
    )
    out.print()
    _curve(found, out)
    if found.refused:
        out.print(
            f"This tunefa will not run {found.refused} of {len(workloads)} records, as their "
            "kernel's source has changed since: measure again.",
            soft_wrap=True,
        )
    out.print()


def _bound(chosen: Portfolio) -> str:
    if chosen.is_exact:
        return f"Fewer configs cannot do it: the lower bound is {chosen.bound}."
    return f"The lower bound is {chosen.bound}: the solver's time was over before they met."


def _configs(chosen: Portfolio, out: Console) -> None:
    served = list(chosen.dispatch.values())
    table = text.table("#", "workloads", "config", right=("#", "workloads"))
    for number, key in enumerate(chosen.configs, start=1):
        said = f"{key[0]} {text.config_text(chosen.config(key))}"
        table.add_row(f"{number}", f"{served.count(key)}", said)
    out.print(table)


def _dispatch(chosen: Portfolio, out: Console) -> None:
    figures = ("#", "us", "fastest", "regret")
    table = text.table("workload", *figures, right=figures)
    dispatch = chosen.dispatch
    for each, by in zip(chosen.workloads, chosen.regrets, strict=True):
        key = dispatch[each.workload]
        table.add_row(
            str(each.workload),
            f"{chosen.configs.index(key) + 1}",
            text.number(each.times_us[key], 1),
            text.number(min(each.times_us.values()), 1),
            _percent(by),
        )
    out.print(table)


def _curve(found: Found, out: Console) -> None:
    figures = ("configs", "largest regret", "mean regret")
    table = text.table(*figures, right=figures)
    for each in found.curve:
        count = f"{len(each.configs)}" if each.is_exact else f"{len(each.configs)} or fewer"
        table.add_row(count, _percent(max(each.regrets)), _percent(mean_regret(each)))
    out.print(table)


def plot(found: Found, canvas: Any) -> None:
    """Plots the curve into an empty matplotlib figure."""
    axes = canvas.add_subplot()
    counts = [len(each.configs) for each in found.curve]
    largest = [100 * max(each.regrets) for each in found.curve]
    mean = [100 * mean_regret(each) for each in found.curve]
    axes.step(counts, largest, where="post", label="largest of the workloads")
    axes.step(counts, mean, where="post", label="mean of the workloads")
    limit = 100 * found.portfolio.regret
    axes.axhline(limit, linestyle="--", linewidth=1.0, color="#8a8f98", label=f"limit {limit:g} %")
    axes.set_xlabel("configs in the portfolio")
    axes.set_ylabel("slower than the fastest config, %")
    axes.set_title(f"{len(found.choices.workloads)} workloads on {found.portfolio.target}")
    axes.set_ylim(bottom=0)
    axes.legend()


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.3g}%"
