"""All ops that tunefa gives to PyTorch's dispatcher, for programs that another process saved."""

from __future__ import annotations


def register_ops() -> None:
    """Registers all ops of tunefa with PyTorch, which otherwise happens when a call needs one.

    A process calls it before it loads a saved program: `torch.export.load` and packages of
    AOTInductor look ops up by their names. A second call changes nothing.
    """
    from tunefa.runtime import decode, ops, prefill  # noqa: F401, each registers its ops
