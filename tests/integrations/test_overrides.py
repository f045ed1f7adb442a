"""Layers on PyTorch's operators, which come and go in any sequence."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

from tunefa.integrations.overrides import Below, Layer, Layers, has_kernel

NAME = "aten::mm"


@pytest.fixture
def said() -> list[str]:
    """The actions of layers and PyTorch, in their sequence."""
    return []


def layer(name: str, said: list[str]) -> Layer:
    def call(below: Below, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        said.append(name)
        assert len(arguments) == 2 and not named
        return below() + 1

    return call


def product() -> float:
    return float(torch.mm(torch.ones(1, 3), torch.ones(3, 1)))


@pytest.mark.parametrize("ends", [*itertools.permutations("ABC")], ids="".join)
def test_layers_end_in_any_sequence(ends: tuple[str, ...], said: list[str], strict: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = {name: Layers({NAME: layer(name, said)}, "CPU") for name in "ABC"}
    left = ["C", "B", "A"]  # the highest first
    for name in (None, *ends):
        if name is not None:
            made[name].remove()
            made[name].remove()  # changes nothing
            left.remove(name)
        said.clear()
        assert product() == 3 + len(left)
        assert said == left


def test_a_kernel_of_another_library_is_called_below(said: list[str], strict: None) -> None:
    make: Any = torch.library.Library
    library = make("aten", "IMPL")
    library.impl("mm", lambda x, y: torch.full((1, 1), 7.0), "CPU")
    try:
        made = Layers({NAME: layer("A", said)}, "CPU")
        assert product() == 8
        made.remove()
        assert product() == 7
    finally:
        library._destroy()
    assert product() == 3 and said == ["A"]


def test_layers_that_fail_to_begin_leave_nothing(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = torch.library.get_kernel

    def fails(name: str, key: str) -> Any:
        if name == "aten::bmm":
            raise RuntimeError("no such kernel")
        return inner(name, key)

    monkeypatch.setattr(torch.library, "get_kernel", fails)
    with pytest.raises(RuntimeError, match="no such kernel"):
        Layers({NAME: layer("A", said), "aten::bmm": layer("B", said)}, "CPU")
    assert product() == 3 and said == []


def test_operators_without_a_kernel_are_left_out(said: list[str]) -> None:
    assert has_kernel(NAME, "CPU") and not has_kernel("aten::no_such_operator", "CPU")
    for name, key in (("aten::no_such_operator", "CPU"), (NAME, "XPU")):
        Layers({name: layer("A", said)}, key).remove()
    assert product() == 3 and said == []
