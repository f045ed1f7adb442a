"""The report of an experiment: its tables, and where the figures come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from tunefa.cli.reports import text

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.experiments.document import Document
    from tunefa.experiments.table import Table


def show(document: Document, out: Console) -> None:
    """Prints the tables of an experiment."""
    from tunefa.experiments import experiment as experiments

    experiment = experiments.load(document.experiment)
    out.print(text.heading(f"{experiment.name}: {experiment.question}"))
    out.print(document.origin)
    for table in experiment.tables(document):
        out.print()
        print_table(table, out)


def show_comparison(document: Document, out: Console) -> None:
    """Prints the tables of a comparison with peers, who is absent, and how the workloads went."""
    from tunefa.experiments import comparison

    out.print(text.heading("compare: tunefa and its peers, on the same tensors"))
    out.print(document.origin)
    for table in comparison.tables(document):
        out.print()
        print_table(table, out)
    out.print()
    for line in comparison.summary(document):
        out.print(line)


def print_table(table: Table, out: Console) -> None:
    """Prints one table with its title and its remarks."""
    out.print(text.heading(table.title))
    right = tuple(column for column in table.head if column not in table.words)
    made = text.table(*table.head, right=right)
    for row in table.rows:
        made.add_row(*row)
    out.print(made)
    for remark in table.remarks:
        out.print(remark)
