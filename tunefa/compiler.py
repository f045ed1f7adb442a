"""What a process compiled for one device."""

from __future__ import annotations

from tunefa import languages
from tunefa.arch import Arch
from tunefa.kernel import Kernel
from tunefa.languages import Compiled
from tunefa.recent import Recent
from tunefa.trial import Config
from tunefa.workload import Workload

MAX_COMPILED = 512


class Compiler:
    """A language's `compile` for one device, which remembers what it compiled.

    Another batch or length takes the same binary: kernels get these as arguments. A binary is
    loaded into one device's context, so every device has a compiler of its own.
    """

    def __init__(self) -> None:
        self._compiled: Recent[Compiled] = Recent(MAX_COMPILED)

    def __call__(
        self, kernel: Kernel, workload: Workload, config: Config, arch: Arch, aligned: bool
    ) -> Compiled:
        """As `compile` of the kernel's language; raises what that raises."""
        language = languages.load(kernel.language)
        key = (arch.name, language.binary_key(kernel, workload, config, aligned))
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = language.compile(kernel, workload, config, arch, aligned)
            self._compiled.add(key, compiled)
        return compiled
