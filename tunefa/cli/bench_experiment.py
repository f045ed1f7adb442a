"""The commands of `tunefa bench` that run one experiment each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import TaskProgressColumn, TimeRemainingColumn

from tunefa.cli.reports import experiment as reports
from tunefa.cli.reports import text
from tunefa.cli.reports.bar import OnStderr
from tunefa.cli.workload_options import Selection, workload_options
from tunefa.errors import TunefaError
from tunefa.spec.trial import MODES
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.experiments.document import Document
    from tunefa.experiments.experiment import Experiment
    from tunefa.measure.contest import Settings

ALL = "all"
"""The name that stands for all experiments."""


_OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--out", "folder"): {
        "metavar": "DIR", "type": click.Path(file_okay=False, path_type=Path), "help": (
            "Write the results and the plot here, as NAME.json and NAME.png.")},
    ("--from", "source"): {
        "metavar": "FILE", "type": click.Path(exists=True, path_type=Path), "help": (
            "Show the results in this JSON file, or folder, of an earlier run; needs no GPU.")},
    ("--mode",): {
        "type": click.Choice(MODES), "default": "graph", "show_default": True,
        "help": "How calls are made while they are timed."},
    ("--rounds",): {
        "metavar": "N", "type": click.IntRange(3), "default": 21, "show_default": True,
        "help": "Interleaved rounds of each measurement."},
    ("--budget",): {
        "metavar": "B", "default": "60s", "show_default": True, "help": (
            "Time (60s, 2m) or trials (200) for the search of each point that is tuned before it "
            "is measured on a GPU, as the four of matmul are; none where the store has a record.")},
    ("--json", "as_json"): {"is_flag": True, "help": "Print one JSON document."},
}  # fmt: skip


class Points(OnStderr):
    """Shows which point is in progress. A context manager."""

    def __init__(self, name: str) -> None:
        super().__init__(name, None, TaskProgressColumn(), TimeRemainingColumn())
        self._name = name

    def __call__(self, workload: Workload, place: int, count: int) -> None:
        """Shows that one point begins."""
        words = f"{self._name}: {workload}"
        self._bar.update(self._task, total=count, completed=place, description=words)
        if not self._console.is_terminal:
            self._console.print(f"{words} ({place + 1} of {count})", soft_wrap=True)


def command_of(name: str, question: str) -> click.Command:
    """Returns the command of one experiment, or of all for `ALL`."""

    @workload_options
    @_options
    def run(selection: Selection, **options: Any) -> None:
        from tunefa.experiments import experiment as experiments

        asked = _Asked(selection, **options)
        chosen = asked.kept(experiments.names()) if name == ALL else [name]
        parts = [experiments.load(each) for each in chosen]
        # A search takes longer than all measurements, which are kept if it is interrupted.
        parts.sort(key=lambda part: part.tune is not None)
        documents, failures = _answered(asked, parts)
        if asked.as_json and documents:
            data = [document.to_data() for document in documents]
            text.emit_json({"experiments": data} if name == ALL else data[0])
        if failures:
            raise TunefaError("; ".join(failures))

    run.__doc__ = _help(name, question)
    return click.command(name)(run)


def _answered(
    asked: _Asked, parts: Sequence[Experiment]
) -> tuple[Sequence[Document], Sequence[str]]:
    """Returns the results of the experiments, in their order, and why others failed.

    Tables and plots are made as soon as an experiment ends. One that fails costs no other.
    """
    documents: list[Document] = []
    failures: list[str] = []
    for part in parts:
        try:
            document = asked.document(part)
            documents.append(document)
            if not asked.as_json:
                reports.show(document, text.console())
            asked.plot(part, document)
        except TunefaError as error:
            failures.append(str(error))
    return documents, list(dict.fromkeys(failures))


def _options(run: Callable[..., Any]) -> Callable[..., Any]:
    for names, settings in reversed(list(_OPTIONS.items())):
        run = click.option(*names, **settings)(run)
    return run


def _help(name: str, question: str) -> str:
    which = "Each experiment has its own points" if name == ALL else "It has points of its own"
    last = " Those that search before they measure, such as matmul, run last." * (name == ALL)
    return f"""{question}

    Measures on the GPU of this machine. Without one, or with another chip in --arch, the figures
    come from a model and say so. {which}, which -w replaces.{last}

    Needs no GPU.
    """


class _Asked:
    """The options of one run."""

    def __init__(self, selection: Selection, **options: Any) -> None:
        self.selection = selection
        self.folder: Path | None = options["folder"]
        self.source: Path | None = options["source"]
        self.mode, self.rounds = options["mode"], options["rounds"]
        self.as_json: bool = options["as_json"]
        self.budget: str = options["budget"]

    def kept(self, names: Sequence[str]) -> list[str]:
        """Returns which of these experiments are to be shown: those of the workloads' ops, or those
        in a folder.

        Raises TunefaError if the folder holds none.
        """
        from tunefa.experiments import experiment as experiments

        if self.source is None:
            each = {name: experiments.load(name) for name in names}
            asked = {name: self._workloads(found) for name, found in each.items()}
            return [name for name in names if any(w.op == each[name].op for w in asked[name])]
        there = [name for name in names if (self.source / f"{name}.json").is_file()]
        if not there:
            raise TunefaError(
                f"{self.source} holds no results: name a folder with {', '.join(names)} (.json)"
            )
        return there

    def document(self, experiment: Experiment) -> Document:
        """Reads the results of an experiment; or makes them, and writes NAME.json if asked to."""
        if self.source is not None:
            return self._read(experiment)
        if self.folder is not None:
            _require_folder(self.folder)
        document = self._run(experiment)
        if self.folder is not None:
            path = self.folder / f"{experiment.name}.json"
            document.save(path)
            click.echo(f"results  {path}", err=True)
        return document

    def plot(self, experiment: Experiment, document: Document) -> None:
        """Writes NAME.png if asked to."""
        from tunefa.experiments import figure

        if self.folder is None:
            return
        _require_folder(self.folder)
        path = self.folder / f"{experiment.name}.png"
        figure.save_png(experiment.plot(document), path)
        click.echo(f"plot     {path}", err=True)

    def _read(self, experiment: Experiment) -> Document:
        from tunefa.experiments.document import Document

        assert self.source is not None
        path = self.source
        if path.is_dir():
            path = path / f"{experiment.name}.json"
        document = Document.load(path)
        if document.experiment != experiment.name:
            raise TunefaError(
                f"{path} holds the experiment {document.experiment!r}: "
                f"tunefa bench {document.experiment} --from {path}"
            )
        return document

    def _run(self, experiment: Experiment) -> Document:
        from tunefa.experiments import run as runs

        selection = self.selection
        settings = self._settings() if selection.present else None
        workloads = self._workloads(experiment)
        if settings is not None:
            self._tune(experiment, workloads, settings)
        with Points(experiment.name) as points:
            return runs.run(experiment, workloads, selection.target, settings, points)

    def _tune(
        self, experiment: Experiment, workloads: Sequence[Workload], settings: Settings
    ) -> None:
        """Searches for the configs of points that the experiment tunes before it measures."""
        from tunefa.search.budget import Budget

        tune, asked = experiment.tune, [each for each in workloads if each.op == experiment.op]
        if tune is None:
            return
        Budget.parse(self.budget)  # a mistake ends the command before the first search
        with Points(f"{experiment.name}, tuning") as points:
            for place, workload in enumerate(asked):
                points(workload, place, len(asked))
                budget = Budget.parse(self.budget)
                why_not = tune(workload, self.selection.target, settings.mode, budget)
                if why_not is not None:
                    click.echo(f"{experiment.name}: {why_not}", err=True)

    def _settings(self) -> Settings:
        from tunefa.measure.contest import Settings

        return Settings(mode=self.mode, rounds=self.rounds)

    def _workloads(self, experiment: Experiment) -> Sequence[Workload]:
        """The points: those of the command line, else the experiment's own."""
        selection = self.selection
        if selection.texts or selection.fields or selection.models:
            return [each.workload for each in selection.each()]
        return [Workload.parse(point) for point in experiment.points]


def _require_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TunefaError(f"cannot make the folder {folder}: {error.strerror}") from error
