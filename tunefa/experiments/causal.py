"""The cost of the causal mask: the time with it beside the time without it, on one shape.

A causal mask hides nearly half of the (query, key) pairs. A kernel that skips the blocks which are
hidden whole does half of the work, so the mask should save half of the time. The blocks on the
diagonal are computed whole and then masked, and the tiles are no longer equally long, which costs a
part of what is saved. An implementation that masks the scores after computing all of them pays for
the mask instead, and saves nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefa.experiments import figure, modelled, rivals
from tunefa.experiments.document import Document, Row
from tunefa.experiments.experiment import Experiment
from tunefa.experiments.table import Table, number, percent
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings

CONTESTANTS = ("tunefa", "sdpa", "operators")
CLAIMED = {"tunefa": 0.075, "sdpa": 0.162}
"""The cost of the mask, relative to the time without it, that a write-up states for its own kernel
and for PyTorch's."""


def measured(workload: Workload, settings: Settings) -> list[Row]:
    """Times all contestants with the mask, then without it."""
    return [
        {**rivals.timed(each, CONTESTANTS[1:], settings), "causal": each.causal}
        for each in _both(workload)
    ]


def modelled_rows(workload: Workload, target: Target) -> list[Row]:
    """Computes the times with the mask and without it."""
    return [
        {
            "workload": str(each),
            "causal": each.causal,
            "tunefa_us": modelled.ours(each, target).time_us,
            "sdpa_us": modelled.flash_attention_2_us(each, target),
            "operators_us": modelled.operators_us(each, target),
        }
        for each in _both(workload)
    ]


def tables(document: Document) -> list[Table]:
    """One table for each shape: both times of each contestant, and the cost of the mask."""
    made = []
    for full, causal in _pairs(document):
        workload = Workload.parse(causal["workload"])
        lines = [
            [
                rivals.TITLES[name],
                number(full.get(f"{name}_us"), 1),
                number(causal.get(f"{name}_us"), 1),
                _signed(_cost(full, causal, name)),
                percent(CLAIMED.get(name)),
            ]
            for name in CONTESTANTS
        ]
        lines.append(["visible pairs", *_pair_cells(workload), ""])
        head = ("", "full\nus", "causal\nus", "cost of\nthe mask", "claimed\ncost")
        made.append(
            Table(str(workload), head, lines, _remarks(document, full, causal), frozenset({""}))
        )
    return made


def draw(document: Document, canvas: Any) -> None:
    """Draws, for each shape and contestant, the time with the mask over the time without it."""
    axes = canvas.add_subplot()
    pairs = _pairs(document)
    width = 0.8 / max(1, len(pairs))
    for place, (full, causal) in enumerate(pairs):
        shares = [1 + (_cost(full, causal, name) or float("nan")) for name in CONTESTANTS]
        where = [i + (place - (len(pairs) - 1) / 2) * width for i in range(len(CONTESTANTS))]
        label = str(Workload.parse(causal["workload"]))
        bars = axes.bar(where, shares, 0.9 * width, color=figure.COLOURS[place % 6], label=label)
        axes.bar_label(bars, [f"{share:.2f}" for share in shares], padding=2)
    axes.grid(axis="x", visible=False)
    for place, name in enumerate(CONTESTANTS):
        if name in CLAIMED:
            label = "claimed by a write-up" if place == 0 else "_"
            axes.hlines(
                1 + CLAIMED[name],
                place - 0.4,
                place + 0.4,
                color=axes.title.get_color(),  # a page has its own colour of text
                linestyle=":",
                label=label,
            )
    share = _share(Workload.parse(pairs[0][1]["workload"])) if pairs else 0.5
    axes.axhline(share, color=figure.THEORY, linestyle="--", label="visible pairs")
    axes.axhline(1.0, color=figure.THEORY, linewidth=0.8)
    axes.set_xticks(range(len(CONTESTANTS)), [rivals.TITLES[name] for name in CONTESTANTS])
    axes.set(ylabel="causal time / full time", ylim=(0, None), title="The cost of a causal mask")
    axes.legend(loc="upper left", ncols=1)
    axes.margins(y=0.35)


def _both(workload: Workload) -> tuple[Workload, Workload]:
    """The same problem without the mask, and with it."""
    plain = replace(workload, causal=False, window_right=None)
    return plain, replace(plain, causal=True)


def _pairs(document: Document) -> list[tuple[Row, Row]]:
    """(full, causal) rows of the same shape."""
    causal = {Workload.parse(row["workload"]): row for row in document.rows if row.get("causal")}
    found = []
    for row in document.rows:
        if row.get("causal") is False:
            masked = replace(Workload.parse(row["workload"]), causal=True)
            if masked in causal:
                found.append((row, causal[masked]))
    return found


def _cost(full: Row, causal: Row, name: str) -> float | None:
    """The time that the mask adds, relative to the time without it; negative if it saves time."""
    before, after = full.get(f"{name}_us"), causal.get(f"{name}_us")
    return after / before - 1 if before and after else None


def _share(workload: Workload) -> float:
    """The share of the (query, key) pairs that a causal workload leaves."""
    return workload.pairs / replace(workload, causal=False).pairs


def _pair_cells(workload: Workload) -> list[str]:
    whole = replace(workload, causal=False).pairs
    return [number(whole), number(workload.pairs), _signed(_share(workload) - 1)]


def _signed(value: float | None) -> str:
    text = percent(value)
    return f"+{text}" if value is not None and value > 0 else text


def _moved(row: Row) -> int:
    """The bytes that attention in PyTorch's operators reads and writes."""
    return sum(each.bytes for each in modelled.operators(Workload.parse(row["workload"])))


def _remarks(document: Document, full: Row, causal: Row) -> list[str]:
    workload = Workload.parse(causal["workload"])
    said = [
        f"A causal mask should save time: it leaves {_share(workload):.1%} of the pairs, and "
        f"blocks of keys that are hidden whole need not be computed. A kernel that computes all "
        f"scores and then hides them pays for the mask instead."
    ]
    if (own := _cost(full, causal, "tunefa")) is not None:
        said.append(
            f"A write-up claims that the mask costs its kernel 7.5 %, and PyTorch 16.2 %: time is "
            f"only lost where no blocks are skipped, or too few of them to outweigh a launch. Here "
            f"the mask changes tunefa's time by {_signed(own)}. It saves less than the hidden "
            f"pairs, as blocks on the diagonal are computed whole, and tiles of unequal length "
            f"leave SMs without work at the end."
        )
    before, after = full.get("operators_us"), causal.get("operators_us")
    if before and after:
        moved = _moved(causal) - _moved(full)
        said.append(
            f"PyTorch's operators compute all pairs. Their mask is masked_fill, which copies the "
            f"scores and rewrites the copy: {moved / 1e9:.1f} GB more to move, in "
            f"{number(after - before)} us more."
        )
    if not document.is_measured:
        said.append("Modelled: SDPA is taken to run FlashAttention-2.")
    return [*said, *rivals.left_out([full, causal]), *rivals.failed(document.rows)]


EXPERIMENT = Experiment(
    name="causal",
    question="What does a causal mask cost, and what should it save?",
    points=("b4_h32_q2048_d64_fp16_causal",),
    measured=measured,
    modelled=modelled_rows,
    tables=tables,
    draw=draw,
)
