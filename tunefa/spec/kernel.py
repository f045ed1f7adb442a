"""A kernel: one file in `kernels/` with its search space; imported by path, when it runs."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from tunefa import assets
from tunefa.errors import TunefaError, unknown
from tunefa.spec import space as spaces
from tunefa.spec.arch import Arch
from tunefa.spec.space import Space
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

_PACKAGE = "tunefa.kernels"
_IMPORT = re.compile(
    rf"^[ \t]*from {re.escape(_PACKAGE)}\.([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE
)
_NAME = re.compile(r"\w+")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Kernel:
    """Source and space of one template. The source is not imported to answer what it serves."""

    name: str
    source: Path
    space: Space

    @property
    def op(self) -> str:
        """What it computes, as workloads name it: `fwd`."""
        return self.space.op

    @property
    def language(self) -> str:
        """The module of `tunefa.compile.languages` that compiles it."""
        return self.space.language

    @property
    def priority(self) -> int:
        """Its place among kernels of which nothing is known: the lowest runs."""
        return self.space.priority

    @property
    def unaligned(self) -> Mapping[str, Any] | str:
        """What parameters are for tensors that are not aligned, or why it cannot read these."""
        return self.space.unaligned

    @cached_property
    def source_hash(self) -> str:
        """First 16 hex digits of the SHA-256 of its `sources`, in the order of their names."""
        digest = hashlib.sha256()
        for path in self.sources:
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    @cached_property
    def sources(self) -> tuple[Path, ...]:
        """The files of its name, and what they import, inside functions too, or include from the
        same folder."""
        folder, patterns, found = self.source.parent, [f"{self.name}.*"], set[Path]()
        while patterns:
            new = {path for path in folder.glob(patterns.pop()) if path.is_file()} - found
            found |= new
            for path in new:
                patterns += _needed(path.read_text(errors="replace"))
        return tuple(sorted(found))

    @cached_property
    def module(self) -> ModuleType:
        """The imported source, its host side: this imports no compiler."""
        qualified = f"{_PACKAGE}.{self.name}"
        if qualified in sys.modules:
            return sys.modules[qualified]
        _open_folder(self.source.parent)
        spec = importlib.util.spec_from_file_location(qualified, self.source)
        assert spec is not None and spec.loader is not None  # a .py file that `load` has seen
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[qualified]  # half a module must not pass for the whole one
            if not isinstance(error, ImportError):
                raise
            raise TunefaError(
                f"kernel {self.name} cannot be imported: {error}: install what it needs "
                f"(pip install 'triton>=3.6,<3.10')"
            ) from error
        return module

    def why_not(self, workload: Workload, arch: Arch) -> str | None:
        """Why it does not serve the workload on the arch, in words; None if it does."""
        return self.space.why_not(workload, arch)

    def refusal(self, config: Config, workload: Workload, arch: Arch) -> str | None:
        """The first rule that refuses the config there; None if it is feasible."""
        return self.space.refusal(config, workload, arch)

    def default(self, workload: Workload, arch: Arch) -> dict[str, Any]:
        """The config that is sound without a search. Raises TunefaError when there is none."""
        return self.space.default(workload, arch)


def _needed(source: str) -> Iterator[str]:
    """Patterns of the files that one needs, by their path from the folder of kernels."""
    for module, imported in _IMPORT.findall(source):
        # What a folder is asked for are modules.
        for name in (module, *(f"{module}.{name}" for name in _NAME.findall(imported))):
            yield f"{name.replace('.', '/')}.*"
    yield from _INCLUDE.findall(source)


def _open_folder(folder: Path) -> None:
    """Lets kernels import what they share from `tunefa.kernels`: their folder is no package.

    Folders that were opened before stay behind it, for device code that is imported later.
    """
    package = sys.modules.setdefault(_PACKAGE, ModuleType(_PACKAGE))
    before = [path for path in getattr(package, "__path__", []) if path != str(folder)]
    package.__path__ = [str(folder), *before]


def names() -> list[str]:
    """All kernels: the Python files in `kernels/` that have a space."""
    known = set(spaces.names())
    return sorted(p.stem for p in assets.root("kernels").glob("*.py") if p.stem in known)


def load(name: str) -> Kernel:
    """The kernel of that name. Raises TunefaError for an unknown one, suggesting the nearest."""
    if name not in names():
        raise unknown("kernel", name, names())
    return Kernel(name, assets.root("kernels") / f"{name}.py", spaces.load(name))


def serving(workload: Workload, arch: Arch, only: Sequence[str] = ()) -> list[Kernel]:
    """The kernels that serve the workload on the arch, of those named in `only` if any are; else in
    their `priority`.

    Raises TunefaError when none does, with each one's reason.
    """
    ordered = sorted(map(load, () if only else names()), key=lambda kernel: kernel.priority)
    kernels = ordered or [load(name) for name in only]
    reasons = {kernel.name: kernel.why_not(workload, arch) for kernel in kernels}
    serving = [kernel for kernel in kernels if reasons[kernel.name] is None]
    if not serving:
        # Of those for other vendors' chips there is nothing to say, unless there are no others.
        near = [kernel.name for kernel in kernels if kernel.space.vendor == arch.vendor]
        why = "; ".join(f"{name}: {reasons[name]}" for name in near or reasons)
        raise TunefaError(f"no kernel serves {workload} on {arch.name} ({why})")
    return serving
