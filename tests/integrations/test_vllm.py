"""The plugin of vLLM: it registers a backend once, and never keeps vLLM from starting."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Any

import pytest

from tests.support import vllm_stand_ins
from tests.support.tree import TREE
from tunefa.integrations import vllm as plugin


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """vLLM's registry, which refuses a name that it has, as vLLM's does."""
    known = {"FLASH_ATTN": "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"}

    def register(name: str, path: str) -> None:
        if name in known:
            raise ValueError(f"Backend {name} already exists")
        known[name] = path

    for name, module in vllm_stand_ins.packages(vllm_stand_ins.registry(register, known)).items():
        monkeypatch.setitem(sys.modules, name, module)
    return known


def test_it_registers_once(members: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugin.register()
        plugin.register()
    assert members["TUNEFA"] == plugin.BACKEND and len(members) == 2


def test_the_registered_class_is_there(
    members: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.register()
    module, _, name = members["TUNEFA"].rpartition(".")
    for path, made in vllm_stand_ins.packages(vllm_stand_ins.backend()).items():
        monkeypatch.setitem(sys.modules, path, made)
    monkeypatch.delitem(sys.modules, module, raising=False)
    found: Any = getattr(import_module(module), name)
    monkeypatch.delitem(sys.modules, module)
    assert found.get_name() == "TUNEFA"


def test_a_vllm_without_a_registry_is_one_warning(
    members: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, vllm_stand_ins.REGISTRY, None)  # its import fails
    with pytest.warns(UserWarning, match="vLLM has no attention backend TUNEFA: Mod") as said:
        plugin.register()
    assert len(said) == 1 and "TUNEFA" not in members


def test_an_older_registry_is_one_warning(
    members: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys.modules[vllm_stand_ins.REGISTRY], "register_backend")
    with pytest.warns(UserWarning, match="TUNEFA: ImportError: cannot import name"):
        plugin.register()
    assert "TUNEFA" not in members


def test_whatever_fails_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(name: str, path: str) -> None:
        raise RuntimeError("another signature")

    for name, module in vllm_stand_ins.packages(vllm_stand_ins.registry(register, {})).items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.warns(UserWarning, match="TUNEFA: RuntimeError: another signature"):
        plugin.register()


def test_an_installed_tunefa_is_found_by_vllm() -> None:
    said = (TREE / "pyproject.toml").read_text(encoding="utf-8")
    entry = '[project.entry-points."vllm.general_plugins"]\ntunefa = "tunefa.integrations.vllm:'
    assert entry + plugin.register.__name__ in said
