"""The sections of experiments: questions that were answered by measuring, or by a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tunefa.experiments import comparison
from tunefa.experiments import experiment as experiments
from tunefa.experiments.compare import NAME as COMPARE
from tunefa.experiments.document import Document
from tunefa.report.content import EXPERIMENTS, Content
from tunefa.report.part import UNREADABLE, Block, Part, Plot, Section, plural, why_unreadable


def peers(content: Content) -> Section:
    """Returns the comparisons with other libraries."""
    parts, remarks = _parts([each for each in content.experiments if each.experiment == COMPARE])
    return Section(
        name="peers",
        title="Comparison with peers",
        about="tunefa's config beside other libraries that compute the same, in turn on the same "
        "tensors.",
        parts=parts,
        empty="The folder of experiments has no comparison that can be shown."
        if content.experiments or content.remarks.get(EXPERIMENTS)
        else NO_FOLDER,
        remarks=remarks,
    )


NO_FOLDER = "No results of experiments were given: --experiments names a folder of them."


def section(content: Content) -> Section:
    """Returns the other experiments, each with its question, plot and tables."""
    parts, remarks = _parts([each for each in content.experiments if each.experiment != COMPARE])
    left_out = content.remarks.get(EXPERIMENTS, ())
    return Section(
        name="experiments",
        title="Experiments",
        about="Questions about attention, answered by measuring, or for a chip that was not there "
        "by a model. Each says which.",
        parts=parts,
        empty="The folder of experiments has none that can be shown."
        if content.experiments or left_out
        else NO_FOLDER,
        remarks=[*left_out, *remarks],
    )


def _parts(documents: Sequence[Document]) -> tuple[list[Part], list[str]]:
    """Returns the parts of the documents, and a sentence for each that cannot be shown."""
    parts, remarks = [], []
    for document in documents:
        try:
            blocks = _compared(document) if document.experiment == COMPARE else _blocks(document)
            parts.append(Part(title_of(document), blocks))
        except UNREADABLE as error:
            name = f"The results of {document.experiment} ({document.origin})"
            remarks.append(f"{name} cannot be shown: {why_unreadable(error)}.")
    return parts, remarks


def title_of(document: Document) -> str:
    """The title of a document: its experiment and its chip."""
    return f"{document.experiment}, {document.device} ({document.arch}), {document.source}"


def _blocks(document: Document) -> list[Block]:
    """Returns the blocks of a document: how it came about, its plot, its tables and its errors."""
    experiment = experiments.load(document.experiment)
    plot = Plot(
        experiment.plot(document),
        f"{experiment.question} {document.origin}",
        "The tables below have the figures.",
        (9.0, 4.8),
    )
    errors = [f"{row.get('workload')}: {row['error']}" for row in document.rows if "error" in row]
    made = ", ".join(f"{name} {version}" for name, version in document.made_with.items())
    origin = f"Origin: {document.origin}." + (f" Made with {made}." if made else "")
    return [experiment.question, origin, plot, *experiment.tables(document), *errors]


def _compared(document: Document) -> list[Block]:
    """Returns the blocks of a comparison with peers: its plot, its tables, and the whole."""
    tables = comparison.tables(document)
    if not tables:
        return ["This comparison has no workloads."]
    plot = Plot(
        partial(comparison.draw, document),
        f"Speeds of tunefa and its peers in TFLOP/s for {plural(len(tables), 'workload')}; "
        f"{document.origin}",
        "The tables below have the figures.",
        (9.0, 1.6 + 0.3 * len(tables)),
    )
    return [f"Origin: {document.origin}.", plot, *tables, *comparison.summary(document)]
