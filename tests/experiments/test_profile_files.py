"""The kernels in files of profilers. PyTorch's profiler and Proton wrote those in
tests/fixtures/profiles/ on an H200, for `tunefa bench profile -w b4_h32_q2048_d64_fp16_causal
--peers operators`; of the trace, most events of the CPU are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tree import TREE
from tunefa.errors import TunefaError
from tunefa.experiments import profile_files

FOLDER = TREE / "tests" / "fixtures" / "profiles"
BOTH = ("tunefa", "operators")
OPERATORS = [
    "softmax_warp_forward",
    "elementwise_kernel: masked_fill_kernel",
    "vectorized_elementwise_kernel: MulFunctor",
    "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT",
    "nvjet_sm90_hsh_64x512_64x2_1x2_h_bz_coopB_NNT",
]


def test_a_trace_of_pytorch() -> None:
    own, *others = profile_files.ranges(FOLDER / "torch-h200.json", BOTH)
    assert own == {"contestant": "tunefa", "kernel": "attention_fwd", "count": 1,
                   "time_us": 158.847}  # fmt: skip
    assert {row["contestant"] for row in others} == {"operators"}
    names = [profile_files.short_name(row["kernel"]) for row in others]
    copies = ["Memcpy DtoD (Device -> Device)", "Memset (Device)"]
    assert [name for name in names if name not in copies] == OPERATORS
    (fills,) = [row for row in others if row["kernel"] == copies[1]]
    assert fills["count"] == 2 and fills["time_us"] == pytest.approx(1.568)


def test_a_profile_of_proton() -> None:
    own, *others = profile_files.scopes(FOLDER / "proton-h200.hatchet")
    assert own == {"contestant": "tunefa", "kernel": "attention_fwd", "count": 1,
                   "time_us": 158.751}  # fmt: skip
    names = {profile_files.short_name(row["kernel"]) for row in others}
    assert names == set(OPERATORS), "names of C++ are mangled here"


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("attention_fwd", "attention_fwd"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("void <unnamed>::softmax_warp_forward<c10::Half, 9>(T2 *, int)", "softmax_warp_forward"),
        ("void at::native::reduce_kernel<512>(int)", "reduce_kernel"),
        ("_Z3addPf", "add"),
        ("_Z", "_Z"),
    ],
)
def test_short_names(kernel: str, short: str) -> None:
    assert profile_files.short_name(kernel) == short


def _frame(name: str, children: list[Any], **metrics: Any) -> dict[str, Any]:
    return {"frame": {"name": name, "type": "function"}, "metrics": metrics, "children": children}


def test_the_scopes_of_a_hatchet_file(tmp_path: Path) -> None:
    kernel = {"count": 2, "time (ns)": 4500, "device_type": "CUDA"}
    tree = [
        _frame("ROOT", [
            _frame("tunefa", [_frame("attention", [], **kernel)]),
            _frame("tunefa:operators", [_frame("inner", [_frame("softmax", [], **kernel)]),
                                        _frame("metadata", [])]),
        ]),
        {"CUDA": {"0": {"arch": "90", "num_sms": 132}}},
    ]  # fmt: skip
    path = tmp_path / "x.hatchet"
    path.write_text(json.dumps(tree))
    assert profile_files.scopes(path) == [
        {"contestant": "tunefa", "kernel": "attention", "count": 2, "time_us": 4.5},
        {"contestant": "operators", "kernel": "softmax", "count": 2, "time_us": 4.5},
    ]


@pytest.mark.parametrize("text", ["", "[1, 2]", '[{"frame": {}}]', '{"a": 1}'])
def test_another_file_is_no_profile(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.hatchet"
    path.write_text(text)
    if text == '{"a": 1}':
        assert profile_files.scopes(path) == []
        return
    with pytest.raises(TunefaError, match="is no profile of Proton"):
        profile_files.scopes(path)
    with pytest.raises(TunefaError, match="Proton has written no"):
        profile_files.scopes(tmp_path / "y.hatchet")


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"traceEvents": [{"cat": "kernel"}, 3]}'])
def test_another_file_is_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(TunefaError, match="is no trace of PyTorch"):
        profile_files.ranges(path, BOTH)
    with pytest.raises(TunefaError, match="PyTorch has written no"):
        profile_files.ranges(tmp_path / "y.json", BOTH)
