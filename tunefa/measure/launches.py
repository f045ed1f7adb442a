"""Launches of one config on the device of this machine, and which of them are the same."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from tunefa.compile import languages
from tunefa.compile.contract import Compiled, Launch
from tunefa.measure import ops, timing
from tunefa.spec import kernel as kernels
from tunefa.spec.rounding import round_up
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Trial
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store.lookup import Choice
from tunefa.store.results import Store

_WHOLE = 256
"""A length that most blocks divide."""


def ragged_shape(case: Case, config: Config) -> Workload:
    """Returns the op's `ragged` shape, which no tile divides. For a kernel that serves only masks
    with as many keys as queries, it has as many."""
    shape: Workload = ops.of(case.workload).ragged(case.workload, config)
    if case.kernel.is_library and case.kernel.why_not(shape, case.arch) is not None:
        return replace(shape, seqlen_k=shape.seqlen_q)
    return shape


def shape_to_check(case: Case, config: Config) -> Workload:
    """Returns the small shape that a config is checked on before it is timed.

    For gradients it is as ragged as the workload's own binary allows. Their kernels have another
    binary for lengths that no tile divides. That one tells nothing of the binary that is timed, and
    compiling both takes twice as long: 3.7 s in place of 1.9 s for a fused kernel in Gluon, on an
    idle core. Where no small shape has the binary, it is the ragged one.
    """
    ragged = ragged_shape(case, config)
    if ragged.op != "bwd" or ragged.varlen:
        return ragged
    whole = round_up(ragged.seqlen_k, _WHOLE)
    shapes = (
        ragged,
        replace(ragged, seqlen_k=ragged.seqlen_q + _WHOLE),
        replace(ragged, seqlen_k=whole),
        replace(ragged, seqlen_q=round_up(ragged.seqlen_q, _WHOLE), seqlen_k=whole),
    )
    return next((each for each in shapes if has_its_binary(case, config, each)), ragged)


def has_its_binary(case: Case, config: Config, shape: Workload) -> bool:
    """Whether a config of the case has the same binary for another shape."""
    there = replace(case, workload=shape)
    if there.why_not() is not None:
        return False
    language, aligned = languages.load(case.kernel.language), case.workload.is_aligned
    own, other = (language.binary_key(each, config, aligned) for each in (case, there))
    return bool(own == other)


def compiled_for(case: Case, config: Config, tensors: Sequence[Any]) -> Compiled:
    """Compiles the config for tensors of this alignment. Raises CompileError if that fails."""
    kernel = case.kernel
    aligned = kernel.module.is_aligned(tensors)
    made: Compiled = languages.load(kernel.language).compile(case, config, aligned)
    return made


def prepared(case: Case, config: Config, tensors: Sequence[Any]) -> Launch:
    """Returns a launch of the config on `tensors`, of the shapes that its op's module says.

    Raises CompileError if the config does not compile, or needs more of a resource than the device
    has. A binary that a compile pool made is read from the cache.
    """
    compiled = compiled_for(case, config, tensors)
    spec = ops.of(case.workload).launch_spec(case, config)
    made: Launch = languages.load(case.kernel.language).prepare(spec, compiled, tensors)
    return made


def bound(launch: Launch, tensors: Sequence[Any]) -> timing.BoundLaunch:
    """Returns a function that starts the launch on `tensors`."""
    return lambda: launch(*tensors)


def timed(launch: Launch, tensors: Sequence[Any]) -> timing.BoundLaunch:
    """Returns a function that starts the launch as a program does: the results of a library are not
    copied."""
    results = getattr(launch, "results", None)
    return bound(launch if results is None else results, tensors)


def launch(case: Case, config: Config, tensors: Sequence[Any]) -> timing.BoundLaunch:
    """Returns a function that launches the config on `tensors`. Raises what `prepared` raises."""
    return bound(prepared(case, config, tensors), tensors)


def best(
    known: Store, workload: Workload, target: Target, tensors: Sequence[Any]
) -> tuple[Choice, timing.BoundLaunch]:
    """Returns the config that the store has for a workload, else the default, and its launch on
    `tensors`. Raises TunefaError if no kernel serves the workload, and what `prepared` raises."""
    serving = kernels.serving(workload, target.arch)
    choice = lookup.lookup(known, workload, target, serving)
    case = Case(kernels.load(choice.kernel), workload, target)
    return choice, launch(case, choice.config, tensors)


def what_runs(trial: Trial, launch: Launch) -> Hashable:
    """Returns a key that is equal for trials that the device cannot tell apart: their machine code
    and their launches are equal. None where that is not known."""
    code = trial.resources.code if trial.resources else None
    key = getattr(launch, "key", None)
    return None if code is None or key is None else (code, key)
