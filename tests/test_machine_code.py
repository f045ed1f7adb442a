"""scripts/machine_code.py: what it calls the same machine code, and what it writes down then."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.own_kernels import OwnKernels
from tests.support.sample_records import measured
from tests.support.tree import TREE
from tunefa.compile import nvrtc
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.store import results, source_hashes


def script() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("machine_code", TREE / "scripts/machine_code.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MACHINE_CODE = script()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A table of source hashes of this test's own."""
    path = tmp_path / "source_hashes.yaml"
    monkeypatch.setattr(source_hashes, "TABLE", path)
    source_hashes.read.cache_clear()
    yield path
    source_hashes.read.cache_clear()


def dumped(source_hash: str, **code: str) -> dict[str, Any]:
    return {"source_hash": source_hash, "code": code}


def test_the_same_code_is_written_down_and_another_is_named(table: Path) -> None:
    before = {
        "same": dumped("01", a="x", b="y", gone="z"),
        "differs": dumped("01", a="x", b="y"),
        "unchanged": dumped("01", a="x"),
        "nothing_shared": dumped("01", a="x"),
        "removed": dumped("01", a="x"),
    }
    after = {
        "same": dumped("02", a="x", b="y", new="w"),
        "differs": dumped("02", a="x", b="other"),
        "unchanged": dumped("01", a="x"),
        "nothing_shared": dumped("02", b="x"),
        "added": dumped("02", a="x"),
    }
    assert MACHINE_CODE.renew(before, after) == ["differs", "nothing_shared"]
    assert source_hashes.read() == {"same": {"01": "02"}}
    assert table.read_text().startswith("# By kernel, past source hashes")


def test_what_is_in_the_table_stays(table: Path) -> None:
    table.write_text('other:\n  "07": "08"\nsame:\n  "00": "01"\n')
    assert MACHINE_CODE.renew({"same": dumped("01", a="x")}, {"same": dumped("02", a="x")}) == []
    assert source_hashes.read() == {"other": {"07": "08"}, "same": {"00": "01", "01": "02"}}
    assert source_hashes.same_code("same", "00") == "02"


def test_shipped_results_get_the_newest_hash(table: Path, own_kernels: OwnKernels) -> None:
    table.write_text('attention_fwd_triton:\n  "0123abcd": "beef"\n')
    path = own_kernels.folder / "results" / "best.yaml"
    results.write(path, [measured(), measured(kernel="another")])
    MACHINE_CODE.renew_results()
    first, second = results.read(path)
    assert first.provenance["source_hash"] == "beef"
    assert second.provenance["source_hash"] == "0123abcd"
    assert first.median_us == measured().median_us


@pytest.fixture
def copy(own_kernels: OwnKernels) -> str:
    """A kernel that NVRTC compiles in a blink, the only one there is."""
    try:
        nvrtc.installed()
    except TunefaError as error:
        pytest.skip(str(error))
    return own_kernels.add_cuda("machine_code_copy").name


def change(own_kernels: OwnKernels, name: str, was: str, now: str) -> None:
    path = own_kernels.folder / "kernels" / f"{name}.cu"
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, now))


def run(monkeypatch: pytest.MonkeyPatch, *words: Path | str) -> int:
    monkeypatch.setattr(sys, "argv", ["machine_code.py", *map(str, words)])
    status: int = MACHINE_CODE.main()
    return status


def test_a_comment_changes_the_hash_and_a_sum_the_code(
    copy: str,
    own_kernels: OwnKernels,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of it with the real compiler: dump, a change, dump, renew."""
    monkeypatch.setattr(MACHINE_CODE, "WORKLOADS", ("b1_h1_q64_d64",))
    monkeypatch.setattr(MACHINE_CODE, "RANDOM_CONFIGS", 0)
    monkeypatch.setattr(kernels, "names", lambda: [copy])
    paths = [tmp_path / f"{number}.json" for number in range(3)]
    assert run(monkeypatch, "dump", paths[0]) == 0
    change(own_kernels, copy, "#pragma unroll", "// a remark\n    #pragma unroll")
    assert run(monkeypatch, "dump", paths[1]) == 0
    change(own_kernels, copy, "+ own[i % 32]", "- own[i % 32]")
    assert run(monkeypatch, "dump", paths[2]) == 0
    first, second, third = (json.loads(path.read_text())[copy] for path in paths)
    assert len({each["source_hash"] for each in (first, second, third)}) == 3
    assert first["code"] == second["code"] != third["code"]
    assert not any(code.startswith("no machine code") for code in first["code"].values())
    assert run(monkeypatch, "renew", *paths[:2]) == 0
    assert source_hashes.read() == {copy: {first["source_hash"]: second["source_hash"]}}
    assert run(monkeypatch, "renew", *paths[1:]) == 1
    assert f"{copy}: the machine code has changed: measure it again" in capsys.readouterr().out
    assert source_hashes.read() == {copy: {first["source_hash"]: second["source_hash"]}}


def test_what_does_not_compile_is_told_apart_from_what_does(
    copy: str, own_kernels: OwnKernels
) -> None:
    case = Case.from_names(copy, "b1_h1_q64_d64", "sm90")
    good = MACHINE_CODE.digest(case, {"WIDTH": 1})
    assert (
        good == MACHINE_CODE.digest(case, {"WIDTH": 1}) != MACHINE_CODE.digest(case, {"WIDTH": 2})
    )
    change(own_kernels, copy, "own[32];", "own[32]")
    case = Case.from_names(copy, "b1_h1_q64_d64", "sm90")
    assert MACHINE_CODE.digest(case, {"WIDTH": 1}).startswith("no machine code: ")


def test_a_kernel_has_cases_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configs of its shipped records, and its default for a workload."""
    monkeypatch.setattr(MACHINE_CODE, "WORKLOADS", MACHINE_CODE.WORKLOADS[:1])
    kernel = kernels.load("attention_fwd_cuda_sm90")
    found = list(MACHINE_CODE.cases(kernel))
    shipped = [record for record in results.Store([TREE / "results"]).records()
               if record.kernel == kernel.name]  # fmt: skip
    assert shipped and len(found) > len(shipped)
    assert [dict(record.config) for record in shipped] == [c for _, c in found[: len(shipped)]]
    assert any(config == case.default() for case, config in found[len(shipped) :])
