"""tunefa/costmodel/learned.py: trees in numpy, their files, and how far they are trusted."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.sample_learned import ARCH, CASE, KERNEL, MODEL
from tunefa.costmodel import gpu, learned
from tunefa.costmodel.features import features
from tunefa.costmodel.learned import LearnedModel, Trees
from tunefa.errors import TunefaError
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    return tmp_path


def test_trees_add_the_values_of_the_leaves_that_rows_reach() -> None:
    """One tree splits twice and the other once; a value on a threshold goes left."""
    inf = np.inf
    trees = Trees(
        2, 2,
        np.array([0, 1, 1, 0, 0, 0, 0, 0], np.int16),
        np.array([1.0, 5.0, 2.0, inf, inf, inf, inf, inf], np.float32),
        np.array([[3, 2], [4, 5], [6, 7], [3, 3], [4, 4], [5, 5], [6, 6], [7, 7]], np.int32),
        np.array([0, 0, 0, 1, 10, 20, 2, 3], np.float32),
    )  # fmt: skip
    rows = np.array([[1.0, 9.0], [1.5, 2.0], [1.5, 3.0]], np.float32)
    assert trees.total(rows).tolist() == [21.0, 12.0, 13.0]
    many = np.repeat(rows, 3000, axis=0)
    assert trees.total(many).tolist() == np.repeat([21.0, 12.0, 13.0], 3000).tolist()


def test_a_model_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "some" / "folder" / "x.npz"
    MODEL.save(file)
    held = learned.read(file, KERNEL, ARCH)
    assert held.id == MODEL.id and held.figures == MODEL.figures
    assert held.provenance == MODEL.provenance and held.names == MODEL.names
    found = features(CASE, CASE.feasible().configs[:5])
    assert held.fits(found)
    assert (held.correction(found) == MODEL.correction(found)).all()
    assert [path.name for path in file.parent.iterdir()] == ["x.npz"]


def test_the_id_is_that_of_what_decides_predictions() -> None:
    assert replace(MODEL, provenance={"date": "later"}).id == MODEL.id
    assert replace(MODEL, bias=MODEL.bias + 1e-6).id != MODEL.id
    value = MODEL.trees.value + np.float32(1e-3)
    assert replace(MODEL, trees=replace(MODEL.trees, value=value)).id != MODEL.id


def test_the_user_s_model_comes_before_the_shipped_one() -> None:
    before = learned.load(KERNEL, ARCH)
    assert before is None or before.id != MODEL.id
    MODEL.save(learned.path(KERNEL, ARCH))
    first = learned.load(KERNEL, ARCH)
    assert first is not None and first.id == MODEL.id
    other = replace(MODEL, bias=0.5)
    other.save(learned.path(KERNEL, ARCH))
    second = learned.load(KERNEL, ARCH)
    assert second is not None and second.id == other.id
    assert learned.load(KERNEL, ARCH) is second, "an unchanged file is read once"
    learned.path(KERNEL, ARCH).unlink()
    assert learned.load(KERNEL, ARCH) is before


def damaged(model: LearnedModel, how: str) -> bytes:
    data = model.to_bytes()
    trees = model.trees
    changes: dict[str, dict[str, Any]] = {
        "child": {"child": trees.child + 10_000},
        "feature": {"feature": trees.feature + np.int16(500)},
        "shape": {"value": trees.value[:-1]},
        "dtype": {"value": trees.value.astype(np.float64)},
        "nan": {"value": trees.value * np.float32(np.nan)},
        "depth": {"depth": 10**9},
    }
    if how in changes:
        return replace(model, trees=replace(trees, **changes[how])).to_bytes()
    return {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "text": b"kernel: x\n",
        "flipped": data[:400] + bytes(255 - byte for byte in data[400:500]) + data[500:],
    }[how]


@pytest.mark.parametrize(
    "how", ["cut", "empty", "text", "flipped", "child", "feature", "shape", "dtype", "nan", "depth"]
)
def test_a_damaged_file_is_refused_and_the_shipped_model_used(how: str) -> None:
    file = learned.path(KERNEL, ARCH)
    file.parent.mkdir()
    file.write_bytes(damaged(MODEL, how))
    with pytest.raises(TunefaError, match=r"no learned model that can be read.*tunefa learn"):
        learned.read(file, KERNEL, ARCH)
    with pytest.warns(UserWarning, match="the model that tunefa ships is used"):
        assert learned.load(KERNEL, ARCH) is learned.shipped(KERNEL, ARCH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learned.load(KERNEL, ARCH)  # warns once for a file


def test_a_model_of_another_version_or_kernel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.npz"
    MODEL.save(file)
    with pytest.raises(TunefaError, match=f"not a model of other on {ARCH}"):
        learned.read(file, "other", ARCH)
    monkeypatch.setattr(gpu, "VERSION", gpu.VERSION + 1)
    with pytest.raises(TunefaError, match="another version of the model of time"):
        learned.read(file, KERNEL, ARCH)


def test_trust_ends_beyond_what_was_learned() -> None:
    def trust(workload: str, device: str = "h200") -> float:
        case = replace(CASE, workload=Workload.parse(workload), target=Target.named(device))
        return MODEL.trust(case)

    assert trust(str(CASE.workload)) == 1.0
    near = trust("h8_kv2_q2048_d64")
    assert near == 1.0
    assert 0.0 < trust("b128_q1_k8192_d64") < 0.2, "few queries"
    for odd in ("q1024_d64_w256", "q1024_d64_softcap", "q1024_d256_fp32_full"):
        assert trust(f"h8_kv2_{odd}") < 0.9 < near, odd
    assert 0.5 < trust(str(CASE.workload), "h100") <= 1.0
    assert trust(str(CASE.workload), "h20") < trust(str(CASE.workload), "h100")


@pytest.mark.parametrize(
    "kernel", ["attention_fwd_cuda_sm90", "attention_fwd_gluon_sm90", "attention_fwd_triton"]
)
def test_shipped_models_are_of_today_s_features(kernel: str) -> None:
    model = learned.shipped(kernel, "sm90")
    assert model is not None and model.figures is not None
    case = replace(CASE, kernel=type(CASE).from_names(kernel, "q4096_d128", "h200").kernel)
    assert model.fits(features(case, [case.default()])), "fit the shipped models again"
    assert model.figures.comparison_sd < model.figures.analytic_comparison_sd
    assert set(model.provenance) >= {"devices", "workloads", "trials", "date", "source_hash"}
