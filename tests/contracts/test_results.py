"""The contract of every file in `results/`: the runtime loads them on users' machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sample_records import measured, predicted
from tunefa import assets
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.store import results as store
from tunefa.store.record import Record


def problems(folder: Path) -> Iterator[str]:
    """Everything that is wrong with the results in a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name == "README.md":
            continue
        if path.suffix != ".yaml":
            yield f"{path} is neither a folder, a README.md nor a .yaml file"
            continue
        try:
            records = store.read(path)
        except TunefaError as error:
            yield str(error)
            continue
        yield from (f"{path}: {why}" for record in records if (why := wrong(record)))


def wrong(record: Record) -> str | None:
    """The reason that a record cannot be shipped, or None."""
    if record.objective != "measured" or record.device is None:
        return "shipped results are measured"
    if record.kernel not in kernels.names():
        return f"there is no kernel {record.kernel}"
    try:
        arch = archs.load(record.arch)
        arch.device(record.device)
    except TunefaError as error:
        return str(error)
    peak = arch.device(record.device).tensor_flops_per_s(record.workload.dtype)
    if record.tflops * 1e12 > peak:
        return f"{record.tflops} TFLOP/s is above the peak of {record.device}"
    kernel = kernels.load(record.kernel)
    return kernel.why_not(record.workload, arch) or kernel.refusal(
        record.config, record.workload, arch
    )


def test_every_result_can_be_used() -> None:
    assert list(problems(assets.root("results"))) == []


def test_every_result_is_of_the_kernels_source() -> None:
    """The runtime leaves others out. scripts/machine_code.py shows which sources are the same."""
    left_out = [
        f"{path.name}: {record.kernel}, {record.workload}: {record.source_hash}"
        for path in sorted(assets.root("results").rglob("*.yaml"))
        for record in store.read(path)
        if not (kernel := kernels.load(record.kernel)).is_library
        and record.source_hash != kernel.source_hash
    ]
    assert left_out == []


def sound() -> Record:
    every = map(kernels.load, kernels.names())
    forward = (k for k in every if k.op == "fwd" and k.space.vendor == "nvidia")
    kernel = next(k for k in forward if not k.is_library)
    record = measured("fwd_q4096")
    return measured(
        "fwd_q4096",
        kernel=kernel.name,
        config=kernel.default(record.workload, archs.load("sm90")),
    )


def test_a_sound_record_is_taken(tmp_path: Path) -> None:
    store.write(tmp_path / "h200.yaml", [sound()])
    (tmp_path / "README.md").touch()
    assert list(problems(tmp_path)) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kernel": "gone"}, "there is no kernel gone"),
        ({"arch": "sm91"}, "unknown arch"),
        ({"device": "NVIDIA A100"}, "unknown sm90 device"),
        ({"device": None, "objective": "predicted", "mode": None}, "shipped results are measured"),
        ({"tflops": 5000.0}, "above the peak"),
        ({"config": {"BLOCK_M": 64}}, "is missing"),
    ],
)
def test_a_record_that_cannot_be_used_is_found(
    tmp_path: Path, changes: dict[str, object], problem: str
) -> None:
    plain = {name: getattr(sound(), name) for name in ("kernel", "config")}
    store.write(tmp_path / "h200.yaml", [measured("fwd_q4096", **{**plain, **changes})])
    (found,) = problems(tmp_path)
    assert problem in found


def test_a_broken_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "h200.yaml").write_text("tunefa_schema: 1\nrecords: [")
    (tmp_path / "notes.txt").touch()
    store.write(tmp_path / "more.yaml", [predicted()])
    assert len(list(problems(tmp_path))) == 3
