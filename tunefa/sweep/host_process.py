"""A process of some host, and whether it is still there."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class HostProcess:
    """A process, by its host, its number and the time of its start."""

    host: str
    pid: int
    started: str
    """The clock ticks from the host's start to the process's, as numbers are used again."""
    seat: str = ""
    """The name of the GPU that it works with, or of the cores."""

    @classmethod
    def here(cls, seat: str = "") -> HostProcess:
        """Returns this process."""
        return cls(_host(), os.getpid(), _started(os.getpid()) or "", seat)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> HostProcess:
        """Reads what `to_data` returned; of anything else, a process that is nowhere."""
        text = {name: str(data.get(name, "")) for name in ("host", "started", "seat")}
        pid = data.get("pid")
        return cls(text["host"], pid if isinstance(pid, int) else 0, text["started"], text["seat"])

    def to_data(self) -> dict[str, Any]:
        """Returns plain data."""
        return asdict(self)

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this host."""
        return self.host == _host()

    @property
    def has_ended(self) -> bool:
        """Whether it is certain that the process has ended: it was one of this host."""
        return self.is_here and _started(self.pid) != self.started


def _host() -> str:
    """The host's name with the number of its last start: containers may share a name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()} {boot[:8]} {space[5:-1]}"


def _started(pid: int) -> str | None:
    """The start of a process of this host, in clock ticks; None if there is none. A process that
    has ended and that nobody has waited for counts as none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()  # proc(5); a program's name may have spaces
    return None if state in "ZX" else rest[18]
