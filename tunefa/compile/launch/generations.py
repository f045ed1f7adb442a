"""The binaries that a driver loads: those of its CUDA generation's compilers, and older ones.

A cubin is loaded by every driver of its compiler's major version and by newer ones (CUDA
Compatibility, "Minor version compatibility").
"""

from __future__ import annotations

import re
from ctypes import byref, c_int

from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import DriverError


def newest_cuda() -> tuple[int, int] | None:
    """Returns the newest CUDA that this machine's driver knows, such as (12, 8); None without a
    driver.

    It does not initialise the driver, so that the process may fork afterwards.
    """
    found, version = driver.library(), c_int()
    if found is None or found.cuDriverGetVersion(byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


def why_too_old(newest: tuple[int, int] | None, compiler: str) -> str | None:
    """Returns why a driver that knows CUDA up to `newest` loads nothing that a compiler made, which
    is named like "ptxas 12.8.93"; None if it may, and where nothing is known."""
    release = re.search(r"\b(\d+)\.\d", compiler)
    if newest is None or release is None or int(release[1]) <= newest[0]:
        return None
    return (
        f"{compiler} compiled for CUDA {release[1]}, and this machine's driver knows CUDA up to "
        f"{newest[0]}.{newest[1]}: update the driver"
    )


def refusal(error: DriverError, compiler: str) -> str:
    """Returns the message for a binary of a compiler that the driver did not load."""
    if error.is_image_too_new:
        return (
            f"the driver does not load what {compiler} made: update the driver, or compile with an "
            f"older {compiler.partition(' ')[0]} ({error})"
        )
    return f"the driver refuses what {compiler} made: {error}"
