from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_kernel import SM90, FakeKernel, FakeLanguage
from tests.support.sample_records import CONFIG, dated, measured, predicted
from tests.support.tree import TREE
from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.runtime.lock_file import VARIABLE, FreezeState, Installed, LockFile, records_to_lock
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import results as store
from tunefa.store.record import Record

H200 = "NVIDIA H200"
ON_H200 = Target.named("h200")
ASKED = Workload.parse("fwd_q4096")


@pytest.fixture(autouse=True)
def language(monkeypatch: pytest.MonkeyPatch) -> FakeLanguage:
    """The only language there is."""
    made = FakeLanguage()
    monkeypatch.setattr(languages, "load", lambda name: made)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A lock file of one record."""
    path = tmp_path / "tunefa.lock.yaml"
    store.write(path, [measured()])
    return path


def installed(**changes: Any) -> Installed:
    fake: Any = FakeKernel(**changes)
    return Installed([fake])


def lock(*records: Record) -> LockFile:
    return LockFile(Path("my lock.yaml"), records)


# ------------------------------------------------------------------------------ exact records


def test_the_best_measurement_of_this_workload_on_this_device() -> None:
    best = measured(median_us=300.0)
    others = [measured(), measured("q8192", median_us=1.0), measured(device="H100", median_us=1.0)]
    assert lock(*others, best, predicted(median_us=1.0)).exact(ASKED, ON_H200) == best


def test_a_later_measurement_supersedes_a_faster_one() -> None:
    later = measured(provenance=dated("2026-01-31T12:00:00Z", triton="3.7.1"))
    for records in ([later, measured(median_us=1.0)], [measured(median_us=1.0), later]):
        assert lock(*records).exact(ASKED, ON_H200) == later
        assert records_to_lock(records, installed()) == [later]


@pytest.mark.parametrize(
    ("records", "nearest"),
    [
        ([measured("q8192"), measured("q32768")], f"its nearest is for {{q8192}} on {H200}; "),
        ([measured(device="NVIDIA H100")], "its nearest is for {q4096} on NVIDIA H100; "),
        ([predicted()], "its nearest is for {q4096} on sm90, predicted; "),
        ([measured("q4096_full")], "its nearest is for {q4096_full} on NVIDIA H200; "),
        ([measured(device=f"{H200} MIG 1g.18gb")], "on NVIDIA H200 MIG 1g"),
        ([], "it has no records at all; "),
    ],
)
def test_nothing_else_is_served(records: list[Record], nearest: str) -> None:
    with pytest.raises(TunefaError) as caught:
        lock(*records).exact(ASKED, ON_H200)
    said = str(caught.value)
    names = {name: str(Workload.parse(name)) for name in ("q4096", "q8192", "q4096_full")}
    assert nearest.format(**names) in said
    assert said.startswith("my lock.yaml, which this process is frozen to, has no record measured ")
    assert f"for {ASKED} on {H200}: " in said and "\n" not in said
    assert said.endswith(
        f"add one on such a device with: tunefa import 'my lock.yaml' && tunefa search -w {ASKED} "
        "&& tunefa export 'my lock.yaml' --frozen"
    )


def test_the_installation_must_be_what_was_measured(language: FakeLanguage) -> None:
    record = measured()
    assert lock(record).kernel(record, SM90, installed()).name == record.kernel
    with pytest.raises(
        TunefaError, match="fwd_triton source_hash 0123abcd, but this machine has f"
    ):
        lock(record).kernel(record, SM90, installed(source_hash="ffff0000"))
    language.triton = "3.6.0"
    with pytest.raises(TunefaError) as caught:
        lock(record).kernel(record, SM90, installed(source_hash="ffff0000"))
    said = str(caught.value)
    assert f"has a record for {record.workload} on {H200} that cannot be used: it was " in said
    assert "but this machine has ffff0000; with Triton 3.7.1, but this machine has 3.6.0; " in said
    assert "; install the same versions on every rank" in said


def test_a_record_without_triton_s_version_is_not_trusted() -> None:
    old = measured(provenance=dated("2025-01-31T12:00:00Z"))
    assert (
        installed().why_not(old) == "it was measured with Triton None, but this machine has 3.7.1"
    )


def test_unknown_kernels_and_refused_configs_are_errors() -> None:
    other = measured(kernel="attention_fwd_tritn")
    with pytest.raises(TunefaError, match="unknown kernel 'attention_fwd_tritn': did you mean"):
        lock(other).kernel(other, SM90, installed())
    record = measured()
    with pytest.raises(TunefaError, match=r"the space refuses its config .*: BLOCK_M; install"):
        lock(record).kernel(record, SM90, installed(refused_block_m=frozenset({128})))


def test_the_installation_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = installed()
    assert one.why_not(measured()) is None
    monkeypatch.delattr(FakeLanguage, "versions")
    assert one.why_not(measured("q8192")) is None


def test_no_compiler_is_a_reason(language: FakeLanguage, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler() -> Any:
        raise TunefaError("no compiler found")

    monkeypatch.setattr(language, "versions", no_compiler)
    assert installed().why_not(measured()) == "no compiler found"


# ------------------------------------------------------------------------------ what is frozen


def test_the_environment_is_asked_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    unset = FreezeState()
    assert unset.file is None
    monkeypatch.setenv(VARIABLE, str(file))
    assert unset.file is None
    made = FreezeState()
    assert made.file is not None and made.file.records == (measured(),)
    monkeypatch.setenv(VARIABLE, "")
    assert made.file.path == file and FreezeState().file is None


def test_a_broken_file_is_an_error_until_it_is_mended(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = file.read_text(encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(file))
    made = FreezeState()
    for content, error in (("tunefa_schema: 1\nrecords: [\n", ":3: "), ("", ": the file is empty")):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(TunefaError) as caught:
            _ = made.file
        assert str(caught.value).startswith(f"TUNEFA_FROZEN: {file}{error}")
    file.unlink()
    with pytest.raises(TunefaError, match=r"TUNEFA_FROZEN: cannot read .*: No such file"):
        _ = made.file
    file.write_text(good, encoding="utf-8")
    assert made.file is not None


def test_a_frozen_process_takes_no_other_file(file: Path, tmp_path: Path) -> None:
    made = FreezeState()
    made.admit(tmp_path / "more.yaml")
    made.to(file)
    made.to(tmp_path / "." / file.name)  # the same again
    for frozen_too in (False, True):
        with pytest.raises(
            TunefaError, match=r"is the only file that it may use: do not load .*more\.yaml"
        ):
            made.admit(tmp_path / "more.yaml", frozen_too)
    with pytest.raises(TunefaError, match="is the only file that it may use"):
        made.admit(file)  # beside itself: it would look as if all were still served
    assert made.file is not None and made.file.path.name == file.name


def test_the_module_needs_no_torch() -> None:
    code = "import sys, tunefa.runtime.lock_file; assert not {'torch', 'triton'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], cwd=TREE, check=True)


# ------------------------------------------------------------------------------ records_to_lock


def test_a_lock_file_holds_the_best_measured_sorted() -> None:
    slower, best = measured(median_us=500.0), measured(config={**CONFIG, "BLOCK_M": 64})
    other, device = measured("q1024"), measured(device="NVIDIA A")
    records = [slower, other, predicted(), best, device]
    assert records_to_lock(records, installed()) == [device, other, best]
    assert records_to_lock(records[::-1], installed()) == [device, other, best]


def test_what_runs_here_comes_before_what_is_faster() -> None:
    stale = measured(
        median_us=1.0,
        provenance=dated("2026-01-31T12:00:00Z", triton="3.6.0"),
    )
    assert records_to_lock([stale, measured()], installed()) == [measured()]
    assert records_to_lock([stale], installed()) == [stale]
