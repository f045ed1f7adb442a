"""A kernel that Triton compiled, for processes without Triton.

It has what a launch needs of Triton's own object: the cubin, the types of the signature, some of
the metadata, and the head of the PTX, which tells the sizes of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tunefa.compile.contract import CompileError
from tunefa.compile.launch import generations, triton_abi
from tunefa.compile.launch.driver import Driver, DriverError

_METADATA = ("name", "shared", "num_warps", "num_ctas", "launch_pdl", "launch_cooperative_grid",
             "global_scratch_size", "profile_scratch_size", "tensordesc_meta")  # fmt: skip


@dataclass(eq=False)
class StoredBinary:
    """One kernel in a cubin. The names of what it has are those of Triton's object."""

    image: bytes
    metadata: Any
    """Triton's metadata of the kernel, as far as launches read it."""
    src: Any
    """Has the `signature`: the types by number of the argument."""
    asm: dict[str, str]
    """Has the "ptx", of which only the entry's head is kept."""
    made_by: str
    """The compiler's name and version, for errors."""
    function: int = field(default=0, init=False)
    """CUfunction; 0 before it is loaded. One object serves one device."""

    def load(self, driver: Driver) -> None:
        """Loads the kernel into the current context, once.

        Raises CompileError if the driver does not load it, or the device lacks resources for it.
        """
        if self.function:
            return
        made = self.metadata
        try:
            self.function = driver.load_function(self.image, made.name, made.shared, True)
        except DriverError as error:
            raise CompileError(generations.refusal(error, self.made_by)) from error


def stored(binary: Any, made_by: str) -> tuple[bytes, dict[str, Any]]:
    """Returns the cubin of a binary and plain data, from which `restored` makes it again.

    Raises CompileError if only Triton's launcher can launch it.
    """
    if triton_abi.needs_triton(binary.metadata):
        raise CompileError(f"{binary.metadata.name} starts by Triton's launcher alone")
    kinds = [str(kind).partition("<")[0] for kind in binary.src.signature.values()]
    metadata = {name: getattr(binary.metadata, name, None) for name in _METADATA}
    head = triton_abi.head(binary.asm["ptx"])
    data = {"metadata": metadata, "signature": kinds, "ptx": head, "made_by": made_by}
    return binary.asm["cubin"], data


def restored(image: bytes, data: dict[str, Any]) -> StoredBinary:
    """Returns the binary of which `stored` returned the parts."""
    source = SimpleNamespace(signature=dict(enumerate(data["signature"])))
    metadata = SimpleNamespace(**data["metadata"])
    return StoredBinary(image, metadata, source, {"ptx": data["ptx"]}, data["made_by"])
