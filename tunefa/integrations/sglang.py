"""tunefa as a general plugin of SGLang, which adds the attention backend `tunefa`.

SGLang calls `register` in each of its processes, as an entry point of the group
`sglang.srt.plugins`; where SGLANG_PLUGINS is set, only if it names `tunefa`. Nothing here may keep
SGLang from starting: whatever goes wrong is one warning. The backend itself is imported when SGLang
makes it.
"""

from __future__ import annotations

from typing import Any

NAME = "tunefa"
"""The backend's name, for `--attention-backend tunefa`."""


def register() -> None:
    """Adds the backend to SGLang's registry and to its choices, once. It never raises."""
    try:
        _register()
    except Exception as error:  # SGLang would print a traceback for each of its processes
        import warnings

        warnings.warn(
            f"SGLang has no attention backend {NAME}: {type(error).__name__}: {error}", stacklevel=2
        )


def create(runner: Any) -> Any:
    """Returns the backend of a runner. Raises TunefaError for what it does not serve."""
    from tunefa.integrations.sglang_backend import TunefaBackend

    return TunefaBackend(runner)


def _register() -> None:
    """Adds the backend. Raises what SGLang's registry raises, also where SGLang has none."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices

    register_attention_backend(NAME)(create)
    if NAME not in ATTENTION_BACKEND_CHOICES:  # SGLang may call twice in a process
        add_attention_backend_choices([NAME])
