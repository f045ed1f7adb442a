"""tunefa/spec/shared_memory.py: where regions lie, what they add up to, and wrong files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.own_kernels import OwnKernels
from tests.support.sample_space import TINY, written
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import shared_memory
from tunefa.spec import space as spaces
from tunefa.spec.shared_memory import Region, SharedMemory
from tunefa.spec.workload import Workload

SM90 = archs.load("sm90")
WORKLOAD = Workload.parse("q4096_d64")
RESOURCES = "resources:\n  smem_bytes: bytes * num_stages\n"
REGIONS = """\
shared_memory:
  q: {bytes: bytes}
  k: {bytes: 48 * BLOCK, slots: num_stages, at: 0 if num_stages == 2 else q_end, overlaps: [q]}
  v:
    bytes: 1000
    at: round_up(k_end, 1024)
    overlaps: [q]
"""
LAID_OUT = TINY.replace(RESOURCES, REGIONS)


def laid_out(folder: Path, block: int, stages: int, text: str = LAID_OUT) -> SharedMemory:
    """The layout of a config of the space in `text`."""
    space = spaces.read(written(folder, text))
    config = {"BLOCK": block, "num_stages": stages}
    made = space.shared_memory(config, WORKLOAD, SM90)
    assert made is not None
    return made


def test_a_region_lies_behind_the_one_before_or_where_it_says(tmp_path: Path) -> None:
    behind = laid_out(tmp_path, block=16, stages=1)
    q, k, v = Region("q", 0, 2048, 1), Region("k", 2048, 768, 1), Region("v", 3072, 1000, 1)
    assert behind == SharedMemory((q, k, v))
    assert [region.end for region in behind.regions] == [2048, 2816, 4072] and behind.bytes == 4072
    over = laid_out(tmp_path, block=64, stages=2)
    q, k, v = Region("q", 0, 8192, 1), Region("k", 0, 3072, 2), Region("v", 6144, 1000, 1)
    assert over == SharedMemory((q, k, v)) and over.bytes == 8192


def test_the_largest_end_is_the_resource(tmp_path: Path) -> None:
    space = spaces.read(written(tmp_path, LAID_OUT))
    for config in space.feasible(WORKLOAD, SM90).configs:
        made = space.shared_memory(config, WORKLOAD, SM90)
        assert made is not None
        assert space.estimate(config, WORKLOAD, SM90) == {"smem_bytes": made.bytes}
    assert space.seen_by_cost_model == ("BLOCK", "num_stages")


def test_rules_refuse_by_the_size_and_by_ends(tmp_path: Path) -> None:
    config = {"BLOCK": 64, "num_stages": 2}
    for old, new in (
        ("smem_bytes <= smem_per_block_bytes", "smem_bytes < 8192"),
        ("smem_bytes <= smem_per_block_bytes", "v_end != 7144"),
    ):
        space = spaces.read(written(tmp_path, LAID_OUT.replace(old, new)))
        assert space.refusal(config, WORKLOAD, SM90) == "too much shared memory"
        counted = space.feasible(WORKLOAD, SM90)
        assert counted.refused["too much shared memory"] and config not in counted.configs


def test_one_region_is_a_layout(tmp_path: Path) -> None:
    made = laid_out(tmp_path, 16, 1, TINY.replace(RESOURCES, "shared_memory: {q: {bytes: 12}}\n"))
    assert made == SharedMemory((Region("q", 0, 12, 1),)) and made.bytes == 12


def test_macros_say_offset_bytes_of_a_slot_and_slots(tmp_path: Path) -> None:
    macros = laid_out(tmp_path, block=64, stages=2).macros
    assert list(macros) == [
        f"{region}_{field}" for region in "QKV" for field in ("OFFSET", "BYTES", "SLOTS")
    ]
    assert (macros["K_OFFSET"], macros["K_BYTES"], macros["K_SLOTS"]) == (0, 3072, 2)


def test_without_the_section_the_compiler_lays_out(tmp_path: Path) -> None:
    space = spaces.read(written(tmp_path))
    assert space.shared_memory({"BLOCK": 16, "num_stages": 1}, WORKLOAD, SM90) is None


# ---------------------------------------------------------------------------- files that are wrong

# (what to replace, by what, what the error says after the path)
BROKEN: dict[str, tuple[str, str, str]] = {
    "no mapping": (REGIONS, "shared_memory: 3\n", r":14: 'shared_memory' must be a mapping"),
    "region no mapping": ("{bytes: bytes}", "64", r":15: 'q' must be a mapping"),
    "region twice": ("  k: {", "  q: {", r":16: key 'q' is already on line 15"),
    "name no macro": ("  q: {", "  Q tile: {", r":15: region Q tile: the name must be lower-case"),
    "no bytes": ("{bytes: bytes}", "{slots: 1}", r":15: region q: key 'bytes' is missing"),
    "unknown key": ("{bytes: bytes}", "{bytes: bytes, slot: 2}", r":15: .*'slot'.*mean slots\?"),
    "bytes a list": ("{bytes: bytes}", "{bytes: [1]}", r":15: region q: 'bytes' must be"),
    "overlaps a name": ("[q]}", "q}", r":16: region k: 'overlaps' must be a list"),
    "overlaps a later one": ("[q]}", "[v]}", r":16: .*unknown earlier region 'v' \(known: q\)"),
    "overlaps itself": ("[q]}", "[k]}", r":16: .*unknown earlier region 'k'"),
    "overlaps a number": ("[q]}", "[1]}", r":16: .*unknown earlier region '1'"),
    "syntax": ("48 * BLOCK", "48 *", r":16: region k: bytes: in '48 \*': "),
    "not allowed": ("48 * BLOCK", "open('x')", r":16: region k: bytes: .*unknown function 'open'"),
    "unknown name": ("48 * BLOCK", "48 * BLOK", r":16: region k: unknown name 'BLOK'.*mean BLOCK"),
    "a later end": ("else q_end", "else v_end", r":16: region k: unknown name 'v_end'"),
    "its own end": ("round_up(k_end", "round_up(v_end", r":17: region v: unknown name 'v_end'"),
    "an end in define": ("BLOCK * head_dim", "q_end * head_dim", r":13: .*unknown name 'q_end'"),
    "size as resource": (REGIONS, REGIONS + RESOURCES, r":22: smem_bytes is what 'shared_memory' "),
    "end as definition": ("  bytes:", "  q_end: 1\n  bytes:", r":16: region q: q_end is defined "),
    "end as parameter": ("  num_stages: {", "  q_end: {", r":15: .* q_end is already taken"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "error"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, error: str
) -> None:
    assert old in LAID_OUT
    text = LAID_OUT.replace(old, new, 1)
    if new.startswith("  q_end: {"):
        text = text.replace("num_stages", "q_end")
    path = written(tmp_path, text)
    with pytest.raises(TunefaError, match=f"^{path}{error}"):
        spaces.read(path)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (", overlaps: [q]}", "}", r":16: region k: its bytes 0 to 6144 overlap region q, bytes 0 "
         r"to 8192: move it with 'at', or add q to its 'overlaps'"),
        ("    overlaps: [q]\n", "", r":17: region v: its bytes 6144 to 7144 overlap region q"),
        ("round_up(k_end, 1024)", "k_end - 1", r":17: region v: .*6143 to 7143 overlap region k"),
        ("bytes: 1000", "bytes: 1000 / 2", r":17: region v: bytes must be a whole .*, not 500\.0"),
        ("bytes: 1000", "bytes: 0 - 8", r":17: region v: bytes must be a whole number.*, not -8"),
        ("slots: num_stages", "slots: causal", r":16: region k: slots must be a whole .*not True"),
        ("round_up(k_end, 1024)", "0 - k_end", r":17: region v: offset must be a .*, not -6144"),
        ("48 * BLOCK", "48 * BLOCK // 0", r":16: region k: .*zero"),
    ],
)  # fmt: skip
def test_regions_that_cannot_lie_so(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert old in LAID_OUT
    with pytest.raises(TunefaError, match=f"^{tmp_path / 'tiny.yaml'}{error}"):
        laid_out(tmp_path, block=64, stages=2, text=LAID_OUT.replace(old, new, 1))


def test_an_empty_region_overlaps_nothing(tmp_path: Path) -> None:
    empty = LAID_OUT.replace("bytes: 1000", "bytes: 0").replace("    overlaps: [q]\n", "")
    assert laid_out(tmp_path, 64, 2, empty).regions[2] == Region("v", 6144, 0, 1)


def mutations() -> Iterator[str]:
    """The section cut off anywhere, without any one line, with any one value replaced."""
    before, after = LAID_OUT.split(REGIONS)
    lines = REGIONS.splitlines(keepends=True)
    yield from (before + REGIONS[:end] + "\n" + after for end in range(len(REGIONS)))
    for number, line in enumerate(lines):
        above, below = before + "".join(lines[:number]), "".join(lines[number + 1 :]) + after
        yield above + below
        key = line.partition(":")[0]
        for value in (
            "",
            "[]",
            "{}",
            "0",
            "true",
            "a b",
            "-1.5",
            "'1 # 2'",
            "{bytes: {}}",
            "1e400",
        ):
            yield f"{above}{key}: {value}\n{below}"


def test_whatever_a_section_holds_only_tunefa_errors_come_out(tmp_path: Path) -> None:
    for text in mutations():
        path = written(tmp_path, text)
        try:
            space = spaces.read(path)
            for config in space.feasible(WORKLOAD, SM90).configs:
                space.shared_memory(config, WORKLOAD, SM90)
        except TunefaError as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)


# ---------------------------------------------------------------------------------- what hashes it


def test_the_source_of_a_layout_is_what_it_follows_from(tmp_path: Path) -> None:
    def source(old: str = "", new: str = "") -> str:
        text = LAID_OUT.replace("define:\n", "define:\n  other: 2 * BLOCK\n")
        assert old in text
        space = spaces.read(written(tmp_path, text.replace(old, new)))
        return shared_memory.source(space.shared_memory_exprs, space.define)

    assert source() == source("other: 2", "other: 3") == source("doc: rows", "doc: lines")
    changes = [
        ("48 *", "49 *"),
        ("dtype_bytes\n", "dtype_bytes * 2\n"),
        ("k_end, 1024", "k_end, 8"),
    ]
    assert len({source(), *(source(*change) for change in changes)}) == 4
    plain = spaces.read(written(tmp_path))
    assert shared_memory.source(plain.shared_memory_exprs, plain.define) == ""


def test_a_layout_is_a_part_of_the_source_hash(own_kernels: OwnKernels) -> None:
    text = LAID_OUT.replace("kernel: tiny", "kernel: NAME")
    first = own_kernels.add("laid_out", "a = 1", text).source_hash
    renamed = text.replace("too much shared memory", "it is too large")
    assert own_kernels.add("laid_out", "a = 1", renamed).source_hash == first
    moved = text.replace("round_up(k_end, 1024)", "round_up(k_end, 2048)")
    assert own_kernels.add("laid_out", "a = 1", moved).source_hash != first
