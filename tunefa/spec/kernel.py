"""A kernel: a file in `kernels/`, with its search space. The file is imported when it is needed."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tunefa import assets
from tunefa.errors import TunefaError, unknown
from tunefa.spec import shared_memory, space_file
from tunefa.spec import space as spaces
from tunefa.spec.arch import Arch
from tunefa.spec.default import Default
from tunefa.spec.space import Space
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

_PACKAGE = "tunefa.kernels"
_IMPORT = re.compile(
    rf"^[ \t]*from {re.escape(_PACKAGE)}\.([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE
)
_NAME = re.compile(r"\w+")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


class KernelImportError(TunefaError):
    """The source of a kernel imports what is not installed."""


@dataclass(frozen=True)
class Kernel:
    """The source and the search space of one kernel template.

    Only `module` imports the source; all other properties and methods read files.
    """

    name: str
    source: Path
    space: Space

    @property
    def op(self) -> str:
        """The operation that it computes, as `Workload.op` names it: `fwd`."""
        return self.space.op

    @property
    def language(self) -> str:
        """The name of the module in `tunefa.compile.languages` that compiles it."""
        return self.space.language

    @property
    def is_library(self) -> bool:
        """Whether it calls an installed library. It has no binary and no prediction then."""
        return self.language == space_file.LIBRARY

    def priority(self, workload: Workload, arch: Arch) -> int:
        """The rank where no record applies: of kernels that serve the workload on the arch, the one
        with the lowest number runs."""
        if arch.name in self.space.priority_on:
            return self.space.priority_on[arch.name]
        rank = self.space.priority
        return int(rank({**workload.env(), **arch.env()} if rank.names else {}))

    @property
    def unaligned(self) -> Mapping[str, Any] | str:
        """The parameters for tensors that are not aligned, or why it cannot read such tensors."""
        return self.space.unaligned

    @functools.cached_property
    def source_hash(self) -> str:
        """The first 16 hex digits of a SHA-256 of its `sources`, sorted by path, and of the shared
        memory's layout in its search space, which is compiled into the kernel."""
        digest = hashlib.sha256()
        for path in self.sources:
            digest.update(path.read_bytes())
        space = self.space
        digest.update(shared_memory.source(space.shared_memory_exprs, space.define).encode())
        return digest.hexdigest()[:16]

    @functools.cached_property
    def sources(self) -> tuple[Path, ...]:
        """The files with its name, and the files in `kernels/` that they include or import, inside
        functions too."""
        folder, patterns, found = self.source.parent, [f"{self.name}.*"], set[Path]()
        while patterns:
            new = {path for path in folder.glob(patterns.pop()) if path.is_file()} - found
            found |= new
            for path in new:
                patterns += _needed(path.read_text(errors="replace"))
        return tuple(sorted(found))

    @functools.cached_property
    def module(self) -> ModuleType:
        """The imported host side. Importing it imports no compiler.

        Raises KernelImportError if it needs what is not installed.
        """
        qualified = f"{_PACKAGE}.{self.name}"
        if qualified in sys.modules:
            return sys.modules[qualified]
        _open_folder(self.source.parent)
        spec = importlib.util.spec_from_file_location(qualified, self.source)
        assert spec is not None and spec.loader is not None  # `load` has found the .py file
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[qualified]  # a partly executed module must not be found again
            if not isinstance(error, ImportError):
                raise
            raise KernelImportError(
                f"kernel {self.name} cannot be imported: {error}: install what it needs "
                f"(pip install 'triton>=3.6,<3.10')"
            ) from error
        return module

    def check(self) -> None:
        """Imports the host side. Raises TunefaError, with the reason and the place, if it fails."""
        try:
            _ = self.module
        except TunefaError:
            raise
        except Exception as error:  # code from kernels/ may raise anything
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename}:{place.lineno}"
            if isinstance(error, SyntaxError):
                where = f"{error.filename}:{error.lineno}"
            raise TunefaError(
                f"{where}: kernel {self.name} cannot be imported: {type(error).__name__}: {error}: "
                "correct the file or move it away"
            ) from error

    def why_not(self, workload: Workload, arch: Arch) -> str | None:
        """Returns why it does not serve the workload on the arch; None if it does."""
        return self.space.why_not(workload, arch)

    def refusal(self, config: Config, workload: Workload, arch: Arch) -> str | None:
        """Returns the first rule that refuses the config; None if the config is feasible."""
        return self.space.refusal(config, workload, arch)

    def default(self, workload: Workload, arch: Arch) -> dict[str, Any]:
        """Returns the config to run without a search. Raises TunefaError if there is none."""
        return self.space.default(workload, arch)

    def first_default(self, workload: Workload, arch: Arch) -> Default:
        """Returns the default with where it was measured. Raises TunefaError if there is none."""
        return self.space.first_default(workload, arch)


def _needed(source: str) -> Iterator[str]:
    """Yields patterns for the files that `source` imports or includes, relative to `kernels/`."""
    for module, imported in _IMPORT.findall(source):
        # `from tunefa.kernels.folder import name` may import a module of that folder.
        for name in (module, *(f"{module}.{name}" for name in _NAME.findall(imported))):
            yield f"{name.replace('.', '/')}.*"
    yield from _INCLUDE.findall(source)


def _open_folder(folder: Path) -> None:
    """Lets kernels import shared modules from `tunefa.kernels`: `kernels/` is not a package.

    Folders that were opened earlier are searched after it, for device code that is imported later.
    """
    package = sys.modules.setdefault(_PACKAGE, ModuleType(_PACKAGE))
    before = [path for path in getattr(package, "__path__", []) if path != str(folder)]
    package.__path__ = [str(folder), *before]


def names() -> list[str]:
    """Returns the names of all kernels: the Python files in `kernels/` with a search space."""
    known = set(spaces.names())
    return sorted(p.stem for p in assets.root("kernels").glob("*.py") if p.stem in known)


def load(name: str) -> Kernel:
    """Returns the kernel with that name. Raises TunefaError if there is none."""
    if name not in names():
        raise unknown("kernel", name, names())
    return _load(name)


def _load(name: str) -> Kernel:
    """Loads a kernel that is there: to list all of them takes a ms."""
    path = assets.root("search_spaces") / f"{name}.yaml"
    written = path.stat()
    space = _space(path, written.st_mtime_ns, written.st_size)
    return Kernel(name, assets.root("kernels") / f"{name}.py", space)


@functools.lru_cache(maxsize=128)
def _space(path: Path, written_ns: int, size: int) -> Space:
    """Returns the space in a file, which takes 5 ms to parse; the same one until it is written."""
    return spaces.read(path)


def usable() -> list[Kernel]:
    """Returns the kernels whose files can be read and imported, sorted by name.

    The others are left out, with a warning: a broken kernel must not stop those that work.
    """
    found = []
    for name in names():
        try:
            kernel = _load(name)
            kernel.check()
            found.append(kernel)
        except TunefaError as error:
            warnings.warn(f"kernel {name} is left out: {error}", stacklevel=2)
    return found


def serving(
    workload: Workload, arch: Arch, only: Sequence[str] = (), libraries: bool = False
) -> list[Kernel]:
    """Returns the kernels that serve the workload on the arch, sorted by their priority there.

    If `only` names kernels, they alone are considered, in that order. Else kernels that are not
    `usable` are left out, and those that call an installed library unless `libraries`. Raises
    TunefaError if no kernel serves the workload, with the reason for each kernel, and if a kernel
    that is named cannot be read or imported.
    """
    kernels = [load(name) for name in only]
    if not only:
        kernels = [each for each in usable() if libraries or not each.is_library]
    for kernel in kernels if only else ():
        kernel.check()
    reasons = {kernel.name: kernel.why_not(workload, arch) for kernel in kernels}
    serving = [kernel for kernel in kernels if reasons[kernel.name] is None]
    if not only:
        serving.sort(key=lambda each: each.priority(workload, arch))
    if not serving:
        # The message leaves out kernels of other ops and for other vendors' chips, unless there are
        # no others.
        same = [kernel for kernel in kernels if kernel.op == workload.op] or kernels
        near = [kernel.name for kernel in same if kernel.space.vendor == arch.vendor]
        why = "; ".join(f"{name}: {reasons[name]}" for name in near or [each.name for each in same])
        raise TunefaError(f"no kernel serves {workload} on {arch.name} ({why})")
    return serving
