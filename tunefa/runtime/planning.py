"""Chooses what runs a job, the forward pass of a call or its gradients, and makes its plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from tunefa.compile import languages
from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec
from tunefa.compile.serving import Installed
from tunefa.errors import TunefaError
from tunefa.runtime import candidates, choose
from tunefa.runtime.argument_checks import DTYPES
from tunefa.runtime.chip import Chip
from tunefa.runtime.choice import Chosen
from tunefa.runtime.family import Family
from tunefa.runtime.job import Job, P
from tunefa.runtime.kernel_plan import Launches
from tunefa.runtime.lock_file import LockFile
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import DTYPES as WORKLOAD_DTYPES
from tunefa.spec.workload import Workload
from tunefa.store.lookup import Choice
from tunefa.store.results import Store

PYTORCH = "pytorch"
_MAX_STRIDE = 2**31
"""Kernels take strides as 32-bit integers, except that of the batch."""

Choices = dict[tuple[Workload, Target, tuple[str, ...]], Choice]
"""The choice for a workload on a target among kernels of these names."""
Compile = Callable[[Case, Config, bool], Compiled]
"""Compiles a config for tensors that are aligned, or not; see `tunefa.runtime.compiled`."""


def pytorch_plan(job: Job[P], why: str, workload: Workload | None = None) -> P:
    """The plan that runs a job in PyTorch; `why` is the reason why no kernel runs it."""
    return job.in_pytorch(Chosen(PYTORCH, {}, "pytorch", f"{PYTORCH}: {why}", workload))


def best_plan(
    job: Job[P],
    chip: Chip,
    store: Store,
    kernels: Sequence[Kernel],
    compile: Compile,
    choices: Choices | None = None,
) -> P:
    """The plan for a job on a chip: with the config that lookup finds; if that does not compile,
    with the kernel's default; then with the other kernels, in the same way; else in PyTorch.

    `choices` are those that were made before, for jobs that ask for the same workload each time.
    Warns where a config does not compile, as the call is slower then than it could be.
    """
    made = {} if choices is None else choices

    def choice_of(left: Sequence[Kernel]) -> Choice:
        key = job.asked(), target, tuple(each.name for each in left)
        if key not in made:
            made[key] = choose.choose(store, key[0], target, left)
        return made[key]

    try:
        workload, target = served(job, chip)
        left = candidates.readable(
            job, workload, target.arch, candidates.compilable(kernels, target.arch)
        )
        choice = choice_of(left)
    except TunefaError as error:
        return pytorch_plan(job, str(error))
    reasons: list[str] = []
    while True:
        case = Case(next(each for each in left if each.name == choice.kernel), workload, target)
        try:
            return _first_that_compiles(job, choice, case, compile)
        except TunefaError as error:  # there is no compiler, say
            reasons.append(str(error))
        left = [each for each in left if each is not case.kernel]
        try:
            choice = choice_of(left)
        except TunefaError:  # no other kernel serves the workload
            break
    why = "; ".join(dict.fromkeys(reasons))
    warnings.warn(f"{job.what} in PyTorch: {why}", stacklevel=2)
    return pytorch_plan(job, why, workload)


def family(job: Job[P], chip: Chip, store: Store, kernels: Sequence[Kernel]) -> Family:
    """The family of a job's workload, with the kernels that may serve its calls.

    Raises TunefaError where no kernel can serve the job.
    """
    workload, target = served(job, chip)
    compilable = candidates.compilable(kernels, target.arch)
    left = [each for each in compilable if candidates.why_unreadable(job, each) is None]
    return Family(store, workload, target, left)


def _first_that_compiles(job: Job[P], choice: Choice, case: Case, compile: Compile) -> P:
    """The plan with the choice's config, or else with the kernel's default.

    Warns of a config that does not compile. Raises TunefaError if neither does.
    """
    kernel = case.kernel
    aligned = candidates.is_aligned(job, kernel)
    for chosen in configs_to_try(choice, case, aligned):
        try:
            compiled = compile(case, chosen.config, aligned)
            return prepared(job, chosen, case, compiled)
        except CompileError as error:
            warnings.warn(f"{kernel.name} {chosen.config} is not used: {error}", stacklevel=3)
    raise TunefaError(f"no config of {kernel.name} runs {case.workload} on {case.arch.name}")


def frozen_plan(
    job: Job[P], chip: Chip, lock: LockFile, installed: Installed, compile: Compile
) -> P:
    """The plan for a job on a chip with exactly the config of a lock file's record.

    Raises TunefaError where there is no record, or its config cannot run.
    """
    try:
        workload, target = served(job, chip)
    except TunefaError as error:
        q, k = job.call.q, job.call.k
        what = f"call with q {tuple(q.shape)}, k {tuple(k.shape)}, {q.dtype}"
        raise lock.serves_no(f"{what} on {chip.name}", str(error)) from None
    record = lock.exact(job.asked(), target)
    kernel, remark = lock.kernel(record, target, installed)
    case = Case(kernel, workload, target)
    why = f"exact: frozen to {lock.path}, measured on {record.device} for {workload}"
    why += f"; {remark}" if remark else ""
    found = Chosen(kernel.name, dict(record.config), "exact", why, workload)
    try:
        if why_not := job.why_not(kernel):
            raise TunefaError(why_not)
        aligned = candidates.is_aligned(job, kernel)
        if not aligned and (needed := unaligned_changes(found.config, kernel)):
            parts = ", ".join(f"{name} is {found.config[name]}" for name in needed)
            raise TunefaError(f"{parts}, and the tensors are not 16-byte aligned: copy them")
        compiled = compile(case, found.config, aligned)
        return prepared(job, found, case, compiled)
    except (CompileError, TunefaError) as error:
        raise lock.cannot(record, str(error)) from error


def prepared(job: Job[P], chosen: Chosen, case: Case, compiled: Compiled) -> P:
    """Returns the plan with a compiled config.

    Raises CompileError where the language's `prepare` does.
    """
    language = languages.load(case.kernel.language)
    softcap = job.call.softcap  # not `job`: the plan keeps `prepare`, and must not keep tensors

    def prepare(tensors: Sequence[Tensor], scale: float) -> Launch:
        spec = LaunchSpec(case, chosen.config, scale, softcap)
        launch: Launch = language.prepare(spec, compiled, tensors)
        return launch

    tensors = job.tensors()
    usual = prepare(tensors, float(case.workload.head_dim**-0.5))
    return job.plan(chosen, Launches(tensors[0].get_device(), usual, prepare))


def configs_to_try(choice: Choice, case: Case, aligned: bool) -> Iterator[Chosen]:
    """Yields the configs to try: the one that lookup found, then the kernel's default.

    Where the tensors are not `aligned`, they have the parameters that the kernel needs for such
    tensors. A config that the space refuses is left out.
    """
    workload = case.workload
    found = Chosen(choice.kernel, dict(choice.config), choice.how, choice.why, workload)
    yield from _feasible(found, case, aligned)
    if choice.how != "default":
        why = f"default: the config that was found cannot run here ({choice.why})"
        default = Chosen(choice.kernel, case.default(), "default", why, workload)
        yield from _feasible(default, case, aligned)


def _feasible(chosen: Chosen, case: Case, aligned: bool) -> Iterator[Chosen]:
    config = chosen.config
    if not aligned and (needed := unaligned_changes(config, case.kernel)):
        changes = ", ".join(f"{name} is {needed[name]}, not {config[name]}" for name in needed)
        why = f"{chosen.why}; {changes}: the tensors are not 16-byte aligned"
        chosen = replace(chosen, config={**config, **needed}, why=why)
    if case.refusal(chosen.config) is None:
        yield chosen


def unaligned_changes(config: Config, kernel: Kernel) -> dict[str, Any]:
    """Returns the parameters to change, with their new values, for tensors that are not aligned.

    Raises TunefaError where the kernel cannot read such tensors.
    """
    if isinstance(kernel.unaligned, str):
        raise TunefaError(kernel.unaligned)
    return {
        name: value for name, value in kernel.unaligned.items() if config.get(name, value) != value
    }


def served(job: Job[P], chip: Chip) -> tuple[Workload, Target]:
    """The workload and target to look up. Raises TunefaError where no kernel can serve the job."""
    if chip.target is None:
        raise TunefaError(chip.why_not)
    call = job.call
    if call.empty:
        raise TunefaError("a tensor is empty: there is nothing to compute")
    if DTYPES[call.q.dtype] not in WORKLOAD_DTYPES:
        raise TunefaError(f"no kernel takes {call.q.dtype}")
    for name, tensor in job.inputs.items():
        if max(tensor.stride()[1:]) >= _MAX_STRIDE:
            raise TunefaError(f"{name} has strides {tensor.stride()}, too large for 32 bits")
    return job.workload(), chip.target
