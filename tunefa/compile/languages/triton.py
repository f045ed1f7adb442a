"""Triton: cross-compiles for any NVIDIA target without a driver; its wheel carries ptxas.

A kernel file in this language defines

* `variant(workload, config, aligned) -> dict`: `function`, which returns the jit function when it
  is called; `signature`, `constants`, `aligned` (names of the arguments that are multiples of 16)
  and `options`;
* `arguments(tensors, spec) -> (grid, arguments)`, in the signature's order; `spec` is a
  `tunefa.compile.contract.LaunchSpec` (workload, config, scale, softcap, sms). Arguments that are
  or describe one of `tensors` change from call to call. `(tensor, axis)` is how long that axis is
  then. `{"map": tensor, "box": sizes}` is a TMA descriptor of one of `tensors` for blocks of these
  sizes (`shape` and `strides`, where it is viewed as another). Other tensors are tables that the
  kernel's host side makes, once a launch;
* `is_aligned(tensors) -> bool`: whether the aligned variant may read them;
* optionally `specialize(workload, config, sms) -> dict`: what a config that is best for another
  workload should have for this one, of parameters that only the host side reads.

One that needs another kernel to run first in each call also defines

* `preprocess(workload, config) -> dict | None`: that kernel's variant, in Triton; None without;
* `scratch(tensors, spec)`: shapes and dtypes of the memory that the two share, for the
  call's tensors: they come after these in `tensors`;
* `preprocess_arguments(tensors, spec) -> (grid, arguments)`.

None of these imports Triton; only `function` does, when it is called. So a binary can be launched
where no compiler is installed.

Binaries are launched as compiled, past Triton's just-in-time dispatch: what was timed is what runs,
and a call neither hashes its arguments nor compiles again.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec, variants
from tunefa.errors import TunefaError
from tunefa.spec.arch import GpuArch
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources

if TYPE_CHECKING:
    from torch import Tensor

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
# "PTXAS error: Internal Triton PTX codegen error" stands above what ptxas itself says.
_TELLING = re.compile(r"\bfatal\b|(?<!PTXAS )\berror\s*:")
_SPILL_STORE = re.compile(r"\bSTL(?:\.(\d+))?\b")


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """Returns the config as a cubin for the case's arch, with the resources that it got.

    Raises CompileError when the compiler refuses it, with the compiler's own words, and TunefaError
    when there is no compiler.
    """
    return build(installed().compiler.ASTSource, case, config, aligned)


def binary_key(case: Case, config: Config, aligned: bool) -> Hashable:
    """Everything of a `variant`, and of what runs first, that the compiler sees."""
    return case.kernel.name, *map(_seen, variants(case, config, aligned))


def _seen(variant: dict[str, Any]) -> Hashable:
    parts = (variant[name].items() for name in ("signature", "constants", "options"))
    return *map(tuple, parts), tuple(variant["aligned"])


def build(source_type: Any, case: Case, config: Config, aligned: bool) -> Compiled:
    """As `compile`, from the kind of source that the kernel's language begins with."""
    variant, *first = variants(case, config, aligned)
    arch = gpu(case.arch)
    start = time.perf_counter()
    binary = _binary(source_type, variant, arch)
    preprocess = _binary(installed().compiler.ASTSource, first[0], arch) if first else None
    seconds = time.perf_counter() - start
    return Compiled(binary, partial(_resources, binary), seconds, preprocess)


def _binary(source_type: Any, variant: dict[str, Any], arch: GpuArch) -> Any:
    """A `variant` through Triton's pipeline."""
    triton = installed()
    function = _function(variant)
    places = {name: (index,) for index, name in enumerate(function.arg_names)}
    source = source_type(
        fn=function,
        signature=variant["signature"],
        constexprs=variant["constants"],
        attrs={places[name]: [["tt.divisibility", 16]] for name in variant["aligned"]},
    )
    target = triton.backends.compiler.GPUTarget("cuda", arch.target, 32)
    try:
        return triton.compile(source, target=target, options=variant["options"])
    except Exception as error:  # the compiler's failures have no common class
        raise CompileError(_first_words(error)) from error


def _function(variant: dict[str, Any]) -> Any:
    """The jit function of a `variant`. Raises TunefaError where what it imports is missing."""
    try:
        return variant["function"]()
    except ImportError as error:
        raise TunefaError(
            f"the kernel's device code cannot be imported: {error}: install what it needs "
            f"(pip install 'triton>=3.6,<3.10')"
        ) from error


def prepare(spec: LaunchSpec, compiled: Compiled, tensors: Sequence[Tensor]) -> Launch:
    """A launch on `tensors` (see the kernel's `arguments`) or others like them.

    Loads the binary, past the caller's stream and capture. Raises CompileError when the device has
    too little of something for it.
    """
    # It imports PyTorch, which takes a process that only compiles a second or two.
    from tunefa.compile.launch.host_side import prepared

    return prepared(spec, compiled, tensors, _launch)


def _launch(binary: Any, host_side: Any, tensors: Sequence[Tensor]) -> Launch:
    """A launch of one binary with what its host side makes of tensors like these."""
    from tunefa.compile.launch import driver, triton_abi
    from tunefa.compile.launch.prepared import PreparedLaunch

    grid, arguments = host_side(tensors)
    try:
        binary[grid]  # loads it
    except installed().runtime.errors.OutOfResources as error:
        raise CompileError(_first_words(error)) from error
    entry = triton_abi.entry(binary, tensors[0].get_device(), grid)
    made = triton_abi.parameters(binary, arguments, tensors)
    if entry is None or made is None:
        views = [(tensor.shape, tensor.stride()) for tensor in tensors]
        return TritonLaunch(binary, host_side, views)
    parameters, tables = made
    return PreparedLaunch(driver.load(), entry, len(tensors), parameters, tables, binary)


class TritonLaunch:
    """A launch through Triton's own launcher, for kernels that need more than a plain one.

    It takes 40 to 100 us of the host's time.
    """

    device_bytes = 0

    def __init__(self, binary: Any, host_side: Any, views: Sequence[Any]) -> None:
        self._binary, self._host_side, self._views = binary, host_side, views

    def __call__(self, *tensors: Tensor) -> None:
        """Starts it; see `tunefa.compile.contract.Launch`."""
        each = zip(tensors, self._views, strict=True)
        grid, arguments = self._host_side([tensor.as_strided(*view) for tensor, view in each])
        self._binary[grid](*map(_for_triton, arguments))


def _for_triton(argument: Any) -> Any:
    """An argument as Triton's launcher and interpreter take it."""
    if not isinstance(argument, dict):
        return argument
    from triton.tools.tensor_descriptor import TensorDescriptor

    tensor, box = argument["map"], argument["box"]
    shape, strides = argument.get("shape", tensor.shape), argument.get("strides", tensor.stride())
    return TensorDescriptor(tensor, list(shape), list(strides), list(box))


def interpret(spec: LaunchSpec, tensors: Any) -> None:
    """Runs it in Triton's interpreter, on CPU tensors.

    Triton decides when a kernel is imported: the process must have had TRITON_INTERPRET=1 then.
    Raises RuntimeError when the kernel fails there.
    """
    case = spec.case
    variant = case.kernel.module.variant(case.workload, spec.config)
    grid, arguments = spec.arguments(tensors)
    try:
        _function(variant)[grid](*map(_for_triton, arguments))
    except installed().runtime.errors.InterpreterError as error:
        raise RuntimeError(f"the interpreter says {error}") from error


def why_no_interpreter() -> str | None:
    """Why `interpret` does not run with what is installed, and what to do; None if it does."""
    import numpy

    triton_release, numpy_release = map(_release, (installed().__version__, numpy.__version__))
    if triton_release < (3, 7) and numpy_release >= (2, 4):
        return (
            f"the interpreter of Triton {installed().__version__} breaks with numpy "
            f"{numpy.__version__}: pip install 'triton>=3.7,<3.10' or 'numpy<2.4'"
        )
    return None


def versions() -> dict[str, str]:
    """`triton` and `compiler`, the ptxas inside its wheel."""
    triton = installed()
    output = _tool("ptxas", "--version")
    release = re.search(r"V(\d+\.\d+\.\d+)", output)
    return {"triton": triton.__version__, "compiler": f"ptxas {release[1] if release else '?'}"}


def _release(version: str) -> tuple[int, ...]:
    """(3, 7) of "3.7.1+git"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def installed() -> Any:
    """Triton. Raises TunefaError where it cannot be imported."""
    try:
        import triton
        import triton.backends.compiler
        import triton.compiler
    except ImportError as error:
        raise TunefaError(
            f"no compiler found: Triton cannot be imported ({error}): "
            f"pip install 'triton>=3.6,<3.10' (Linux)"
        ) from error
    return triton


def _tool(name: str, *arguments: str) -> str:
    """Standard output of a program in Triton's wheel. Raises TunefaError where it is missing."""
    path = Path(installed().__file__).parent / "backends" / "nvidia" / "bin" / name
    try:
        return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise TunefaError(
            f"no compiler found: {path} does not run ({error}): reinstall triton from its wheel"
        ) from error


def _resources(binary: Any) -> Resources:
    """Shared memory as Triton allocated it, the rest as cuobjdump reads it from the cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage = _USAGE.search(_tool("cuobjdump", "--dump-resource-usage", file.name))
        if usage is None:
            raise CompileError("cuobjdump prints no resource usage for this cubin")
        registers, stack_bytes = int(usage[1]), int(usage[2])
        spill_bytes = 0
        if stack_bytes:  # disassembling takes longer than all the rest: only where it can matter
            sass = _tool("cuobjdump", "--dump-sass", file.name)
            spill_bytes = sum(int(width or 32) // 8 for width in _SPILL_STORE.findall(sass))
    return Resources(binary.metadata.shared, registers, spill_bytes, stack_bytes)


def _first_words(error: Exception) -> str:
    """One line that says why: the line of ptxas' or MLIR's error where there is one.

    Triton's own errors begin with the place, show the source and end with the reason, or were
    raised from it.
    """
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line for line in str(cause).splitlines() if line.strip("^ ")] or [""]
    telling = [line for line in lines if _TELLING.search(line)]
    return " ".join(f"{type(cause).__name__}: {[*telling, lines[-1]][0]}".split())[:300]
