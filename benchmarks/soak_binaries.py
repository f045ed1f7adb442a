"""Compiles the binaries of `benchmarks.soak` in all cores, so that its rounds do not wait."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import torch

from benchmarks.random_calls import KINDS, RandomCall, TrainingStep
from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.choose import Chooser
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store import results

Names = tuple[str, str, str]
_DIVIDED = 128
"""Kernels may have a binary for lengths that this divides."""


def workload_of(case: RandomCall) -> Workload:
    """The workload of a call's forward pass."""
    q, k, v = case.tensors("meta")
    if case.kind == "packed":
        starts = torch.empty(4, dtype=torch.int32, device="meta")  # of three sequences
        q, k, v = map(case.arranged, (q, k, v))
        most = q.shape[0], k.shape[0], False
        options = Options.of(case.causal, None, "thd", None, most)
        return Call.of(Tensors(q, k, v, (starts, starts)), options, None).workload()
    given = KINDS[case.kind]
    layout = "bhsd" if case.bhsd else "bshd"
    options = Options.of(case.causal, given.get("window"), layout, given.get("softcap"))
    return Call.of(Tensors(q, k, v), options, None).workload()


def binaries(cases: Iterable[RandomCall], target: Target) -> list[tuple[Names, Config]]:
    """Returns one case with its config for each binary that calls need, as far as can be told.

    Configs are those that records and defaults choose: of the forward pass and, for steps of
    training, of the backward pass.
    """
    found: dict[object, tuple[Names, Config]] = {}
    store = results.default_store()
    choosers = {op: Chooser(store, target, _serving(op)) for op in ("fwd", "bwd")}
    for workload in {each: None for case in cases for each in _with_gradients(case)}:
        try:
            choice = choosers[workload.op].choose(workload)
        except TunefaError:  # no kernel serves it
            continue
        family = replace(
            workload, batch=1, heads=workload.group, heads_kv=1, seqlen_q=1, seqlen_k=1
        )
        divided = workload.seqlen_q % _DIVIDED == 0, workload.seqlen_k % _DIVIDED == 0
        config = dict(choice.config)
        key = choice.kernel, family, divided, *config.items()
        if key not in found and not kernels.load(choice.kernel).is_library:
            found[key] = Case(kernels.load(choice.kernel), workload, target).names, config
    return list(found.values())


def compile_all(asked: Sequence[tuple[Names, Config]]) -> list[str]:
    """Compiles binaries in all cores; returns what was refused."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        return [each for each in pool.map(_compile, asked) if each]


def _with_gradients(case: RandomCall) -> Iterator[Workload]:
    yield (forward := workload_of(case))
    if isinstance(case, TrainingStep):
        yield replace(forward, op="bwd")


def _serving(op: str) -> list[kernels.Kernel]:
    return [each for each in kernels.usable() if each.op == op]


def _compile(asked: tuple[Names, Config]) -> str:
    names, config = asked
    case = Case.from_names(*names)
    try:
        languages.load(case.kernel.language).compile(case, config)
    except TunefaError as error:
        return f"{case.kernel.name} {case.workload}: {error}"
    return ""
