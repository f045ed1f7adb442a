"""FlexAttention with tuned options from the first one on that Inductor compiles.

`tunefa.activate` may run at the end of `import torch`, while tunefa's runtime is being imported. So
this module imports neither the runtime nor records; the first graph does.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import fx
from torch._inductor import config

from tunefa.integrations.flex_pass import OwnPass, end
from tunefa.store.results import default_store


class LaterOptions(OwnPass):
    """The pass that reads the user's store when a graph is compiled."""

    def __init__(self, earlier: Any) -> None:
        self.earlier = earlier

    @functools.cached_property
    def tuned(self) -> Any:
        """The pass that knows the records."""
        from tunefa.integrations.flex_tuned import TunedOptions

        return TunedOptions(default_store(), self.earlier)

    def __call__(self, graph: fx.Graph) -> None:
        """Changes the calls of a graph."""
        self.tuned(graph)

    def uuid(self) -> Any:
        """Returns the key of what is compiled with this pass."""
        return self.tuned.uuid()

    @property
    def choices(self) -> dict[str, Any]:
        """The last choice for each op."""
        return dict(self.tuned.choices)


def begin() -> None:
    """Sets the pass that reads the user's store later, in the thread that calls it."""
    end()
    config.post_grad_custom_pre_pass = LaterOptions(config.post_grad_custom_pre_pass)
