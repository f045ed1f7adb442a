"""tunefa/measure/peer.py: what peers are asked for, and whether they are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tunefa.measure.peer import Call, Peer, Tensors, Unserved, features, require
from tunefa.spec.workload import Workload


def never(workload: Workload, tensors: Tensors) -> Call:
    raise Unserved("it serves nothing")


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("h4_q64_full", []),
        ("h4_q64_causal", []),
        ("h4_kv2_q64_causal", ["grouped heads"]),
        ("h4_q64_k65_causal", ["lower right"]),
        ("h4_q64_k65_full", []),
        ("h4_q64_causal_w9", ["window"]),
        ("h4_q64_full_w9", ["window", "window on both sides"]),
        ("h4_q64_a9", ["window", "window on both sides"]),
        ("h4_q64_softcap_varlen", ["varlen", "softcap"]),
        ("h4_q64_d64_dv32", ["unequal head dims"]),
    ],
)
def test_the_features_of_a_workload(text: str, asked: list[str]) -> None:
    assert features(Workload.parse(text)) == asked


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("h4_q64_fp32", "it has no fp32"),
        ("h4_q64_causal_w9", "it has no sliding windows"),
        ("h4_q64_k70_causal", "seqlen_q must equal seqlen_k"),
    ],
)
def test_what_is_not_served_is_said(text: str, why: str) -> None:
    with pytest.raises(Unserved, match=why):
        require(Workload.parse(text), (), ("bf16",))


def test_what_is_served_raises_nothing() -> None:
    has = ("window", "window on both sides", "grouped heads")
    require(Workload.parse("h4_kv2_q64_full_w9"), has, ("bf16",))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a package that fails when it is imported, and a part of it."""
    inner = tmp_path / "heavy_for_tests" / "part"
    inner.mkdir(parents=True)
    (inner / "leaf.py").touch()
    (inner.parent / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("packages")
def test_a_part_of_a_package_is_found_without_an_import() -> None:
    for module in ("heavy_for_tests", "heavy_for_tests.part", "heavy_for_tests.part.leaf"):
        assert Peer("p", "P", never, module).why_absent() is None
    assert "heavy_for_tests" not in sys.modules


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    "module", ["heavy_for_tests.other", "heavy_for_tests.part.leaf.more", "no_such_package.part"]
)
def test_what_is_absent_is_said(module: str) -> None:
    peer = Peer("p", "P", never, module, "heavy-4")
    assert peer.why_absent() == "heavy-4 is not installed: pip install heavy-4"
