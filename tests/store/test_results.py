from __future__ import annotations

import hashlib
import json
import multiprocessing
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

from tests.support.sample_records import CONFIG, dated, measured, predicted
from tests.support.tree import TREE
from tunefa.errors import TunefaError
from tunefa.store import document
from tunefa.store import results as store
from tunefa.store.record import SCHEMA
from tunefa.store.results import Store

Q4096 = "fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal"

VALID = textwrap.dedent(
    f"""\
    tunefa_schema: 2
    records:
    - kernel: attention_fwd_triton
      arch: sm90
      device: NVIDIA H200
      workload: {Q4096}
      config: {{BLOCK_M: 128, USE_TMA: 1}}
      objective: measured
      median_us: 412
      tflops: 5.3325e2
      provenance: {{source_hash: abc, date: 2025-01-31T12:00:00Z}}
    """
)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_reads_a_document_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "hand.yaml"
    path.write_text(VALID)
    (record,) = store.read(path)
    assert (record.median_us, record.tflops, record.resources) == (412.0, 533.25, None)
    assert record.config == {"BLOCK_M": 128, "USE_TMA": 1}


def test_reads_version_0_a_bare_list(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(VALID.split("records:\n")[1])
    assert [str(record.workload) for record in store.read(path)] == [Q4096]


def test_every_older_version_has_a_migration() -> None:
    assert len(document._MIGRATIONS) == SCHEMA


BROKEN = {
    "truncated": (VALID[: VALID.index(" USE_TMA")], "bad.yaml:8: "),
    "truncated in a key": (VALID[: VALID.index("ective")], "bad.yaml:9: "),
    "a field cut off": (
        VALID[: VALID.index("  provenance")],
        "bad.yaml:3: record 1: key 'provenance' is missing",
    ),
    "duplicate key": (VALID.replace("tflops: 5", "median_us: 5"), "bad.yaml:10: key 'median_us'"),
    "unknown field": (VALID.replace("tflops", "tflop"), "bad.yaml:"),
    "wrong type": (VALID.replace("412", "fast"), "bad.yaml:9: 'median_us' must be"),
    "wrong workload": (VALID.replace("h32_kv8", "h32_kv5"), "bad.yaml:6: "),
    "not a result": (VALID.replace("412", "-412"), "bad.yaml:3: record 1: median_us -412.0"),
    "future version": (
        VALID.replace("schema: 2", "schema: 3").replace("config:", "tile:"),
        "bad.yaml:1: was written by a newer tunefa (schema 3, this one reads up to 2): upgrade",
    ),
    "no version": (VALID.replace("tunefa_schema: 2\n", ""), "bad.yaml: not a results document"),
    "version 0 spelled out": (VALID.replace("schema: 2", "schema: 0"), "bad.yaml:1: "),
    "version in words": (VALID.replace("schema: 2", "schema: one"), "bad.yaml:1: "),
    "second list": (VALID + "recordz: []\n", "bad.yaml:12: unknown key 'recordz'"),
    "not a mapping": ("5\n", "bad.yaml: not a results document"),
    "record is text": ("tunefa_schema: 2\nrecords: [x]\n", "bad.yaml: record 1: "),
    "empty": ("", "bad.yaml: the file is empty"),
    "python object": (VALID + "x: !!python/object/apply:os.getcwd []\n", "bad.yaml:12: "),
    "zeros": ("\0" * 4096, "bad.yaml:1: "),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_file_is_one_sentence_with_its_line_and_stays(tmp_path: Path, what: str) -> None:
    text, says = BROKEN[what]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(TunefaError) as error:
        store.read(path)
    assert str(error.value).startswith(f"{tmp_path}/{says}")
    if text:  # in an empty file there is nothing to lose
        with pytest.raises(TunefaError, match="not overwritten: move it away"):
            store.write(path, [measured()])
    assert path.read_text() == text
    assert files(tmp_path) == ["bad.yaml"]


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\x7fELF\x02\xff\xfe")
    with pytest.raises(TunefaError, match=r"bad\.yaml.*UTF-8"):
        store.read(path)
    with pytest.raises(TunefaError, match="not overwritten"):
        store.write(path, [measured()])
    assert path.read_bytes() == b"\x7fELF\x02\xff\xfe"


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match=r"gone\.yaml"):
        store.read(tmp_path / "gone.yaml")
    with pytest.raises(TunefaError, match=str(tmp_path)):
        store.read(tmp_path)


def test_what_is_shipped_comes_after_the_user_s_own() -> None:
    """In another process, where conftest.py has put nothing in its place."""
    code = "from tunefa.store import results; print(*results.default_store().roots, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(store.user_root()), str(TREE / "results")]


def test_the_user_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    assert store.user_root() == tmp_path / "results"
    mine, shipped = store.default_store().roots
    assert mine == tmp_path / "results"
    assert shipped == store.shipped_root() != mine
    monkeypatch.setenv("TUNEFA_HOME", "~/there")
    assert store.user_root() == Path.home() / "there" / "results"
    monkeypatch.setenv("TUNEFA_HOME", "")
    assert store.user_root().parts[-2:] == ("tunefa", "results")


def test_a_record_s_file_says_what_it_is(tmp_path: Path) -> None:
    kept = Store([tmp_path])
    identity = json.dumps([CONFIG, "measured", "0123abcd", "graph"], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    path = kept.add(measured())
    name = f"sm90/nvidia-h200/{Q4096}--attention_fwd_triton--{digest}.yaml"
    assert path == tmp_path / name
    assert kept.add(predicted()).parent == tmp_path / "sm90" / "predicted"
    assert kept.add(measured(device="\u4e2d")).parent == tmp_path / "sm90" / "unnamed"


def test_finding_the_same_config_again_replaces_its_record(tmp_path: Path) -> None:
    kept = Store([tmp_path])
    first = kept.add(measured())
    assert kept.add(measured(median_us=1.0)) == first
    others = [
        measured(config={**CONFIG, "BLOCK_M": 64}),
        measured(provenance=dated("2025-01-31", source_hash="other")),
        measured(kernel="other"),
        measured("fwd_q8192"),
        measured(mode="eager"),
        predicted(),
    ]
    assert len({first, *(kept.add(record) for record in others)}) == 7
    assert len(kept.records()) == 7
    assert measured(median_us=1.0) in kept.records()


def test_add_keeps_a_record_beside_a_file_it_cannot_read(tmp_path: Path) -> None:
    kept = Store([tmp_path])
    path = kept.add(measured())
    newer = VALID.replace("schema: 2", "schema: 3")
    path.write_text(newer)
    beside = kept.add(measured())
    assert beside.name == f"{path.stem}-2.yaml"
    assert kept.add(measured(median_us=1.0)) == beside
    assert path.read_text() == newer
    with pytest.warns(UserWarning, match="newer tunefa"):
        assert kept.records() == [measured(median_us=1.0)]


def test_a_broken_file_hides_no_other(tmp_path: Path) -> None:
    kept = Store([tmp_path])
    kept.add(measured())
    (tmp_path / "bad.yaml").write_text(VALID[:100])
    with pytest.warns(UserWarning, match=r"left out: .*bad\.yaml:\d+: "):
        assert kept.records() == [measured()]


def test_files_are_read_again_only_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Store([tmp_path])
    path = kept.add(measured())
    first = kept.records()
    monkeypatch.setattr(store, "read", lambda path: pytest.fail("read again"))
    assert kept.records() == first
    monkeypatch.undo()
    Store([tmp_path]).add(measured(median_us=1.0))
    assert kept.records() == [measured(median_us=1.0)]
    path.unlink()
    assert kept.records() == []


def test_roots_may_be_files_and_may_be_missing(tmp_path: Path) -> None:
    best = tmp_path / "best.yaml"
    store.write(best, [measured(), predicted()])
    kept = Store([tmp_path / "gone", best])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept.records() == [measured(), predicted()]
    with pytest.raises(TunefaError, match="cannot write"):
        Store([best]).add(measured())
    with pytest.raises(TunefaError, match="no folder"):
        Store([]).add(measured())


def test_files_being_written_are_not_read(tmp_path: Path) -> None:
    (tmp_path / ".best.yaml.17-0a.tmp").write_text("half")
    (tmp_path / ".best.yaml").write_text("half")
    assert Store([tmp_path]).records() == []


def test_best_is_one_record_per_device_and_workload(tmp_path: Path) -> None:
    user, shipped = Store([tmp_path / "user"]), Store([tmp_path / "shipped"])
    fast = measured(median_us=10.0)
    for record in (measured(median_us=20.0, kernel="other"), predicted(), measured("fwd_q8192")):
        shipped.add(record)
    user.add(fast)
    both = Store([tmp_path / "user", tmp_path / "shipped"])
    assert both.best() == [predicted(), fast, measured("fwd_q8192")]


def test_a_user_s_functions_are_a_place_of_their_own(tmp_path: Path) -> None:
    """FlexAttention with a mask is no slower or faster attention of the same lengths."""
    written, names = Store([tmp_path]), ("a.01", "a.02", "a")
    for name in names:
        written.add(measured(kernel=name))
    assert {record.functions for record in written.best()} == {"01", "02", ""}


def test_modes_do_not_supersede_each_other_and_the_eager_one_serves(tmp_path: Path) -> None:
    """Graphs were measured before there were modes, or are measured beside eager calls."""
    kept = Store([tmp_path])
    old, new = dated("2025-01-31T00:00:00Z"), dated("2026-01-31T00:00:00Z")
    graph = measured(median_us=1.0, mode=None, provenance=old)
    eager = measured(median_us=50.0, mode="eager", provenance=old)
    later = measured(median_us=2.0, mode="graph", provenance=new, config={"BLOCK_M": 64})
    for record in (graph, eager, later):
        kept.add(record)
    assert len(kept.records()) == 3
    assert kept.best() == [eager]
    assert store.current([graph, eager, later]) == [eager, later]


def test_a_better_prediction_stands_while_nothing_else_changed(tmp_path: Path) -> None:
    better = predicted(median_us=10.0, provenance=dated("2025-01-31", triton="3.7.1"))
    worse = predicted(median_us=20.0, provenance=dated("2025-02-01", triton="3.7.1"))
    assert store.current([better, worse]) == store.current([worse, better]) == [better]
    for change in ({"triton": "3.8.0"}, {"triton": "3.7.1", "source_hash": "another"}):
        changed = predicted(median_us=30.0, provenance=dated("2025-03-01", **change))
        assert store.current([better, worse, changed]) == [changed]
    raced = [measured(median_us=us, provenance=worse.provenance) for us in (10.0, 20.0)]
    assert store.current(raced) == raced[:1], "of equals the first"


def test_of_equals_the_earlier_root_s_wins(tmp_path: Path) -> None:
    mine = measured(provenance=dated("2025-01-31", driver="mine"))
    theirs = measured(provenance=dated("2025-01-31", driver="theirs"))
    Store([tmp_path / "a"]).add(theirs)
    Store([tmp_path / "b"]).add(mine)
    assert Store([tmp_path / "b", tmp_path / "a"]).best() == [mine]
    assert Store([tmp_path / "a", tmp_path / "b"]).best() == [theirs]


def add_many(root: str, writer: int) -> None:
    """One of two processes: results of its own, and one that both find."""
    kept = Store([Path(root)])
    for i in range(20):
        kept.add(measured(config={**CONFIG, "BLOCK_M": 2 * i + writer}))
        kept.add(measured("fwd_q8192", median_us=1.0 + i))


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=add_many, args=(str(tmp_path), i)) for i in (0, 1)]
    for writer in writers:
        writer.start()
    kept = Store([tmp_path])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a half-written file would be warned of
        while any(writer.is_alive() for writer in writers):
            kept.records()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = sorted(record.config["BLOCK_M"] for record in kept.records() if record.median_us > 400)
    assert found == list(range(40))
    assert len(files(tmp_path)) == 41
