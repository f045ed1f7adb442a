"""Setting and removing tunefa's pass over Inductor's graphs."""

from __future__ import annotations

from typing import Any

from torch._inductor import config

from tunefa.integrations import flex_pass


class Empty(flex_pass.OwnPass):
    """A pass of tunefa that changes nothing."""

    def __init__(self, earlier: Any) -> None:
        self.earlier = earlier

    def __call__(self, graph: Any) -> None: ...

    def uuid(self) -> str:
        return "empty"

    @property
    def choices(self) -> dict[str, Any]:
        return {}


def test_the_earlier_pass_comes_back() -> None:
    def own(graph: Any) -> None: ...

    for earlier in (None, own):
        with config.patch(post_grad_custom_pre_pass=Empty(earlier)):
            flex_pass.end()
            assert config.post_grad_custom_pre_pass is earlier
            flex_pass.end()
            assert config.post_grad_custom_pre_pass is earlier
