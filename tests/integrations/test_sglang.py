"""The plugin of SGLang: it registers a backend once, and never keeps SGLang from starting."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest

from tests.support import sglang_stand_ins
from tests.support.tree import TREE
from tunefa.integrations import sglang as plugin


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = sglang_stand_ins.loaded(monkeypatch)
    monkeypatch.setattr(found, "ATTENTION_BACKENDS", found.ATTENTION_BACKENDS)
    yield found
    found.ATTENTION_BACKENDS.pop("tunefa", None)
    if "tunefa" in found.ATTENTION_BACKEND_CHOICES:
        found.ATTENTION_BACKEND_CHOICES.remove("tunefa")


def test_it_registers_once(names: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugin.register()
        plugin.register()
    assert names.ATTENTION_BACKENDS["tunefa"] is plugin.create
    assert names.ATTENTION_BACKEND_CHOICES.count("tunefa") == 1


def test_an_sglang_without_a_registry_is_one_warning(
    names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, sglang_stand_ins.REGISTRY, None)  # its import fails
    with pytest.warns(UserWarning, match="SGLang has no attention backend tunefa: Mod") as said:
        plugin.register()
    assert len(said) == 1 and "tunefa" not in names.ATTENTION_BACKEND_CHOICES


def test_an_older_sglang_is_one_warning(names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = sglang_stand_ins.PLACES["add_attention_backend_choices"]
    monkeypatch.delattr(sys.modules[place], "add_attention_backend_choices")
    with pytest.warns(UserWarning, match="tunefa: ImportError: cannot import name"):
        plugin.register()
    assert "tunefa" not in names.ATTENTION_BACKENDS


def test_whatever_fails_is_one_warning(names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def register(name: str) -> Any:
        raise RuntimeError("another signature")

    registry = sys.modules[sglang_stand_ins.REGISTRY]
    monkeypatch.setattr(registry, "register_attention_backend", register)
    with pytest.warns(UserWarning, match="tunefa: RuntimeError: another signature"):
        plugin.register()


def test_an_installed_tunefa_is_found_by_sglang() -> None:
    said = (TREE / "pyproject.toml").read_text(encoding="utf-8")
    entry = '[project.entry-points."sglang.srt.plugins"]\ntunefa = "tunefa.integrations.sglang:'
    assert entry + plugin.register.__name__ in said
