"""`tunefa learn`: corrects the predicted times of kernels by what was measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunefa.cli.cleaned import cleaned
from tunefa.cli.reports import learning as reports
from tunefa.cli.reports import text
from tunefa.errors import TunefaError
from tunefa.store import journal

if TYPE_CHECKING:
    from tunefa.costmodel.lesson import Lesson
    from tunefa.costmodel.training_rows import TrainingRows

SCIKIT_LEARN = "scikit-learn>=1.5"
"""The package that fits models. A model that is fitted needs numpy only."""


@click.command()
@click.argument("paths", nargs=-1, metavar="[JOURNAL|FOLDER]...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE|FOLDER",
              help="Write the model there, not where predictions read it.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what is learned or forgotten, and do nothing.")
@click.option("--forget", is_flag=True, help="Remove every model that was learned here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    paths: tuple[Path, ...], out: Path | None, dry_run: bool, forget: bool, as_json: bool
) -> None:
    """Learn from measured trials how long configs take.

    It reads journals of searches on GPUs, compressed or not, or all journals of this user. For each
    kernel and chip family it fits a model to what the model that tunefa ships misses. The error of
    the new model is that on workloads that it was not fitted to. It is kept only if this is not
    larger than the error of the shipped model. From then on, predicted times are its times.

    It takes scikit-learn, and at least three workloads of a kernel that the shipped model has not
    learned from.

    Needs no GPU.
    """
    if forget:
        if paths or out:
            raise click.UsageError("--forget removes every model that was learned: name nothing")
        reports.forgotten(_forget(dry_run), removed=not dry_run, as_json=as_json)
        return
    if find_spec("sklearn") is None:
        raise TunefaError(f"learning needs scikit-learn: pip install '{SCIKIT_LEARN}'")
    rows = _rows(paths)
    lessons = _lessons(rows)
    written = {} if dry_run else _written(lessons, out)
    if as_json:
        text.emit_json(reports.to_data(lessons, rows, written))
    else:
        reports.show(lessons, rows, written)


def _rows(paths: tuple[Path, ...]) -> TrainingRows:
    """The rows of the journals that are named, else of the user's.

    Raises TunefaError if there are none.
    """
    from tunefa.costmodel import training_rows

    found = training_rows.read(training_rows.files(paths)) if paths else training_rows.of_user()
    for why in found.unread:
        click.echo(cleaned(f"Left out a journal: {why}"), err=True)
    if not found.rows:
        where = ", ".join(map(str, paths)) if paths else str(journal.folder())
        why = "; ".join(f"{count:,}: {reason}" for reason, count in found.left_out.items())
        raise TunefaError(
            f"no measured trial to learn from in {where}{f' ({why})' if why else ''}: search on a "
            "GPU, or name journals of such searches"
        )
    return found


def _lessons(rows: TrainingRows) -> list[Lesson]:
    """The lesson of each kernel and arch. Raises TunefaError if all have too few workloads."""
    from tunefa.costmodel import lesson

    groups = list(rows.groups().values())
    total = sum(map(lesson.fits, groups))
    if not total:
        most = max(lesson.new_workloads(own) for own in groups)
        raise TunefaError(
            f"the trials are of {text.plural(most, 'workload')} that tunefa has not learned from "
            f"yet, and to learn takes at least {lesson.LEAST_WORKLOADS} of one kernel: search more "
            "workloads on a GPU"
        )
    with reports.Reporter(total) as reporter:
        return [lesson.learn(own, reporter) for own in groups]


def _forget(dry_run: bool) -> list[Path]:
    """Removes the user's models; returns their files. Raises TunefaError if one stays."""
    from tunefa.costmodel import learned

    found = sorted(learned.user_folder().glob("*"))
    for path in () if dry_run else found:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise TunefaError(f"cannot remove {path}: {error.strerror}") from error
    return found


def _written(lessons: list[Lesson], out: Path | None) -> dict[tuple[str, str], Path]:
    """Writes the models that are kept; returns their files by kernel and arch.

    Raises TunefaError if that fails, or if one file is named for several models.
    """
    from tunefa.costmodel import learned

    kept = [(each.kernel, each.arch, each.model) for each in lessons if each.model is not None]
    one_file = out is not None and not out.is_dir() and len(kept) == 1
    if out is not None and not one_file and kept and not out.is_dir():
        raise TunefaError(f"{out} is no folder, and there are {len(kept)} models: name a folder")
    written = {}
    for kernel, arch, model in kept:
        path = out if out is not None and one_file else learned.path(kernel, arch, out)
        model.save(path)
        written[kernel, arch] = path
    return written
