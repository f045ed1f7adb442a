"""tunefa bundle: what it writes, shows and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support import sample_bundles
from tunefa.runtime import bundle_builder
from tunefa.spec.workload import Workload
from tunefa.store.bundle_file import BundleFile

SMALL = "b1_h2_q64_d64_fp32"
WHOLE = str(Workload.parse(SMALL))


def test_a_bundle_is_written_and_shown(run: Run) -> None:
    out = run("bundle", "app.tunefa", "-w", SMALL, "--arch", "h200", "--exact", "--licence", "MIT")
    file = BundleFile(Path("app.tunefa"))
    assert [str(plan.workload) for plan in file.plans] == [WHOLE]
    assert file.provenance == {"tunefa": file.provenance["tunefa"], "licence": "MIT"}
    assert f"{WHOLE} on NVIDIA H200\n    attention_fwd_triton: default: " in out.stdout
    assert "app.tunefa: 1 workload, 1 binary, 0." in out.stdout and out.stderr == ""
    assert f"for NVIDIA H200 (sm90); SHA-256 {file.digest[:16]}" in out.stdout
    assert 'Next: in the program, tunefa.load("app.tunefa")' in out.stdout
    shown = json.loads(run("bundle", "app.tunefa", "--show", "--json").stdout)
    assert shown["sha256"] == file.digest and shown["binaries"] == 1
    assert shown["plans"][0]["workload"] == WHOLE and shown["left_out"] == []


def test_a_file_of_workloads_and_several_chips(run: Run) -> None:
    other = "b1_h2_q64_d32_fp32"
    rows = [{"workload": SMALL, "weight": 1}, {"workload": other, "weight": 2}]
    Path("w.yaml").write_text(json.dumps({"workloads": rows}))
    words = ("--workloads", "w.yaml", "--arch", "h200", "--exact", "--json")
    data = json.loads(run("bundle", "app.tunefa", *words, "--arch", "sm80").stdout)
    assert data["chips"] == ["NVIDIA H200 (sm90)", "NVIDIA A100-SXM4-80GB (sm80)"]
    assert len(data["plans"]) == 4 and data["binaries"] == 4
    one = json.loads(run("bundle", "b.tunefa", *words, "--top", "1").stdout)
    assert {plan["workload"] for plan in one["plans"]} == {str(Workload.parse(other))}


def test_what_is_left_out_is_said(run: Run) -> None:
    others = ("-w", "b1_h2_q64_d64_e4m3", "-w", "matmul_m64")
    out = run("bundle", "app.tunefa", "-w", SMALL, *others, "--arch", "sm80", "--exact")
    assert out.stderr.startswith("Left out: fwd_b1_h2_kv2_q64_k64_d64_e4m3_causal on NVIDIA A100")
    assert "no kernel serves" in out.stderr and len(BundleFile(Path("app.tunefa")).plans) == 1
    assert "the runtime has no call of the op matmul" in out.stderr
    none = run("bundle", "none.tunefa", "-w", "b1_h2_q64_d64_e4m3", "--arch", "sm80", code=3)
    assert "Nothing was written, as no workload can be in the bundle." in none.stderr
    assert not Path("none.tunefa").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "no workload: give --seqlen"),
        (("-w", SMALL, "--top", "3"), 2, "--top is for --workloads"),
        (("-w", SMALL, "--workloads", "w.yaml"), 2, "--workloads names the workloads: leave out"),
        (("--workloads", "none.yaml", "--arch", "h200"), 1, "none.yaml"),
        (("-w", SMALL, "--arch", "h2000"), 1, "unknown arch or device 'h2000'"),
        (("-w", SMALL, "--arch", "ascend910b3"), 1, "a bundle has binaries for GPUs, and"),
        (("--show",), 1, "cannot read app.tunefa: No such file"),
    ],
)
def test_mistakes(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    assert said in run("bundle", "app.tunefa", *words, code=code).stderr


def test_a_damaged_bundle_is_not_shown(run: Run) -> None:
    path = sample_bundles.write(Path("app.tunefa"))
    path.write_bytes(path.read_bytes().replace(b"first cubin", b"other cubin"))
    assert "app.tunefa is damaged" in run("bundle", "app.tunefa", "--show", code=1).stderr


def test_a_folder_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled before that is said."""
    monkeypatch.setattr(bundle_builder, "build", lambda *_, **__: pytest.fail("it was built"))
    out = run("bundle", "none/app.tunefa", "-w", SMALL, "--arch", "h200", code=1)
    assert "the folder none does not exist: create it" in out.stderr
