"""Triton: compiles for any NVIDIA arch without a driver. ptxas is in its wheel.

A kernel file in this language defines

* `variant(workload, config, aligned) -> dict`: `function`, a function that imports and returns the
  jit function; `signature`, `constants`, `aligned` (names of the arguments that are multiples of
  16) and `options`, those of the compiler. With `launch_pdl` the kernel may start while the
  kernel launched before it still runs (programmatic dependent launch), and waits for that itself;
* `arguments(tensors, spec) -> (grid, arguments)`, with the arguments in the signature's order;
  `spec` is a `tunefa.compile.contract.LaunchSpec` (workload, config, scale, softcap, sms). One of
  `tensors` may change from call to call; `(tensor, axis)` is the current length of that axis;
  `{"map": tensor, "box": sizes}` is a TMA descriptor of one of `tensors` for blocks of these sizes
  (with `shape` and `strides` if it describes another view). Other tensors are tables, which the
  host side makes once for each launch that is prepared;
* `is_aligned(tensors) -> bool`: whether the aligned variant may read the tensors;
* optionally `specialize(workload, config, sms) -> dict`: for a config that is the best of another
  workload, better values for this one, of parameters that only the host side reads.

If another kernel must run first in each call, the file also defines

* `preprocess(workload, config) -> dict | None`: the variant of that kernel, in Triton or, beside a
  kernel in Gluon, in Gluon; None if this config needs none;
* `scratch(tensors, spec)`: shapes and dtypes of memory that the kernels of a call share; it follows
  the call's own tensors in `tensors`;
* `preprocess_arguments(tensors, spec) -> (grid, arguments)`.

If another one must run last, it defines `scratch`, and `postprocess` and `postprocess_arguments`,
which are like those of the preprocess kernel. With `SCRATCH_ALONE = True` a kernel has that memory
also in configs without another one before or after it. Where outputs are sums in no fixed order,
`unordered(workload, config)` returns their names, such as ("dq",).

Only `function` imports Triton, when it is called: a binary can be launched without a compiler.

Binaries are launched as they were compiled, without Triton's just-in-time dispatch. So the binary
that was timed is the one that runs, and a call neither hashes its arguments nor compiles.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import time
from collections.abc import Hashable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefa.compile import triton_interpreter
from tunefa.compile import triton_tools as tools
from tunefa.compile.contract import Compiled, CompileError, Launch, LaunchSpec, variants
from tunefa.errors import TunefaError
from tunefa.spec.arch import Arch, GpuArch
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case
from tunefa.spec.trial import Config

if TYPE_CHECKING:
    from torch import Tensor

# The line "PTXAS error: Internal Triton PTX codegen error" comes before ptxas' own errors.
_TELLING = re.compile(r"\bfatal\b|(?<!PTXAS )\berror\s*:")
_VERSION = re.compile(r"""^__version__\s*=\s*["']([^"']+)""", re.MULTILINE)


def compile(case: Case, config: Config, aligned: bool = True) -> Compiled:
    """Compiles a config to a cubin for the case's arch.

    Raises CompileError, with the compiler's message, if it does not compile, and TunefaError if
    Triton is not installed or does not compile, see `why_no_compiler`.
    """
    return build(tools.installed().compiler.ASTSource, case, config, aligned)


def warm_up() -> None:
    """Imports the compiler, and lets Triton hash its own files, which the key of each binary
    holds."""
    cache = importlib.import_module(f"{tools.installed().__name__}.runtime.cache")
    getattr(cache, "triton_key", lambda: "")()  # where later versions have it, the first config


def why_no_compiler(arch: Arch) -> str | None:
    """Returns why Triton compiles nothing in this process, for any `arch`; None if it does."""
    value = os.environ.get("TRITON_INTERPRET", "")
    if value.lower() not in ("1", "true", "on"):
        return None
    return (
        f"TRITON_INTERPRET is {value!r} in the environment, so Triton interprets kernels and "
        f"compiles none: unset it; tunefa runs the interpreter by itself where it checks numerics"
    )


def binary_key(case: Case, config: Config, aligned: bool) -> Hashable:
    """Returns all inputs of the compiler, for each of `contract.variants`."""
    return case.kernel.name, *map(_seen, variants(case, config, aligned).values())


def _seen(variant: dict[str, Any]) -> Hashable:
    parts = (variant[name].items() for name in ("signature", "constants", "options"))
    return *map(tuple, parts), tuple(variant["aligned"])


def build(source_type: Any, case: Case, config: Config, aligned: bool) -> Compiled:
    """Does what `compile` does, for the language whose sources have the type `source_type`."""
    if why := why_no_compiler(case.arch):
        raise TunefaError(why)
    made, arch = variants(case, config, aligned), gpu(case.arch)
    start = time.perf_counter()
    built = {step: _binary(source_type, each, arch) for step, each in made.items()}
    resources = partial(tools.resources, *built.values())
    return Compiled(inspect=resources, seconds=time.perf_counter() - start, **built)


def _binary(source_type: Any, variant: dict[str, Any], arch: GpuArch) -> Any:
    """Compiles a `variant`. Raises CompileError if it does not compile."""
    triton = tools.installed()
    function = _function(variant)
    if not function.is_gluon():  # kernels in Gluon may have others in Triton beside them
        source_type = triton.compiler.ASTSource
    places = {name: (index,) for index, name in enumerate(function.arg_names)}
    source = source_type(
        fn=function,
        signature=variant["signature"],
        constexprs=variant["constants"],
        attrs={places[name]: [["tt.divisibility", 16]] for name in variant["aligned"]},
    )
    target = triton.backends.compiler.GPUTarget("cuda", arch.compiler_target, 32)
    try:
        binary = triton.compile(source, target=target, options=variant["options"])
    except Exception as error:  # the compiler's errors have no common class
        raise CompileError(_first_words(error)) from error
    tools.check_descriptors(binary)
    return binary


def _function(variant: dict[str, Any]) -> Any:
    """Returns the jit function of a `variant`. Raises CompileError if an import of it fails."""
    try:
        return variant["function"]()
    except ImportError as error:
        raise CompileError(
            f"the kernel's device code cannot be imported: {error}: install what it needs "
            f"(pip install 'triton>=3.6,<3.10')"
        ) from error


def prepare(spec: LaunchSpec, compiled: Compiled, tensors: Sequence[Tensor]) -> Launch:
    """Prepares a launch on `tensors` (see the kernel's `arguments`), or tensors of their layout.

    Loads the binary, apart from the caller's stream and graph capture. Raises CompileError if the
    device lacks resources for it.
    """
    # Imported late: it imports PyTorch, which processes that only compile do without.
    from tunefa.compile.launch.host_side import prepared

    return prepared(spec, compiled, tensors, _launch)


def _launch(binary: Any, host_side: Any, tensors: Sequence[Tensor]) -> Launch:
    """Prepares a launch of one binary with the arguments that its host side makes."""
    from tunefa.compile.launch import driver, triton_abi, triton_launch, triton_stored
    from tunefa.compile.launch.prepared import PreparedLaunch

    grid, arguments = host_side(tensors)
    _load(binary, grid)
    entry = triton_abi.entry(binary, tensors[0].get_device(), grid)
    made = triton_abi.parameters(binary, arguments, tensors)
    if entry is None or made is None:
        if isinstance(binary, triton_stored.StoredBinary):
            raise CompileError(f"{binary.metadata.name} starts by Triton's launcher alone")
        views = [(tensor.shape, tensor.stride()) for tensor in tensors]
        return triton_launch.TritonLaunch(binary, host_side, views)
    parameters, tables = made
    return PreparedLaunch(driver.load(), entry, len(tensors), parameters, tables)


def _load(binary: Any, grid: tuple[int, int, int]) -> None:
    """Loads a binary into the current context. Raises CompileError if the device lacks resources
    for it."""
    from tunefa.compile.launch import driver, triton_stored

    if isinstance(binary, triton_stored.StoredBinary):
        binary.load(driver.load())
        return
    try:
        binary[grid]  # loads the binary
    except tools.installed().runtime.errors.OutOfResources as error:
        raise CompileError(_first_words(error)) from error


def stored(binary: Any) -> tuple[bytes, dict[str, Any]]:
    """Returns the cubin of a binary and plain data, from which `restored` makes it again.

    Raises CompileError if only Triton's launcher can launch it.
    """
    from tunefa.compile.launch import triton_stored

    return triton_stored.stored(binary, f"Triton {tools.installed().__version__}")


def restored(image: bytes, data: dict[str, Any]) -> Any:
    """Returns the binary of which `stored` returned the parts. It needs no Triton."""
    from tunefa.compile.launch import triton_stored

    return triton_stored.restored(image, data)


def interpret(spec: LaunchSpec, tensors: Any) -> None:
    """Runs the launches of a call in Triton's interpreter, on CPU tensors.

    The process must have TRITON_INTERPRET=1 when it imports the kernel. Raises RuntimeError if the
    kernel fails.
    """
    from tunefa.compile.launch.interpreted import steps
    from tunefa.compile.launch.triton_launch import for_triton

    triton_interpreter.quicken()
    try:
        for variant, grid, arguments in steps(spec, tensors):
            _function(variant)[grid](*map(for_triton, arguments))
    except tools.installed().runtime.errors.InterpreterError as error:
        raise RuntimeError(f"the interpreter says {error}") from error


def why_no_interpreter() -> str | None:
    """Returns why `interpret` does not run with the installed versions; None if it does."""
    import numpy

    if find_spec("torch") is None:
        return (
            "Triton's interpreter computes with PyTorch, which is not installed: pip install torch"
        )
    triton_release, numpy_release = map(
        tools.release, (tools.installed().__version__, numpy.__version__)
    )
    if triton_release < (3, 7) and numpy_release >= (2, 4):
        return (
            f"the interpreter of Triton {tools.installed().__version__} breaks with numpy "
            f"{numpy.__version__}: pip install 'triton>=3.7,<3.10' or 'numpy<2.4'"
        )
    return None


def versions() -> dict[str, str]:
    """Returns the versions of `triton` and of `compiler`, the ptxas in its wheel."""
    return {"triton": tools.installed().__version__, "compiler": tools.compiler()}


def quick_versions() -> dict[str, str | None]:
    """Returns the version of `triton`, read from its file; None if it is not installed."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return {"triton": None}
    named = _VERSION.search(Path(found.origin).read_text(encoding="utf-8", errors="replace"))
    return {"triton": named[1] if named else tools.installed().__version__}


def _first_words(error: Exception) -> str:
    """Returns the reason of a failure in one line: an error of ptxas or MLIR, or the last line.

    Triton's own errors begin with the place and end with the reason, or are raised from it.
    """
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    said = [line for line in str(cause).splitlines() if line.strip("^ ")]
    lines = [line for line in said if not line.startswith("Repro command:")] or [""]
    telling = [line for line in lines if _TELLING.search(line)]
    telling += [line for line in lines if line.startswith("PTXAS error:")]  # its exit status
    return " ".join(f"{type(cause).__name__}: {[*telling, lines[-1]][0]}".split())[:300]
