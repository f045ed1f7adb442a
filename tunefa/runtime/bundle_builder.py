"""Makes the contents of a bundle: the choices for workloads on chips, and their binaries.

It needs no device. Each workload gets the config that the runtime would choose on the chip with the
records of this machine. Beside the binary of the workload itself, those of other lengths are
compiled, which differ in whether blocks divide the lengths.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tunefa._version import __version__
from tunefa.compile import languages, pool, provenance, stored
from tunefa.compile.contract import CompileError
from tunefa.compile.pool import CompilePool, Pending
from tunefa.compile.serving import Installed, UsableStore
from tunefa.errors import TunefaError
from tunefa.runtime import planning
from tunefa.runtime.choose import Chooser
from tunefa.spec import kernel as kernel_files
from tunefa.spec import looked_up
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store import results as store
from tunefa.store.bundle_file import Contents, Plan
from tunefa.store.record import Record

_BESIDE = (0, 1, 16, 32, 64, 128)
"""Rows and keys beyond a length that all blocks divide: what these leave over stands for what any
length leaves over."""
_OPS = ("fwd", "bwd", "decode", "prefill")
"""The ops of the runtime's calls."""
_FEW = (16, 1, 64)
"""Numbers of queries or keys that configs for long sequences do not serve."""
_HERE, _IN_BUNDLE = "and this machine has", "and its binary was made with"
"""The words for the compiler in the remark on an unconfirmed record, here and in a bundle."""
Progress = Callable[[int, int], None]
"""Is told how many configs were compiled, and of how many."""


@dataclass
class Planned:
    """The plans of a bundle, and what must be compiled for them."""

    exact: bool
    """Whether only the lengths of the workloads are wanted."""
    plans: dict[tuple[Workload, Target], Plan] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)
    wanted: dict[str, tuple[Case, Config, tuple[Workload, Target]]] = field(default_factory=dict)
    """By digest: a case, a config, and the plan that needs them."""
    left_out: list[dict[str, str]] = field(default_factory=list)

    def leave_out(self, what: object, why: object) -> None:
        """Notes what is not in the bundle."""
        note = {"what": str(what), "why": str(why)}
        if note not in self.left_out:
            self.left_out.append(note)


def build(
    workloads: Sequence[Workload],
    targets: Sequence[Target],
    workers: int | None = None,
    progress: Progress = lambda done, of: None,
    licence: str | None = None,
    exact: bool = False,
) -> tuple[Contents, dict[str, bytes]]:
    """Returns the contents of a bundle, and its binaries by name; with `exact`, only those for the
    lengths of the workloads.

    A workload that no kernel serves, or whose config does not compile, is left out with the reason.
    Raises TunefaError where there is no compiler at all.
    """
    planned = _planned(workloads, targets, exact)
    binaries, images = _compiled(planned, workers, progress)
    plans = [*planned.plans.values()]
    used = {plan.kernel: kernel_files.load(plan.kernel) for plan in plans}
    kernels = {name: _provenance(kernel) for name, kernel in sorted(used.items())}
    made = {"tunefa": __version__, "licence": licence}
    records = [*planned.records.values()]
    return Contents(plans, records, kernels, binaries, made, planned.left_out), images


def _planned(workloads: Sequence[Workload], targets: Sequence[Target], exact: bool) -> Planned:
    """Chooses configs for workloads on chips."""
    planned = Planned(exact)
    every = kernel_files.usable()
    usable = UsableStore(store.default_store(), Installed(every))
    for target in targets:
        lacking = languages.without_compiler(every, target.arch)
        own = [each for each in every if each.space.vendor == target.arch.vendor]
        held = [each for each in own if stored.why_not(each.language) is None
                and each.name not in lacking]  # fmt: skip
        chooser, of_all = (Chooser(usable, target, kernels) for kernels in (held, own))
        for workload in dict.fromkeys(workloads):
            try:
                _plan(planned, workload, chooser)
            except TunefaError as error:
                planned.leave_out(f"{workload} on {target}", error)
                continue
            _name_library(planned, workload, of_all, lacking)
        for workload in () if exact else dict.fromkeys(workloads):
            for other in _beside(workload):
                if not _is_served(planned, other, chooser):
                    with contextlib.suppress(TunefaError):  # no kernel serves it
                        _plan(planned, other, chooser, str(workload))
    return planned


def _beside(workload: Workload) -> Iterator[Workload]:
    """Yields workloads of which calls may come where there are calls of this one, and that its
    config may not serve: few queries, few keys, sequences that its window does not reach, and few
    queries as attention over a cache, as which the runtime may run them."""
    if workload.op not in ("fwd", "bwd"):
        return
    rows, keys = workload.seqlen_q, workload.seqlen_k
    few = [(size, size) for size in _FEW] + [(size, keys) for size in _FEW] + [(rows, _FEW[0])]
    if workload.window_left is not None:  # of shorter sequences it hides nothing
        few.insert(0, (workload.window_left + 1, workload.window_left + 1))
    for sizes in few:
        if sizes[0] <= rows and sizes[1] <= keys:
            with contextlib.suppress(TunefaError):  # no workload
                yield replace(workload, seqlen_q=sizes[0], seqlen_k=sizes[1])
    if looked_up.is_few(workload):
        with contextlib.suppress(TunefaError):
            yield looked_up.over_cache(workload)


def _is_served(planned: Planned, workload: Workload, chooser: Chooser) -> bool:
    """Whether a plan of another workload serves this one."""
    kernels = {each.name: each for each in chooser.kernels}
    arch = chooser.target.arch
    return any(
        target == chooser.target
        and lookup.may_serve(plan.workload, workload)
        and kernels[plan.kernel].why_not(workload, arch) is None
        and kernels[plan.kernel].refusal(plan.base, workload, arch) is None
        for (_, target), plan in planned.plans.items()
    )


def _plan(planned: Planned, workload: Workload, chooser: Chooser, beside: str = "") -> None:
    """Adds the plan of a workload, `beside` that of another one.

    Raises TunefaError where no kernel serves it.
    """
    if workload.op not in _OPS:
        raise TunefaError(f"the runtime has no call of the op {workload.op}")
    target, asked = chooser.target, looked_up.of_record(workload)
    base = chooser.unspecialized(asked)
    choice = chooser.specialized(base, asked)
    kernel = next(each for each in chooser.kernels if each.name == choice.kernel)
    case = Case(kernel, workload, target)
    changes = {} if workload.is_aligned else planning.unaligned_changes(choice.config, kernel)
    configs = {**choice.config, **changes}, {**base.config, **changes}
    if rule := case.refusal(configs[0]):
        raise TunefaError(f"{kernel.name}'s config for it is refused: {rule}")
    key = workload, target
    planned.plans[key] = Plan(
        target.arch.name, target.device.name, workload, kernel.name, *configs,
        choice.how, choice.why.replace(_HERE, _IN_BUNDLE), base.is_final, beside,
    )  # fmt: skip
    if choice.record is not None:
        planned.records[id(choice.record)] = choice.record
    for config in configs:
        for each in (case,) if planned.exact else lengths(case, config):
            digest = stored.digest(each, config, each.workload.is_aligned)
            planned.wanted.setdefault(digest, (each, config, key))


def lengths(case: Case, config: Config) -> Iterator[Case]:
    """Yields a case, and cases of other lengths of its family that the kernel serves with the
    config; among them is one for each binary that any lengths need.

    Binaries depend on lengths by whether blocks divide them alone (tests/contracts/test_families.py
    checks it), and those over a cache do not depend on them.
    """
    yield case
    if case.workload.op == "decode":
        return
    blocks = [v for name, v in config.items() if name.startswith("BLOCK") and v]
    whole = math.lcm(256, *(int(each) for each in blocks), 3)  # 64 rows of up to 3 warpgroups
    for rows in _BESIDE:
        for keys in _BESIDE:
            with contextlib.suppress(TunefaError):  # no workload
                workload = replace(case.workload, seqlen_q=whole + rows, seqlen_k=2 * whole + keys)
                other = replace(case, workload=workload)
                if other.why_not() is None and other.refusal(config) is None:
                    yield other


def _name_library(
    planned: Planned, workload: Workload, chooser: Chooser, lacking: dict[str, str]
) -> None:
    """Notes a library that would be chosen before the kernel that the bundle holds."""
    with contextlib.suppress(TunefaError):
        best = chooser.choose(looked_up.of_record(workload))
        kernel = next(each for each in chooser.kernels if each.name == best.kernel)
        if kernel.is_library and best.record is not None:
            planned.leave_out(
                f"{best.kernel} for {workload} on {chooser.target}",
                "it calls an installed library and has no binary, and was the fastest; "
                f"{planned.plans[workload, chooser.target].kernel} is there in its place",
            )
        elif best.kernel in lacking:
            planned.leave_out(
                f"{best.kernel} for {workload} on {chooser.target}", lacking[best.kernel]
            )


def _compiled(
    planned: Planned, workers: int | None, progress: Progress
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Compiles what the plans need; drops plans whose own config does not compile."""
    binaries: dict[str, Any] = {}
    images: dict[str, bytes] = {}
    processes = pool.compilers(min(workers or os.cpu_count() or 1, len(planned.wanted) or 1), False)
    try:
        pending: dict[str, Pending] = {}
        for digest, (case, config, _) in planned.wanted.items():
            pending[digest] = CompilePool(case, processes=processes).submit(config)
        for count, (digest, (case, config, key)) in enumerate(planned.wanted.items(), start=1):
            try:
                binaries[digest], more = _stored(case, config, pending[digest])
                images |= more
            except CompileError as error:
                planned.leave_out(f"{case.workload} on {case.target}", error)
                if case.workload == key[0]:
                    planned.plans.pop(key, None)
            progress(count, len(pending))
    finally:
        processes.stop()
    return binaries, images


def _stored(
    case: Case, config: Config, pending: Pending
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Waits for a config that another process compiles into the caches, and reads it from there.

    Raises CompileError if it does not compile.
    """
    trial = pending.trial()
    if trial.outcome != "ok":
        raise CompileError(f"{case.kernel.name} {dict(config)} does not compile: {trial.reason}")
    language = languages.load(case.kernel.language)
    compiled = language.compile(case, config, case.workload.is_aligned)
    return stored.stored(case, compiled)


def _provenance(kernel: Kernel) -> dict[str, Any]:
    """The source and the compilers of a kernel's binaries."""
    made = provenance.of(kernel)
    versions: dict[str, Any] = {name: made[name] for name in ("triton", "compiler") if name in made}
    return {"language": kernel.language, "source_hash": kernel.source_hash, **versions}
