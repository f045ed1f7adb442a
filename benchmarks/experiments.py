"""Writes docs/experiments.md from the results in docs/experiments/, and their plots.

make bench OUT=docs/experiments       # runs all experiments; modelled where there is no GPU
tunefa bench compare -w ... --out docs/experiments/compare.json       # on a GPU
python -m benchmarks.experiments      # the page, from what is there
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tunefa.experiments import compare, comparison, figure
from tunefa.experiments import experiment as experiments
from tunefa.experiments.document import Document
from tunefa.store import results

FOLDER, PAGE = Path("docs/experiments"), Path("docs/experiments.md")
_INTRODUCTION = """# Experiments

Questions about attention, each answered by one command, such as `tunefa bench scaling`. It prints a
table and, with `--out DIR`, writes the figures as JSON and a plot as PNG. On a machine with a GPU
the figures are measured; for another chip (`--arch`) they come from a model and say so. `--from
FILE` shows earlier results anywhere. `make bench` runs all of them. `tunefa bench profile` shows
the kernels of one call, by Triton's Proton, PyTorch's profiler or Nsight Compute.

Figures of write-ups stand beside ours, with a sentence on why they differ. This page is made from
the JSON files in [experiments/](experiments) by `python -m benchmarks.experiments`.
"""


def page(documents: dict[str, Document]) -> str:
    """The page, in Markdown, from documents by the names of their experiments."""
    parts = [_INTRODUCTION]
    for name, document in documents.items():
        if name == compare.NAME:
            parts += _compared(document)
            continue
        experiment = experiments.load(name)
        parts.append(f"## {name}: {experiment.question}\n")
        parts.append(f"`tunefa bench {name}`, {document.origin}.\n")
        parts.append(f"![{experiment.question}]({FOLDER.name}/{name}.png)\n")
        for table in experiment.tables(document):
            parts.append(f"**{table.title}**\n" if table.title else "")
            parts.append(table.markdown())
        if made := ", ".join(f"{what} {version}" for what, version in document.made_with.items()):
            parts.append(f"Made with {made}.\n")
    return "\n".join(part for part in parts if part)


def _compared(document: Document) -> list[str]:
    """The section of `tunefa bench compare`."""
    parts = [
        "## compare: tunefa and its peers, on the same tensors\n",
        f"`tunefa bench compare`, {document.origin}.\n",
        f"![The speeds of tunefa and its peers]({FOLDER.name}/{compare.NAME}.png)\n",
    ]
    for table in comparison.tables(document):
        parts += [f"**{table.title}**\n", table.markdown()]
    return [*parts, *(f"{line}\n" for line in comparison.summary(document))]


def main() -> None:
    """Reads the results, and writes their plots and the page."""
    documents = {}
    for name in sorted([compare.NAME, *experiments.names()]):
        path = FOLDER / f"{name}.json"
        if path.exists():
            document = documents[name] = Document.load(path)
            plot: Callable[[Any], None]
            if name == compare.NAME:
                plot = partial(comparison.draw, document)
            else:
                plot = experiments.load(name).plot(document)
            figure.save_png(plot, path.with_suffix(".png"))
    results.write_text(PAGE, page(documents))


if __name__ == "__main__":
    main()
