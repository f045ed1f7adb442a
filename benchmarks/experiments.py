"""Writes docs/experiments.md from the results in docs/experiments/, and their plots.

make bench OUT=docs/experiments       # runs all experiments; modelled where there is no GPU
python -m benchmarks.experiments      # the page, from what is there
"""

from __future__ import annotations

from pathlib import Path

from tunefa.experiments import experiment as experiments
from tunefa.experiments import figure
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


def main() -> None:
    """Reads the results, and writes their plots and the page."""
    documents = {}
    for name in experiments.names():
        path = FOLDER / f"{name}.json"
        if path.exists():
            documents[name] = Document.load(path)
            plot = experiments.load(name).plot(documents[name])
            figure.save_png(plot, path.with_suffix(".png"))
    results.write_text(PAGE, page(documents))


if __name__ == "__main__":
    main()
