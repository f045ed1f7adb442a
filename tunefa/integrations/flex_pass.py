"""The pass that gives FlexAttention tuned options, as far as all kinds of it share it.

Inductor runs a pass over each graph that it compiles, before it makes kernels of it. Source of the
interface: torch/_inductor/custom_graph_pass.py of PyTorch 2.11 and 2.13. This module imports
nothing of tunefa.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass


class OwnPass(CustomGraphPass):
    """A pass of tunefa."""

    earlier: Any
    """The pass, or a list of them, that was set before; None if there was none."""

    @property
    @abstractmethod
    def choices(self) -> dict[str, Any]:
        """The last choice of options for each op."""


def end() -> None:
    """Removes tunefa's pass; changes nothing where there is none."""
    active = config.post_grad_custom_pre_pass
    if isinstance(active, OwnPass):
        config.post_grad_custom_pre_pass = active.earlier
