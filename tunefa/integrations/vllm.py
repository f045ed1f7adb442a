"""tunefa as a general plugin of vLLM, which adds the attention backend TUNEFA.

vLLM calls `register` in each of its processes, as an entry point of the group
`vllm.general_plugins`; where VLLM_PLUGINS is set, only if it names `tunefa`. Nothing here may keep
vLLM from starting: whatever goes wrong is one warning. The backend itself is imported when vLLM
chooses it.
"""

from __future__ import annotations

from typing import Any

NAME = "TUNEFA"
"""The backend's name, for `--attention-backend TUNEFA`."""
BACKEND = "tunefa.integrations.vllm_backend.TunefaBackend"


def register() -> None:
    """Adds the backend to vLLM's registry, once. It never raises."""
    try:
        _register()
    except Exception as error:  # vLLM does not catch it, and would not start
        import warnings

        warnings.warn(
            f"vLLM has no attention backend {NAME}: {type(error).__name__}: {error}", stacklevel=2
        )


def _register() -> Any:
    """Adds the backend, and returns its name in vLLM's registry. Raises what the registry raises,
    also where vLLM has none."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if NAME not in AttentionBackendEnum.__members__:  # vLLM may call twice in a process
        register_backend(NAME, BACKEND)
    member = AttentionBackendEnum[NAME]
    # vLLM sends its configuration to processes that have loaded no plugin when they read it.
    member.__reduce_ex__ = lambda protocol: (_register, ())
    return member
