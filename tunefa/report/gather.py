"""Gathers what a page shows: from the store, this user's journals, and a folder of experiments."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tunefa.compile import serving
from tunefa.compile.serving import Installed
from tunefa.errors import TunefaError
from tunefa.experiments.document import Document
from tunefa.report import search as searches
from tunefa.report.content import EXPERIMENTS, JOURNALS, STORE, Content, FailureCount
from tunefa.report.part import plural, shortened
from tunefa.report.search import Search
from tunefa.spec.workload import Workload
from tunefa.store import failures as failures_in_journals
from tunefa.store import journal, results

PER_WORKLOAD = 2
"""The newest searches of a workload on a chip that are shown."""
MOST_SEARCHES = 12
"""The searches on a page. Each has two plots of about 40 kB."""
_Each = TypeVar("_Each")
Keeps = Callable[[str, str | None], bool]
"""Says by arch and device what belongs on the page."""


def gather(folder: Path | None = None, keeps: Keeps = lambda *_: True) -> Content:
    """Returns everything that there is to show of the chips for which `keeps` is true.

    Files that cannot be read are left out, which the content says. Raises TunefaError if `folder`,
    which holds the results of experiments, cannot be listed.
    """
    said: dict[str, list[str]] = {STORE: [], JOURNALS: [], EXPERIMENTS: []}
    experiments = list(_experiments(folder, said[EXPERIMENTS])) if folder is not None else []
    with _remarks(said[STORE]):
        records = serving.best(results.default_store(), Installed())
    with _remarks(said[JOURNALS]):
        failed = _failures()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paths = journal.paths()  # its warnings are those of the failures
    found = _searches(paths, keeps, said[JOURNALS])
    content = Content(records, found, failed, experiments, said)
    return content.only(keeps)


@contextmanager
def _remarks(said: list[str]) -> Iterator[None]:
    """Adds the warnings about files that are left out to `said`, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        if issubclass(each.category, UserWarning) and str(each.message) not in said:
            said.append(str(each.message))


def _failures() -> list[FailureCount]:
    """Counts the failures in all journals by kernel, chip, outcome and reason; most first."""
    counts = Counter(
        (each.kernel, each.arch, each.device, each.trial.outcome, shortened(each.trial.reason))
        for each in failures_in_journals.failures()
    )
    return [FailureCount(*key, count) for key, count in counts.most_common()]


def _searches(paths: Sequence[Path], keeps: Keeps, said: list[str]) -> list[Search]:
    """Reads the newest journals of each workload and chip, the newest first."""
    headed = [each for path in paths if (each := _headed(path)) is not None]
    chosen = [each for each in headed if keeps(each.arch, each.device)]
    counts: Counter[tuple[object, ...]] = Counter()
    shown = []
    for each in chosen:
        asked = (each.workload, each.arch, each.device, each.objective)
        counts[asked] += 1
        if counts[asked] <= PER_WORKLOAD:
            shown.append(each)
    if hidden := len(chosen) - len(shown[:MOST_SEARCHES]):
        said.append(
            f"{plural(hidden, 'older search')} left out, so that the page stays small: it shows "
            f"the newest {PER_WORKLOAD} of each workload and chip, and at most {MOST_SEARCHES}."
        )
    folder = journal.folder()
    return [_filled(each, folder / each.journal) for each in shown[:MOST_SEARCHES]]


def _headed(path: Path) -> Search | None:
    """Returns the search of a journal without its trials; None for one that was replayed, and for
    one whose header cannot be read, which the remarks about failures say."""
    try:
        header = journal.header(path)
        workload = Workload.parse(header["workload"])
        objective = str(header["objective"])
        (date, *_) = [str(made["date"]) for made in header["provenance"].values()]
        arch, device = str(header["arch"]), str(header["device"])
    except (TunefaError, LookupError, TypeError, ValueError, AttributeError):
        return None
    if objective == "replayed":
        return None
    return Search(path.name, date, workload, arch, device, objective, ())


def _filled(headed: Search, path: Path) -> Search:
    """Returns the search with its trials, up to the first line that cannot be read."""
    made = searches.of_trials(_whole_lines(journal.read_timed(path)))
    return Search(**{**vars(headed), "kernels": made})


def _whole_lines(trials: Iterator[_Each]) -> Iterator[_Each]:
    try:
        yield from trials
    except TunefaError:  # the remarks about failures say it
        return


def _experiments(folder: Path, said: list[str]) -> Iterator[Document]:
    """Yields the results in a folder, in the order of their names."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError as error:
        raise TunefaError(f"cannot list the folder {folder}: {error.strerror}") from error
    if not paths:
        said.append(f"There are no JSON documents in {folder}: `tunefa bench --out` writes them.")
    for path in paths:
        try:
            if not path.is_file():
                raise TunefaError(f"{path} is not a regular file")
            yield Document.load(path)
        except TunefaError as error:
            said.append(f"A document is left out: {error}.")
        except RecursionError:
            said.append(f"A document is left out: {path} is nested too deeply.")
