"""Finds, records and serves the fastest attention kernel for a shape and a GPU.

    out = tunefa.flash_attention(q, k, v, causal=True)

Importing this does not load PyTorch. The functions that need it are imported when they are first
used.
"""

from __future__ import annotations

from tunefa._version import __version__

TYPE_CHECKING = False  # type checkers read True; importing `typing` for it would take longer
if TYPE_CHECKING:
    from tunefa.errors import TunefaError
    from tunefa.integrations.sdpa import activate, deactivate
    from tunefa.integrations.tracing import trace
    from tunefa.runtime.all_ops import register_ops
    from tunefa.runtime.api import flash_attention
    from tunefa.runtime.api_varlen import flash_attention_varlen
    from tunefa.runtime.decode import decode_attention
    from tunefa.runtime.process import last_choice, load
    from tunefa.runtime.ranks import config_hash, share_records
    from tunefa.spec.workload import Workload

__all__ = [
    "TunefaError",
    "Workload",
    "__version__",
    "activate",
    "config_hash",
    "deactivate",
    "decode_attention",
    "flash_attention",
    "flash_attention_varlen",
    "last_choice",
    "load",
    "register_ops",
    "share_records",
    "trace",
]
_HOMES = {
    "TunefaError": "tunefa.errors",
    "Workload": "tunefa.spec.workload",
    "activate": "tunefa.integrations.sdpa",
    "config_hash": "tunefa.runtime.ranks",
    "deactivate": "tunefa.integrations.sdpa",
    "decode_attention": "tunefa.runtime.decode",
    "flash_attention": "tunefa.runtime.api",
    "flash_attention_varlen": "tunefa.runtime.api_varlen",
    "register_ops": "tunefa.runtime.all_ops",
    "share_records": "tunefa.runtime.ranks",
    "trace": "tunefa.integrations.tracing",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib
    import os

    if "TUNEFA_TRACE" in os.environ:  # PyTorch's import begins the trace, which loads the runtime
        importlib.import_module("torch")
    home = importlib.import_module(_HOMES.get(name, "tunefa.runtime.process"))
    value: object = getattr(home, name)
    globals()[name] = value  # the next access finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "annotations"})
