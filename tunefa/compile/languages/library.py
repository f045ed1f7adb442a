"""Library: kernels that call an installed library, such as the cuDNN inside PyTorch.

They compete on a device like any other kernel, are checked like any other, and a record may say
that one of them is the fastest. They have no binary. So nothing predicts their time, and nothing
exports them; where a device is missing they are left out by name.

A kernel file in this language defines

* `LIBRARY`: the library's name in messages;
* `version() -> str | None`: the library and its version, such as "cudnn 91900", as provenance and
  lock files keep it; None where it is not installed;
* `run(tensors, spec) -> tuple`: calls the library on the tensors of a launch (see the op's module
  in `tunefa.measure.ops`), with heads first, and returns its outputs, in the order of the op, of
  the shapes of the tensors that stand for them. It writes to none of the tensors. `spec` is a
  `tunefa.compile.contract.LaunchSpec`;
* `is_aligned(tensors) -> bool`: True; a library's call copies what the library cannot read;
* optionally `UNREAD`: the names of inputs that the library takes for zeros, see
  `tunefa.compile.contract.unread`.

`run` alone imports the library, when it is called.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunefa.compile.contract import Compiled, CompileError, LaunchSpec
from tunefa.errors import TunefaError
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources

if TYPE_CHECKING:
    from torch import Tensor

OUTPUTS: Mapping[str, slice] = {
    "fwd": slice(3, 5),
    "bwd": slice(7, 10),
    "decode": slice(3, 5),
}
"""The tensors of a launch that the results are copied to, by op."""


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """Compiles nothing. Raises TunefaError where the library is not installed."""
    if why := why_not_installed(case.kernel):
        raise TunefaError(why)
    return Compiled(case.kernel.name, Resources, 0.0)


def binary_key(case: Case, config: Config, aligned: bool) -> Hashable:
    """Returns the kernel's name: there is no binary."""
    return case.kernel.name


def prepare(spec: LaunchSpec, compiled: Compiled, tensors: Sequence[Tensor]) -> LibraryLaunch:
    """Prepares a launch on tensors like these, by calling the library once.

    Raises CompileError where the library refuses them. The call is made in the caller's thread,
    for which cuDNN then has its plan; but while a graph is captured, apart from the capture.
    """
    import torch

    launch = LibraryLaunch(spec)
    try:
        if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
            from tunefa.compile.launch.prepared import apart

            apart(tensors[0].get_device(), lambda: launch.results(*tensors))
        else:
            launch.results(*tensors)
    except torch.OutOfMemoryError:  # another call may find the memory
        raise
    except Exception as error:  # a library may raise anything
        said = str(error).partition("\n")[0]
        library = spec.case.kernel.module.LIBRARY
        raise CompileError(f"{library} refuses {spec.workload}: {said}") from error
    return launch


@dataclass(frozen=True)
class LibraryLaunch:
    """A call of a library."""

    spec: LaunchSpec
    device_bytes = 0

    def __call__(self, *tensors: Tensor) -> None:
        """Calls the library, and copies its results to the outputs among the tensors."""
        outputs = tensors[OUTPUTS[self.spec.workload.op]]
        for output, result in zip(outputs, self.results(*tensors), strict=True):
            output.copy_(result)

    def results(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns the library's own results: the outputs of the op, of the shapes of those among
        the tensors, which it leaves as they are."""
        made: tuple[Tensor, ...] = self.spec.case.kernel.module.run(tensors, self.spec)
        return made


def why_no_interpreter() -> str:
    """Returns why a result cannot be checked without a device."""
    return "a library computes on a device only"


def why_not_installed(kernel: Kernel) -> str | None:
    """Returns why the library of a kernel cannot be called here; None if it can."""
    if kernel.module.version() is None:
        return f"{kernel.module.LIBRARY} is not installed"
    return None


def versions_of(kernel: Kernel) -> dict[str, str | None]:
    """Returns the version of the library that a kernel calls, as that of its `compiler`."""
    return {"compiler": kernel.module.version()}


def why_no_binary(kernel: Kernel) -> str:
    """Returns why a kernel takes no part where there is no device."""
    library: Any = kernel.module.LIBRARY
    return f"it calls {library}, whose time only a device tells"
