"""The plugin of vLLM: it registers a backend once, and never keeps vLLM from starting."""

from __future__ import annotations

import pickle
import sys
import warnings
from importlib import import_module
from typing import Any

import pytest

from tests.support import vllm_stand_ins
from tests.support.tree import TREE
from tunefa.integrations import vllm as plugin


def begin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's registry as a process has it that has loaded no plugin."""
    made: Any = vllm_stand_ins.registry()
    for name, module in vllm_stand_ins.packages(made).items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Any:
    return begin(monkeypatch)


def test_it_registers_once(registry: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugin.register()
        plugin.register()
    members = registry.AttentionBackendEnum.__members__
    assert members["TUNEFA"].value == plugin.BACKEND and len(members) == 2


def test_the_registered_class_is_there(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.register()
    module, _, name = registry.AttentionBackendEnum["TUNEFA"].value.rpartition(".")
    for path, made in vllm_stand_ins.packages(vllm_stand_ins.backend()).items():
        monkeypatch.setitem(sys.modules, path, made)
    monkeypatch.delitem(sys.modules, module, raising=False)
    found: Any = getattr(import_module(module), name)
    monkeypatch.delitem(sys.modules, module)
    assert found.get_name() == "TUNEFA"


def test_a_process_without_plugins_reads_the_name(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM pickles its configuration for processes that it starts."""
    plugin.register()
    sent = pickle.dumps({"backend": registry.AttentionBackendEnum["TUNEFA"]})
    other = begin(monkeypatch).AttentionBackendEnum
    assert "TUNEFA" not in other.__members__
    assert pickle.loads(sent)["backend"] is other["TUNEFA"]


def test_a_vllm_without_a_registry_is_one_warning(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, vllm_stand_ins.REGISTRY, None)  # its import fails
    with pytest.warns(UserWarning, match="vLLM has no attention backend TUNEFA: Mod") as said:
        plugin.register()
    assert len(said) == 1 and "TUNEFA" not in registry.AttentionBackendEnum.__members__


def test_an_older_registry_is_one_warning(registry: Any) -> None:
    del registry.register_backend
    with pytest.warns(UserWarning, match="TUNEFA: ImportError: cannot import name"):
        plugin.register()
    assert "TUNEFA" not in registry.AttentionBackendEnum.__members__


def test_whatever_fails_is_one_warning(registry: Any) -> None:
    def register(name: str, path: str) -> None:
        raise RuntimeError("another signature")

    registry.register_backend = register
    with pytest.warns(UserWarning, match="TUNEFA: RuntimeError: another signature"):
        plugin.register()


def test_an_installed_tunefa_is_found_by_vllm() -> None:
    said = (TREE / "pyproject.toml").read_text(encoding="utf-8")
    entry = '[project.entry-points."vllm.general_plugins"]\ntunefa = "tunefa.integrations.vllm:'
    assert entry + plugin.register.__name__ in said
