"""tunefa/store/bundle_file.py: what is written is read, and nothing else is accepted."""

from __future__ import annotations

import json
import os
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_bundles
from tests.support.sample_bundles import IMAGES, contents, plan
from tests.support.sample_records import measured
from tunefa.errors import TunefaError
from tunefa.store import bundle_file, document
from tunefa.store.bundle_file import BundleFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return sample_bundles.write(tmp_path / "app.tunefa", plan(), plan("bwd_q100_d64_fp16_w8"))


def test_what_is_written_is_read(path: Path) -> None:
    file, wrote = BundleFile(path), contents()
    assert file.plans == [plan(), plan("bwd_q100_d64_fp16_w8")]
    assert file.kernels == wrote.kernels and file.binaries == wrote.binaries
    assert file.provenance == {"tunefa": "0.1.0", "licence": "Apache-2.0"}
    assert file.left_out == wrote.left_out
    assert {name: file.image(name) for name in IMAGES} == IMAGES
    assert file.records == [measured()]
    assert file.chips == {"sm90": "NVIDIA H200 (sm90)"}


def test_equal_contents_are_equal_files(path: Path, tmp_path: Path) -> None:
    again = sample_bundles.write(tmp_path / "b.tunefa", plan(), plan("bwd_q100_d64_fp16_w8"))
    assert again.read_bytes() == path.read_bytes()
    assert BundleFile(again).digest == BundleFile(path).digest
    other = sample_bundles.write(tmp_path / "c.tunefa", plan("q2048"))
    assert BundleFile(other).digest != BundleFile(path).digest


def test_every_zip_program_reads_it_and_its_records_are_a_document(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {each.compress_type for each in archive.infolist()} == {zipfile.ZIP_STORED}
        text = archive.read("records.yaml").decode()
    assert document.from_text(text, "records.yaml") == [measured()]


def test_a_changed_byte_is_noticed_wherever_it_is(path: Path) -> None:
    whole = path.read_bytes()
    chance = random.Random(0)
    places = {0, 1, len(whole) - 1, len(whole) - 70, *chance.sample(range(len(whole)), 60)}
    for place in sorted(places):
        changed = bytearray(whole)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(TunefaError, match=re.escape(f"{path} is ")):
            BundleFile(path)
        assert bundle_file.is_one(path)


def test_a_file_that_was_cut_short_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for length in (1, 10, 90, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(TunefaError, match="was cut short: its end has no checksum"):
            BundleFile(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(TunefaError, match=r"app\.tunefa is not a bundle of tunefa, or was cut"):
        BundleFile(path)
    path.write_bytes(b"")
    with pytest.raises(TunefaError, match=r"app\.tunefa is empty: make it again"):
        BundleFile(path)


def rewritten(path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Writes a bundle whose checksum is right, with another manifest; None leaves a key out."""
    dumps = json.dumps

    def dump(data: Any, **settings: Any) -> str:
        data = {key: value for key, value in {**data, **changes}.items() if value is not None}
        return dumps(data, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", dump)
        sample_bundles.write(path)


def test_another_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten(path, monkeypatch, tunefa_bundle=2)
    with pytest.raises(TunefaError, match=r"app\.tunefa is a bundle of version 2, and this tunefa"):
        BundleFile(path)


@pytest.mark.parametrize(
    "changes",
    [{"plans": None}, {"tunefa_bundle": None}, {"plans": [{"arch": "sm90"}]}, {"plans": 5},
     {"plans": [{**plan().to_dict(), "workload": "nothing"}]}],
)  # fmt: skip
def test_another_manifest_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    rewritten(path, monkeypatch, **changes)
    with pytest.raises(TunefaError, match=r"app\.tunefa is no bundle that this tunefa can read"):
        BundleFile(path)


def test_an_image_that_was_changed_since_is_noticed(path: Path) -> None:
    file = BundleFile(path)
    whole = path.read_bytes()
    with open(path, "r+b") as inside:  # not replaced, as tunefa does it
        inside.seek(whole.index(b"first cubin"))
        inside.write(b"FIRST")
    (first, second) = IMAGES
    with pytest.raises(TunefaError, match=r"app\.tunefa"):
        file.image(first)
    assert file.image(second) == IMAGES[second]
    with pytest.raises(TunefaError, match="is no bundle that this tunefa can read"):
        file.image("binaries/none.cubin")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match=r"cannot read .*none\.tunefa: No such file"):
        BundleFile(tmp_path / "none.tunefa")
    with pytest.raises(TunefaError, match="Is a directory"):
        BundleFile(tmp_path)
    os.mkfifo(tmp_path / "pipe.tunefa")
    with pytest.raises(TunefaError, match="is not a regular file: name a bundle"):
        BundleFile(tmp_path / "pipe.tunefa")


def test_bundles_are_known_by_their_beginning_or_their_name(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "renamed"
    other.write_bytes(path.read_bytes())
    assert bundle_file.is_one(other) and bundle_file.is_one(tmp_path / "none.tunefa")
    other.write_text(document.to_text([measured()]))
    assert not bundle_file.is_one(other) and not bundle_file.is_one(tmp_path / "none.yaml")


def test_processes_share_its_memory(path: Path) -> None:
    """It is a mapping of the file, of which the kernel keeps one copy."""
    file = BundleFile(path)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line for line in maps if str(path) in line]
    assert lines and all(" r--" in line for line in lines)
    assert file.plans


def test_no_other_file_is_overwritten(path: Path, tmp_path: Path) -> None:
    sample_bundles.write(path)  # a bundle is
    path.write_bytes(b"")
    sample_bundles.write(path)
    path.write_text("notes of mine")
    with pytest.raises(TunefaError, match=r"app\.tunefa is no bundle; not overwritten: move it aw"):
        sample_bundles.write(path)
    assert path.read_text() == "notes of mine"
    with pytest.raises(
        TunefaError, match=r"train\.py' is not that of a bundle: end it in \.tunefa"
    ):
        sample_bundles.write(tmp_path / "train.py")
