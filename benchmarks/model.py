"""The errors of predicted times on workloads and devices that were not learned from.

    python -m benchmarks.model                # writes the tables of docs/model.md
    python -m benchmarks.model LANDSCAPES     # prints those of other landscapes
    python -m benchmarks.model --models tunefa/costmodel/learned    # and what is shipped
    python -m benchmarks.model --models FOLDER --without h100       # never saw an H100

Needs no GPU, but scikit-learn. The landscapes are those in benchmarks/landscapes/. The
workloads of each kernel are held out in eight groups: a model is fitted to all others, and tried on
them. Where landscapes of several devices are there, each device is held out, too. The analytic
model, which learned nothing, is beside it.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import markdown
from tunefa.costmodel import accuracy, learned, learning, lesson, training_rows
from tunefa.costmodel.accuracy import Accuracy, Predictor
from tunefa.costmodel.learned import LearnedModel
from tunefa.costmodel.training_rows import Row
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

LANDSCAPES = Path(__file__).resolve().parent / "landscapes"
LEAST_NOISE = 1e-9
"""Below it a logarithm is that of rounding: the config was not raced."""
PAGE = Path(__file__).resolve().parents[1] / "docs" / "model.md"
COLUMNS = (
    "configs",
    "rank correlation",
    "in the best tenth",
    "pick over best",
    "level",
    "comparison",
)
SIZES = ("kernel", "device", "workloads", "configs", "failed")
ERRORS = ("error of a time", "of a comparison")


@dataclass(frozen=True)
class Compared:
    """The accuracy of both models on one workload and device."""

    kernel: str
    device: str
    workload: Workload
    analytic: Accuracy
    learned: Accuracy


def from_nothing(rows: Sequence[Row]) -> Predictor:
    """Returns the predictions of a model that knows nothing but the rows."""
    return lesson.predictor(learning.fit(rows))


def compared(
    rows: Sequence[Row],
    held_out: Callable[[Row], str],
    fit: Callable[[Sequence[Row]], Predictor] = from_nothing,
) -> list[Compared]:
    """Returns the accuracies for the rows of one kernel, by models that never saw what `held_out`
    returns for a row: in at most `lesson.FOLDS` groups, each is held out once."""
    analytic = accuracy.by_case(rows, lesson.predictor(None))
    held = accuracy.held_out(rows, fit, held_out, lesson.FOLDS)
    kernel = rows[0].case.kernel.name
    return [
        Compared(kernel, device, Workload.parse(workload), analytic[device, workload], found)
        for (device, workload), found in held.items()
    ]


def by_workload(row: Row) -> str:
    """The workload, which is held out on every device."""
    return str(row.case.workload)


def by_device(row: Row) -> str:
    """The device, which is held out with all its workloads."""
    return row.case.device.name


def data_table(rows: Iterable[Row]) -> str:
    """The number of measurements of each kernel on each device."""
    counts: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        counts.setdefault((row.case.kernel.name, row.case.device.name), []).append(row)
    lines: list[tuple[str, ...]] = [(*SIZES, "noise")]
    for (kernel, device), own in sorted(counts.items()):
        workloads = len({by_workload(row) for row in own})
        failed = sum(row.time_us is None for row in own)
        sizes = (kernel, device, f"{workloads}", f"{len(own):,}", f"{failed:,}")
        lines.append((*sizes, _percent(_noise(own))))
    return markdown.table(lines)


def _noise(rows: Iterable[Row]) -> list[float]:
    """The logarithms of screened over raced time of the configs that were raced."""
    found = []
    for row in rows:
        screened_us = row.trial.median_us
        if row.time_us is not None and screened_us is not None:
            found.append(math.log(screened_us / row.time_us))
    return [each for each in found if abs(each) > LEAST_NOISE]


def chips_table(found: Iterable[Compared]) -> str:
    """The GPU archs, and the devices of each on which predictions were compared."""
    by_arch: dict[str, list[Compared]] = {}
    for each in found:
        by_arch.setdefault(Target.named(each.device).arch.name, []).append(each)
    lines: list[tuple[str, ...]] = [("chip family", "compared on", "workloads", *ERRORS)]
    for name in archs.names("nvidia"):
        arch, own = archs.load(name), by_arch.get(name, [])
        counts = Counter(each.device for each in own)
        devices = ", ".join(f"{device} ({count})" for device, count in sorted(counts.items()))
        distinct = len({(each.kernel, each.workload) for each in own})
        figures = _errors(own) if own else ("unknown", "unknown")
        where = devices or "never: published figures only"
        lines.append((f"{name} ({arch.device().name})", where, f"{distinct}", *figures))
    return markdown.table(lines)


def summary_table(found: Sequence[Compared]) -> str:
    """A line for each kernel, device and head dimension: medians, and root mean squares."""
    groups: dict[tuple[str, str, str], list[Compared]] = {}
    for each in found:
        groups.setdefault((each.kernel, each.device, _head_dim(each.workload)), []).append(each)
    lines: list[tuple[str, ...]] = [("kernel, device", "head_dim", "workloads", *COLUMNS)]
    ordered = sorted(groups.items(), key=lambda item: (*item[0][:2], len(item[0][2]), item[0][2]))
    for (kernel, device, head_dim), own in ordered:
        name = f"{kernel}, {device}"
        lines.append((name, head_dim, f"{len(own)}", *_figures(own)))
    for kernel in sorted({each.kernel for each in found}):
        own = [each for each in found if each.kernel == kernel]
        lines.append((f"**{kernel}**", "all", f"{len(own)}", *_figures(own)))
    return markdown.table(lines)


def workload_table(found: Sequence[Compared]) -> str:
    """A line for each workload."""
    lines: list[tuple[str, ...]] = [("kernel, device, workload", *COLUMNS)]
    for each in found:
        name = f"{each.kernel}, {each.device}, {markdown.short(each.workload)}"
        lines.append((name, *_figures([each])))
    return markdown.table(lines)


def _head_dim(workload: Workload) -> str:
    dtype = "" if workload.dtype == "bf16" else f" {workload.dtype}"
    return f"{workload.head_dim}{dtype}"


def _figures(found: Sequence[Compared]) -> tuple[str, ...]:
    """The cells of `COLUMNS`: the analytic model's figure, and the learned one's."""

    def both(figure: Callable[[Sequence[Accuracy]], str]) -> str:
        analytic, product = [each.analytic for each in found], [each.learned for each in found]
        return f"{figure(analytic)} → **{figure(product)}**"

    return (
        f"{sum(each.learned.configs for each in found):,}",
        both(lambda some: f"{median(each.rank_correlation for each in some):.2f}"),
        both(lambda some: f"{median(each.best_tenth for each in some):.2f}"),
        both(lambda some: f"{median(each.pick_over_best for each in some):.2f}"),
        both(lambda some: _percent(each.level for each in some)),
        both(lambda some: _percent(each.comparison_sd for each in some)),
    )


def _errors(found: Sequence[Compared]) -> tuple[str, ...]:
    """The cells of `ERRORS`, by the product of both models."""
    both = [each.learned for each in found]
    return _percent(each.error for each in both), _percent(each.comparison_sd for each in both)


def _percent(logarithms: Iterable[float]) -> str:
    """The root mean square of errors of logarithms, as a part of the time."""
    squares = [each**2 for each in logarithms] or [0.0]
    return f"{math.expm1(math.sqrt(sum(squares) / len(squares))):.1%}".replace("%", " %")


def by_group(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each kernel, those of one arch together."""
    return [*training_rows.TrainingRows(tuple(rows), {}).groups().values()]


def parts(rows: Sequence[Row], workloads: Sequence[Compared]) -> dict[str, str]:
    """Returns the parts of docs/model.md, by the names of their marks.

    `workloads` are the comparisons with each workload held out.
    """
    several = [own for own in by_group(rows) if len({by_device(row) for row in own}) > 1]
    devices = [each for own in several for each in compared(own, by_device)]
    one = "All landscapes are of one device by now, so no model could be tried on another one.\n"
    return {
        "chips": chips_table(workloads),
        "rows": data_table(rows),
        "errors": summary_table(workloads),
        "workloads": workload_table(workloads),
        "devices": summary_table(devices) if devices else one,
    }


def models(rows: Sequence[Row], workloads: Sequence[Compared]) -> list[LearnedModel]:
    """Returns the model of each kernel, learned from all rows; its errors are those of models that
    did not see the workload."""
    found = []
    for own in by_group(rows):
        kernel = own[0].case.kernel.name
        tried = [each for each in workloads if each.kernel == kernel]
        accuracies = [each.learned for each in tried], [each.analytic for each in tried]
        found.append(learning.calibrated(learning.fit(own), *accuracies))
    return found


def main() -> None:
    """Writes the tables of docs/model.md, or prints those of other landscapes; writes models."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("landscapes", nargs="*", type=Path, metavar="LANDSCAPES")
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="write models there, too")
    parser.add_argument("--without", type=Target.named, metavar="DEVICE", help="leave this out")
    options = parser.parse_args()
    files = training_rows.files(options.landscapes or [LANDSCAPES])
    rows = [*training_rows.read(files).rows]
    if options.without is not None:
        rows = [row for row in rows if by_device(row) != options.without.device.name]
    workloads = [each for own in by_group(rows) for each in compared(own, by_workload)]
    if options.models is not None:
        for model in models(rows, workloads):
            model.save(learned.path(model.kernel, model.arch, options.models))
    made = parts(rows, workloads)
    if options.landscapes or options.without:
        print("\n".join(made.values()))
        return
    page = PAGE.read_text(encoding="utf-8")
    for name, text in made.items():
        page = markdown.filled(page, name, text)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
