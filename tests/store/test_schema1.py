"""tunefa/store/schema1.py: files that a tunefa with schema 1 wrote load, and mean the same.

tests/fixtures/schema1/ was written by commit 18fc2ec: results, a lock file, exports and journals of
every kernel. `meanings.json` is what that tunefa made of each config in them, in their order:
[kernel, workload, arch, {estimate, refusal}].
"""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.tree import TREE
from tunefa.cli import main
from tunefa.compile import languages
from tunefa.compile.serving import Installed
from tunefa.runtime.lock_file import LockFile
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Trial
from tunefa.spec.workload import Workload
from tunefa.store import added_parameters, journal, landscape, results, schema1
from tunefa.store.exports import json as json_export
from tunefa.store.journal import Journal

FIXTURES = TREE / "tests" / "fixtures" / "schema1"
MEANINGS = json.loads((FIXTURES / "meanings.json").read_text(encoding="utf-8"))

RENAMED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "attention_fwd_cuda_sm90": (
        {
            "WARPGROUPS": 2, "BLOCK_N": 128, "STAGES": 2, "Q_STAGES": 1, "O_PARTS": 0, "OVERLAP": 1,
            "PING_PONG": 0, "SLACK": 8, "HALF_DIAGONAL": 1, "SWIZZLE": 64, "P_SHARED": 0,
            "CLUSTER": 2, "SECTION_MB": 16,
        },
        {
            "WARPGROUPS": 2, "BLOCK_N": 128, "num_stages": 2, "Q_STAGES": 1, "EPILOGUE_SUBTILE": 0,
            "INTRA_WG_OVERLAP": 1, "PING_PONG": 0, "RESCALE_THRESHOLD": 8,
            "SPLIT_DIAGONAL_BLOCK": 1, "SWIZZLE_BYTES": 64, "P_IN_SMEM": 0, "CLUSTER_SIZE": 2,
            "L2_SECTION_MB": 16,
        },
    ),
    "attention_fwd_gluon_sm90": (
        {
            "WARPGROUPS": 4, "PACK_HEADS": 8, "BLOCK_N": 64, "STAGES": 6, "K_FIRST": 1,
            "Q_STAGES": 2, "O_PARTS": 1, "PING_PONG": 1, "LANE_SUM": 1, "SLACK": 8, "EXP2_FMA": 4,
            "HALF_DIAGONAL": 0, "SECTION_MB": 8,
        },
        {
            "WARPGROUPS": 4, "PACK_GQA": 8, "BLOCK_N": 64, "num_stages": 6, "LOAD_K_FIRST": 1,
            "Q_STAGES": 2, "EPILOGUE_SUBTILE": 1, "PING_PONG": 1, "DEFER_ROW_SUM": 1,
            "RESCALE_THRESHOLD": 8, "EX2_EMULATION_FREQ": 4, "SPLIT_DIAGONAL_BLOCK": 0,
            "L2_SECTION_MB": 8,
        },
    ),
    "attention_fwd_cuda_sm80": (
        {
            "WARPS": 4, "BLOCK_M": 64, "BLOCK_N": 128, "STAGES": 1, "Q_IN_REGS": 1, "SHARE_QK": 1,
            "SLACK": 8, "BLOCKS_PER_SM": 3,
        },
        {
            "num_warps": 4, "BLOCK_M": 64, "BLOCK_N": 128, "num_stages": 1, "Q_IN_REGS": 1,
            "SHARE_QK_SMEM": 1, "RESCALE_THRESHOLD": 8, "MIN_BLOCKS_PER_SM": 3,
        },
    ),
    "attention_fwd_triton": (
        {
            "BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 1, "num_stages": 1, "LOADS": "tma",
            "maxnreg": 168, "SECTION_HEADS": 4, "PACK_GQA": 1,
        },
        {
            "BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 1, "num_stages": 1, "USE_TMA": 1,
            "maxnreg": 168, "L2_SECTION_HEADS": 4, "PACK_GQA": 1,
        },
    ),
    "attention_fwd_ascend": (
        {
            "BLOCK_M": 64, "BLOCK_N": 256, "MULTIBUFFER": 1, "LOOPS": 2, "TILE_MIX_VECTOR_LOOP": 2,
            "WORKSPACE_BUFFERS": 4, "L0C_BUFFERS": 1, "UNIT_FLAG": 0,
        },
        {
            "BLOCK_M": 64, "BLOCK_N": 256, "MULTIBUFFER": 1, "SPLIT_MASK_LOOP": 1,
            "TILE_MIX_VECTOR_LOOP": 2, "WORKSPACE_BUFFERS": 4, "L0C_BUFFERS": 1, "UNIT_FLAG": 0,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("kernel", RENAMED)
def test_names_and_values_of_every_parameter(kernel: str) -> None:
    old, new = RENAMED[kernel]
    made = schema1.config(kernel, old)
    assert made == new
    names = [each.name for each in kernels.load(kernel).space.parameters]
    assert list(added_parameters.completed(kernel, made)) == names
    assert schema1.config(kernel, new) == new  # today's names stay as they are


def test_the_values_of_the_other_choices() -> None:
    assert schema1.config("attention_fwd_triton", {"LOADS": "pointer"}) == {"USE_TMA": 0}
    assert schema1.config("attention_fwd_ascend", {"LOOPS": 1}) == {"SPLIT_MASK_LOOP": 0}


def test_a_kernel_of_one_s_own_keeps_its_names() -> None:
    config = {"STAGES": 2, "LOADS": "tma"}
    assert schema1.config("my_kernel", config) == config


def meaning(kernel: str, workload: str, arch: str, config: Config) -> list[Any]:
    case = Case.from_names(kernel, workload, arch)
    estimate = json.loads(json.dumps(case.estimate(config)))
    return [kernel, workload, arch, estimate, case.refusal(config) is None]


def meant(name: str) -> list[list[Any]]:
    return [
        [kernel, workload, arch, made["estimate"], made["refusal"] is None]
        for kernel, workload, arch, made in MEANINGS[name]
    ]


@pytest.mark.parametrize("name", [name for name in MEANINGS if name.endswith(".yaml")])
def test_records_mean_the_same(name: str) -> None:
    records = results.read(FIXTURES / name)
    found = [meaning(r.kernel, str(r.workload), r.arch, r.config) for r in records]
    assert found == meant(name)


def test_json_means_the_same() -> None:
    text = (FIXTURES / "export.json").read_text(encoding="utf-8")
    assert json_export.load(text, "export.json") == results.read(FIXTURES / "export.yaml")


def test_the_runner_up_of_a_certificate_is_renamed_too() -> None:
    records = results.read(FIXTURES / "lock.lock.yaml")
    seconds = [r for r in records if r.certificate and "runner_up" in r.certificate]
    assert seconds
    for record in seconds:
        assert record.certificate is not None
        assert record.certificate["runner_up"]["config"].keys() == record.config.keys()


@pytest.mark.parametrize("name", [name for name in MEANINGS if name.endswith(".jsonl")])
def test_journals_mean_the_same(name: str) -> None:
    path = FIXTURES / name
    header = journal.header(path)
    found = [
        meaning(kernel, header["workload"], header["arch"], trial.config)
        for kernel, trial in journal.read(path)
    ]
    assert found == meant(name)


def test_a_journal_that_is_continued_holds_both(tmp_path: Path) -> None:
    path = tmp_path / "sm80.jsonl"
    shutil.copy(FIXTURES / "sm80.jsonl", path)
    kernel = "attention_fwd_cuda_sm80"
    before = list(journal.read(path))
    with Journal.reopened(path) as continued:
        continued.append(kernel, Trial(RENAMED[kernel][1], "timeout", "too long"))
    *same, (_, last) = journal.read(path)
    assert same == before and last.config == RENAMED[kernel][1]


@pytest.mark.parametrize(
    ("name", "kernel", "config"),
    [
        (
            "kernels.jsonl",
            "attention_fwd_triton",
            {**RENAMED["attention_fwd_triton"][1], "L2_SECTION_HEADS": 1},
        ),
        ("sm80.jsonl", "attention_fwd_cuda_sm80", RENAMED["attention_fwd_cuda_sm80"][1]),
    ],
)
def test_a_replay_finds_what_it_found_then(name: str, kernel: str, config: Config) -> None:
    """The winners that commit 18fc2ec replayed from these journals."""
    words = ["search", "--replay", str(FIXTURES / name), "--json"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    record = json.loads(done.stdout)["record"]
    assert (record["kernel"], record["config"]) == (kernel, config)


def test_a_journal_is_a_landscape() -> None:
    held = landscape.load(FIXTURES / "gluon.jsonl")
    (name,) = held.kernels
    case = Case(kernels.load(name), held.workload, held.target)
    assert held.screened(name, case.default()).outcome == "ok"


def test_a_lock_file_serves_what_it_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compilers that its records name; their kernels' sources are others by now."""
    lock = LockFile.read(FIXTURES / "lock.lock.yaml")
    served = 0
    for record in lock.records:
        language = languages.load(kernels.load(record.kernel).language)
        made = {
            key: record.provenance[key]
            for key in ("triton", "compiler")
            if key in record.provenance
        }
        monkeypatch.setattr(language, "quick_versions", lambda made=made: made)
        kernel, remark = lock.kernel(record, Target.named("h200"), Installed())
        assert (kernel.name, remark) == (record.kernel, "")
        exact = lock.exact(record.workload, Target.named("h200"))
        served += exact == record
    assert served == len(lock.records) >= 3


def test_exports_for_other_programs_run_as_they_are() -> None:
    held = runpy.run_path(str(FIXTURES / "export.py"))["RECORDS"]
    assert [Workload.parse(each["workload"]) for each in held] and held[0]["config"]
    assert runpy.run_path(str(FIXTURES / "export.flex.py"))["KERNEL_OPTIONS"]
