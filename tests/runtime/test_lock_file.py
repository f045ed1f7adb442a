from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_kernel import FakeKernel, FakeLanguage
from tests.support.sample_records import CONFIG, dated, measured, predicted
from tests.support.tree import TREE
from tunefa.compile import languages
from tunefa.compile.serving import Installed
from tunefa.errors import TunefaError
from tunefa.runtime.lock_file import (
    MARK,
    VARIABLE,
    FreezeState,
    Locked,
    LockFile,
    records_to_lock,
)
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
        assert records_to_lock(records, installed()) == Locked((later,), ())


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
    kernel, remark = lock(record).kernel(record, ON_H200, installed())
    assert (kernel.name, remark) == (record.kernel, "")
    with pytest.raises(
        TunefaError,
        match=r"another source of attention_fwd_triton \(0123abcd, and this machine has f",
    ):
        lock(record).kernel(record, ON_H200, installed(source_hash="ffff0000"))
    language.triton = "3.6.0"
    with pytest.raises(TunefaError) as caught:
        lock(record).kernel(record, ON_H200, installed())
    said = str(caught.value)
    assert f"has a record for {record.workload} on {H200} that cannot be used: it was " in said
    assert "measured with Triton 3.7.1, and this machine has 3.6.0; install the same " in said
    assert "on every rank, export it with --unconfirmed, or measure again with: " in said


def test_an_entry_that_is_marked_serves_with_other_compilers(language: FakeLanguage) -> None:
    language.triton = "3.6.0"
    (record,) = records_to_lock([measured()], installed(), unconfirmed=True).records
    kernel, remark = lock(record).kernel(record, ON_H200, installed())
    assert kernel.name == record.kernel and remark.startswith("measured with Triton 3.7.1, and ")
    for made, refused in ((installed(source_hash="ffff0000"), "another source"),
                          (installed(refused_block_m=frozenset({128})), "BLOCK_M")):  # fmt: skip
        with pytest.raises(TunefaError, match=refused) as caught:
            lock(record).kernel(record, ON_H200, made)
        assert str(caught.value).endswith("--frozen --unconfirmed")


def test_unknown_kernels_and_refused_configs_are_errors() -> None:
    other = measured(kernel="attention_fwd_tritn")
    with pytest.raises(TunefaError, match="unknown kernel 'attention_fwd_tritn': did you mean"):
        lock(other).kernel(other, ON_H200, installed())
    record = measured()
    with pytest.raises(TunefaError, match="made with a config that the space refuses: BLOCK_M; in"):
        lock(record).kernel(record, ON_H200, installed(refused_block_m=frozenset({128})))


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
    with pytest.raises(TunefaError, match="is loaded already: leave out this load"):
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
    for each in (records, records[::-1]):
        assert records_to_lock(each, installed()) == Locked((device, other, best), ())


STALE = measured(median_us=1.0, provenance=dated("2026-01-31T12:00:00Z", triton="3.6.0"))
FOREIGN = measured("q1024", provenance={**measured().provenance, "source_hash": "ffff"})


@pytest.mark.parametrize("unconfirmed", [False, True])
def test_what_is_confirmed_comes_before_what_is_faster(unconfirmed: bool) -> None:
    for records in ([STALE, measured()], [measured(), STALE]):
        assert records_to_lock(records, installed(), unconfirmed) == Locked((measured(),), ())


def test_what_does_not_serve_is_left_out() -> None:
    records = [STALE, measured("q8192"), FOREIGN]
    found = records_to_lock(records, installed())
    assert found == Locked((measured("q8192"),), (FOREIGN, STALE))
    found = records_to_lock(records, installed(), unconfirmed=True)
    assert found.left_out == (FOREIGN,)
    marked, sound = found.records
    why = "measured with Triton 3.6.0, and this machine has 3.7.1"
    assert marked == replace(STALE, provenance={**STALE.provenance, MARK: why})
    assert sound == measured("q8192")


def test_a_mark_is_taken_off_where_the_record_is_confirmed() -> None:
    held = measured(provenance={**measured().provenance, MARK: "measured with another"})
    assert records_to_lock([held], installed(), unconfirmed=True) == Locked((measured(),), ())
