"""The bytes that a fused kernel saves between the GPU and its memory.

Bytes are read from hardware counters (Nsight Compute) where this machine gives access to them, and
else from the IO model; each row says which.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefa.errors import TunefaError
from tunefa.experiments import figure, io_model, modelled, profiled, rivals
from tunefa.experiments.document import Document, Row
from tunefa.experiments.experiment import Experiment
from tunefa.experiments.io_model import Traffic
from tunefa.experiments.table import Table, number, percent
from tunefa.experiments.titles import title
from tunefa.measure import counters
from tunefa.measure.counters import Report
from tunefa.spec import kernel as kernels
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import DTYPES, Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings

CONTESTANTS = {"operators": "PyTorch operators", "tunefa": "tunefa"}
CLAIMED = 0.95
"""The share of HBM traffic that a write-up states to be saved."""
NCU, MODEL = "ncu", "model"
"""The sources of a row's bytes."""
_READ, _WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
_L2, _HITS = "lts__t_bytes.sum", "lts__t_sector_hit_rate.pct"
_TIME = "gpu__time_duration.sum"
METRICS = (_READ, _WRITTEN, _L2, _HITS, _TIME)


def measured(workload: Workload, settings: Settings) -> list[Row]:
    """Counts the bytes of both contestants; those whose counters cannot be read are modelled."""
    from tunefa.experiments import here

    rows = modelled_rows(workload, here.target())
    for row in rows:
        try:
            command = profiled.command(workload, row["contestant"], settings.seed)
            row.update(counted(counters.read(command, METRICS)))
        except TunefaError as error:
            row["why_model"] = str(error)
    return rows


def counted(report: Report) -> Row:
    """Returns the part of a row that counters say. Raises TunefaError where the chip lacks those of
    HBM."""
    read, written = report.total(_READ), report.total(_WRITTEN)
    if read is None or written is None:
        raise TunefaError(f"the chip has no counter {_READ} or {_WRITTEN}")
    hits, time_ns = report.mean(_HITS, _L2), report.total(_TIME)
    return {
        "source": NCU,
        "read_bytes": read,
        "written_bytes": written,
        "l2_bytes": report.total(_L2),
        "l2_hit_rate": None if hits is None else hits / 100,
        "time_us": None if time_ns is None else time_ns / 1e3,
        "kernels": len(report.launches),
    }


def modelled_rows(workload: Workload, target: Target) -> list[Row]:
    """Computes the bytes of both contestants by the IO model."""
    arch = gpu(target.arch)
    choice = modelled.ours(workload, target).choice
    tiling = Case(kernels.load(choice.kernel), workload, target).tiling(choice.config)
    terms = io_model.theory(workload, arch)
    fused = io_model.fused(workload, target.device, tiling)
    standard = io_model.standard(workload, target.device)
    tile = {"block_m": tiling.block_m, "block_n": tiling.block_n}
    common: Row = {"workload": str(workload), "fast_elements": terms.fast_elements}
    return [
        {**common, **_row("operators", standard), "theory_bytes": terms.standard_bytes,
         "kernels": len(modelled.operators(workload))},
        {**common, **_row("tunefa", fused), "theory_bytes": terms.fused_bytes,
         "kernels": 1, "kernel": choice.kernel, **tile},
    ]  # fmt: skip


def _row(contestant: str, found: Traffic) -> Row:
    return {
        "contestant": contestant,
        "source": MODEL,
        "read_bytes": found.read_bytes,
        "written_bytes": found.written_bytes,
        "l2_bytes": found.l2_bytes,
        "model_bytes": found.hbm_bytes,
    }


def tables(document: Document) -> list[Table]:
    """One table for each workload."""
    head = ("", "read\nMB", "written\nMB", "HBM\nMB", "L2\nMB", "L2\nhits", "source",
            "model\nMB", "theory\nMB")  # fmt: skip
    made = []
    for workload, rows in _by_workload(document).items():
        lines = [
            [
                str(row["contestant"]),
                *(_megabytes(row.get(name)) for name in ("read_bytes", "written_bytes")),
                _megabytes(_hbm(row)),
                _megabytes(row.get("l2_bytes")),
                percent(row.get("l2_hit_rate")),
                str(row.get("source", "")),
                _megabytes(row.get("model_bytes")),
                _megabytes(row.get("theory_bytes")),
            ]
            for row in rows
        ]
        said = _remarks(workload, rows)
        made.append(
            Table(title(Workload.parse(workload)), head, lines, said, frozenset({"", "source"}))
        )
    if made:
        last = [*made[-1].remarks, *rivals.failed(document.rows)]
        made[-1] = replace(made[-1], remarks=last)
    return made


def draw(document: Document, canvas: Any) -> None:
    """Draws the bytes read and written as bars, a pair for each workload."""
    axes = canvas.add_subplot()
    found = _by_workload(document)
    labels, places = list[str](), list[float]()
    for group, (workload, rows) in enumerate(found.items()):
        for place, row in enumerate(rows):
            x = 2.6 * group + place
            places.append(x)
            labels.append(CONTESTANTS.get(str(row["contestant"]), ""))
            low = (row.get("read_bytes") or 0.0) / 1e6
            high = (row.get("written_bytes") or 0.0) / 1e6
            axes.bar(x, low, 0.7, color=figure.OURS, label="read" if not x else None)
            axes.bar(x, high, 0.7, low, color=figure.COLOURS[1], label=None if x else "written")
            axes.annotate(
                f"{_megabytes(_hbm(row))} MB\n({row.get('source')})", (x, low + high), (0, 4),
                textcoords="offset points", ha="center", fontsize=9,
            )  # fmt: skip
        saved = _saved(rows)
        shape = title(Workload.parse(workload), "\n")
        words = f"{shape}\n{percent(saved)} saved (claimed: {percent(CLAIMED, 0)})"
        axes.text(2.6 * group + 0.5, -0.13, words, transform=axes.get_xaxis_transform(),
                  ha="center", va="top", fontsize=9)  # fmt: skip
    axes.set_xticks(places, labels)
    axes.set_ylabel("HBM traffic, MB")
    axes.margins(y=0.15)
    axes.legend()


def _by_workload(document: Document) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in document.rows:
        if "error" not in row:
            found.setdefault(row["workload"], []).append(row)
    return found


def _hbm(row: Row) -> float | None:
    read, written = row.get("read_bytes"), row.get("written_bytes")
    return None if read is None or written is None else read + written


def _saved(rows: list[Row]) -> float | None:
    by_name = {row["contestant"]: _hbm(row) for row in rows}
    standard, own = by_name.get("operators"), by_name.get("tunefa")
    return 1 - own / standard if standard and own is not None else None


def _megabytes(size: float | None) -> str:
    if size is None:
        return number(None)
    return number(size / 1e6, 1 if size < 1e9 else 0)


def _remarks(text: str, rows: list[Row]) -> list[str]:
    workload, said = Workload.parse(text), []
    if (saved := _saved(rows)) is not None:
        said.append(
            f"tunefa moves {percent(saved)} less; a write-up claims {percent(CLAIMED, 0)}. The "
            f"share depends on the length: the operators move N² scores, tunefa N rows of Q, K, V "
            f"and the output."
        )
    said.append(
        "Theory: Theorem 2 of FlashAttention (arXiv:2205.14135), N d + N² elements for standard "
        "attention and N² d² / M for a fused kernel, without constant factors; M is the shared "
        f"memory of one SM, {number(rows[0].get('fast_elements'))} elements."
    )
    if any(row.get("source") == NCU for row in rows):
        said += _about_ncu(workload)
    own = next((row for row in rows if row["contestant"] == "tunefa"), {})
    if "block_m" in own:
        said.append(
            f"Each tile of {own['block_m']} queries reads its keys and values through the L2, "
            f"which is the column L2; HBM sees them once as long as the L2 holds those of the "
            f"heads that run at the same time."
        )
    if workload.causal or workload.window_left is not None:
        said.append(
            "The operators move all scores, hidden ones too, and the mask costs them two more "
            "passes; tunefa does not read blocks of keys that the mask hides from a whole tile."
        )
    for row in rows:
        if why := row.get("why_model"):
            said.append(f"{row['contestant']} is modelled: {why}.")
    return said


def _about_ncu(workload: Workload) -> list[str]:
    """Sentences about the bytes that ncu counts."""
    said = [
        "ncu empties the caches before each kernel, so that what one operator has left in the L2 "
        "for the next is read from HBM again. Bytes that are still in the L2 when a kernel ends "
        "are not written yet, and do not count."
    ]
    if workload.band != (None, None):
        pairs = workload.batch * workload.heads * workload.seqlen_q * workload.seqlen_k
        said.append(
            "ncu counts kernels. The operators' masked_fill begins with a copy of the scores, "
            f"which is none: it moves {_megabytes(2 * pairs * DTYPES[workload.dtype])} MB more, "
            "which the model counts."
        )
    return said


EXPERIMENT = Experiment(
    name="traffic",
    question="How many bytes does a fused kernel save between the GPU and its memory?",
    points=("b4_h32_q2048_d64_fp16_causal",),
    measured=measured,
    modelled=modelled_rows,
    tables=tables,
    draw=draw,
)
