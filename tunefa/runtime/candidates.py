"""The kernels that can compute a job: their compiler is installed, and they read its tensors."""

from __future__ import annotations

from collections.abc import Sequence

from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.runtime.job import Job, P
from tunefa.spec.arch import Arch
from tunefa.spec.kernel import Kernel
from tunefa.spec.workload import Workload


def compilable(kernels: Sequence[Kernel], arch: Arch) -> Sequence[Kernel]:
    """The kernels whose compiler or library is installed; all of them if none is."""
    lacking = languages.without_compiler(kernels, arch)
    return [kernel for kernel in kernels if kernel.name not in lacking] or kernels


def readable(
    job: Job[P], workload: Workload, arch: Arch, kernels: Sequence[Kernel]
) -> Sequence[Kernel]:
    """The kernels that can read the job's tensors, by their alignment and by `Job.why_not`.

    Raises TunefaError where no such kernel serves the workload.
    """
    unreadable = {
        each.name: why
        for each in kernels
        if each.why_not(workload, arch) is None and (why := why_unreadable(job, each))
    }
    rest = [each for each in kernels if each.name not in unreadable]
    if unreadable and all(each.why_not(workload, arch) for each in rest):
        why = "; ".join(
            f"{each.name}: {unreadable.get(each.name) or each.why_not(workload, arch)}"
            for each in kernels
        )
        raise TunefaError(f"no kernel reads these tensors of {workload} on {arch.name} ({why})")
    return rest


def why_unreadable(job: Job[P], kernel: Kernel) -> str | None:
    """Returns why a kernel cannot read the job's tensors; None if it can."""
    if isinstance(kernel.unaligned, str) and not is_aligned(job, kernel):
        return kernel.unaligned
    return job.why_not(kernel)


def is_aligned(job: Job[P], kernel: Kernel) -> bool:
    tensors = job.tensors()
    # An expanded tensor has a stride of 0. No source says that TMA takes one. A gradient of the
    # logsumexp that is one zero has strides of 0 alone, and no kernel reads it by TMA.
    expanded = any(
        step == 0 and size > 1
        for tensor in tensors
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        if any(tensor.stride())
    )
    return not expanded and bool(kernel.module.is_aligned(tensors))
