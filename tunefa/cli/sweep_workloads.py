"""The workloads of a sweep: those of a file, with their weights, or a grid of options."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tunefa.cli import completion, model_options
from tunefa.cli.field_options import flag
from tunefa.errors import TunefaError, unknown
from tunefa.spec import looked_up
from tunefa.spec.model_layers import Model
from tunefa.spec.sizes import parse_size
from tunefa.spec.workload import Workload
from tunefa.spec.workload_parts import CACHE_OPS
from tunefa.store import traced

OPS = ("fwd", "bwd", "decode")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options of a grid."""
    for option in (
        click.option("-w", "--workload", "texts", multiple=True, metavar="WORKLOAD", help=(
            "A workload as one word, which counts 1; may be repeated.")),
        click.option("--ops", metavar="LIST", help=(
            "With --model: fwd, bwd (gradients) or decode (one query over a cache of --seqlen "
            "keys), or several: fwd,bwd,decode.  [default: fwd]")),
        click.option("--seqlen", metavar="LIST", help=(
            "With --model: lengths, such as 1k,4k,32k; 1k..32k doubles.")),
        click.option("--batch", metavar="LIST", help=(
            "With --model: numbers of sequences, such as 1,8.  [default: 1]")),
        click.option("--model", "models", multiple=True, metavar="MODEL",
                     shell_complete=completion.models, help=(
            "The attention layers of a language model, as for `tunefa search`, in place of FILE; "
            "may be repeated. All its workloads count the same, those of a part of its layers "
            "that part.")),
    ):  # fmt: skip
        command = option(command)
    return command


def chosen(
    path: Path | None,
    models: Sequence[str],
    texts: Sequence[str],
    lists: dict[str, str | None],
) -> dict[Workload, float]:
    """Returns the workloads with their weights. `lists` are --batch, --seqlen and --ops.

    Raises TunefaError for what cannot be read, and click.UsageError for no workloads and for
    options that do not go together.
    """
    given = [f"--{name}" for name, text in lists.items() if text is not None]
    if given and not models:
        raise click.UsageError(f"{given[0]} makes workloads of a model: give --model")
    if sum(map(bool, (path, models, texts))) != 1:
        raise click.UsageError(
            "give the workloads in one way: a FILE, as tunefa trace writes it, --model with "
            "--seqlen, or -w"
        )
    if path is not None:
        return _of_file(path)
    if texts:
        return {Workload.parse(text): 1.0 for text in texts}
    return _grid(models, lists)


def merged(
    weights: Mapping[Workload, float], sms: int
) -> tuple[dict[Workload, float], dict[Workload, list[Workload]]]:
    """Returns the workloads that calls look their config up for on devices with so many SMs, with
    the sums of weights; and for those that stand for other ones, which these are."""
    found: dict[Workload, float] = {}
    others: dict[Workload, list[Workload]] = {}
    for workload, weight in weights.items():
        asked = looked_up.of_call(workload, sms)
        found[asked] = found.get(asked, 0.0) + weight
        if asked != workload:
            others.setdefault(asked, []).append(workload)
    return found, others


def _of_file(path: Path) -> dict[Workload, float]:
    found = traced.read(path).workloads
    weights = {workload: calls.seconds for workload, calls in found.items() if calls.seconds > 0}
    if not weights:
        raise TunefaError(f"{path}: every weight is 0, so nothing can be saved: give seconds")
    if dropped := len(found) - len(weights):
        click.echo(f"{path}: {dropped} with a weight of 0 are left out", err=True)
    return weights


def _grid(models: Sequence[str], lists: dict[str, str | None]) -> dict[Workload, float]:
    if lists["seqlen"] is None:
        raise click.UsageError("--model needs lengths: give --seqlen, such as --seqlen 1k,4k,32k")
    lengths = sizes(lists["seqlen"], "--seqlen")
    batches = sizes(lists["batch"] or "1", "--batch")
    ops = [each.strip() for each in (lists["ops"] or "fwd").split(",")]
    for op in ops:
        if op not in OPS:
            raise unknown("op", op, OPS)
    weights: dict[Workload, float] = {}
    for name in models:
        layers = [
            (op, model.layers, kind) for op, model in _models(name, ops) for kind in model.kinds
        ]
        for (op, count, kind), batch, length in itertools.product(layers, batches, lengths):
            fields: dict[str, Any] = {"batch": batch, "op": op, "seqlen_q": length}
            if op == "decode":
                fields |= {"seqlen_q": 1, "seqlen_k": length}
            workload = kind.workload(fields)
            window_left = kind.fields.get("window_left")
            if op == "decode" and window_left is not None:  # which a short cache would not have
                workload = looked_up.of_cache(workload, window_left)
            weights[workload] = weights.get(workload, 0.0) + kind.count / count
    return weights


def _models(name: str, ops: Sequence[str]) -> list[tuple[str, Model]]:
    """Returns a model for each op that computes some of its layers. Raises TunefaError if none
    does."""
    found: dict[bool, Model] = {}
    errors = []
    for is_cached, op in {
        op in CACHE_OPS: op for op in ops
    }.items():  # each says what it leaves out
        try:
            found[is_cached] = model_options.loaded(name, {"op": op}, flag)
        except TunefaError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    for each in errors:
        click.echo(str(each), err=True)
    return [(op, found[op in CACHE_OPS]) for op in ops if (op in CACHE_OPS) in found]


def sizes(text: str, option: str) -> list[int]:
    """Reads `1k,4k,32k`, and `1k..32k` for 1k, 2k, 4k, 8k, 16k and 32k.

    Raises click.UsageError for an empty list or a range that does not rise.
    """
    found: list[int] = []
    for part in text.split(","):
        if not part.strip():
            raise click.UsageError(f"{option} {text!r} lacks a number: write 1k,4k or 1k..32k")
        first, dots, last = part.partition("..")
        low = parse_size(first.strip(), option)
        high = parse_size(last.strip(), option) if dots else low
        if high < low:
            raise click.UsageError(f"{option} {part} does not rise: write {last}..{first}")
        while low <= high:
            found.append(low)
            low *= 2
    return list(dict.fromkeys(found))
