"""tunefa/spec/space_file.py: every way a file can be wrong is one sentence with file and line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sample_space import MODEL, TINY, written
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import space as spaces
from tunefa.spec.workload import Workload

SM90 = archs.load("sm90")
WORKLOAD = Workload.parse("q4096_d64")


def without(line: str) -> tuple[str, str]:
    return f"{line}\n", ""


PARAMETERS = TINY[TINY.index("  BLOCK:") : TINY.index("serves:")]

# (what to replace, by what, what the error says after the path)
BROKEN: dict[str, tuple[str, str, str]] = {
    "future schema": ("schema: 2", "schema: 3", r":1: .*schema 3.*upgrade tunefa"),
    "past schema": ("schema: 2", "schema: 1", r":1: .*schema 1.*: write 'priority' for 'order'"),
    "schema zero": ("schema: 2", "schema: 0", r":1: .*schema 0"),
    "schema as text": ("schema: 2", "schema: one", r":1: 'schema' must be a whole number"),
    "no schema": (*without("schema: 2"), r": key 'schema' is missing"),
    "no parameters": ("parameters:", "params:", r": key 'parameters' is missing"),
    "unknown key": ("op: fwd", "op: fwd\nlanguages: 3", r":4: unknown key 'languages'.*language"),
    "priority on no arch": (
        "op: fwd",
        "op: fwd\npriority_on: {sm91: 1}",
        r":4: unknown arch 'sm91'.*sm90",
    ),
    "priority that is no number": (
        "op: fwd",
        "op: fwd\npriority_on: {sm90: true}",
        r":4: the priority on sm90 is True: give a whole number",
    ),
    "priority by an unknown name": (
        "op: fwd",
        "op: fwd\npriority: 0 if seqlen < 512 else 2",
        r":4: unknown name 'seqlen'.*seqlen_",
    ),
    "priority by a parameter": ("op: fwd", "op: fwd\npriority: BLOCK", r":4: unknown name 'BLOCK'"),
    "duplicate key": ("op: fwd", "op: fwd\nop: fwd", r":4: key 'op' is already on line 3"),
    "duplicate rule": (
        "  one stage is for short blocks:",
        "  too much shared memory: true\n  one:",
        r":18: key 'too much shared memory' is already on line 17",
    ),
    "rule name no text": ("  too much shared memory:", "  1:", r":17: mapping key '1' is not text"),
    "unclosed bracket": ("[1, 2]", "[1, 2", r":9: .*flow sequence"),
    "tag": ("op: fwd", "op: !!python/none fwd", r":3: only plain data is read"),
    "other kernel": ("kernel: tiny", "kernel: tony", r":2: .*tony.*tiny"),
    "parameters no mapping": (
        PARAMETERS,
        "  - BLOCK\n",
        r":5: 'parameters' must be a mapping",
    ),
    "parameter no mapping": (
        "{values: [1, 2], doc: buffers}",
        "2",
        r":9: 'num_stages' must be a mapping",
    ),
    "no parameter": (
        PARAMETERS,
        "  {}\n",
        r":5: a space needs at least one parameter",
    ),
    "no values": ("values: [1, 2], ", "", r":9: parameter num_stages: key 'values' is missing"),
    "empty values": ("[1, 2]", "[]", r":9: parameter num_stages needs values, each once"),
    "value twice": ("[1, 2]", "[1, 2, 1]", r":9: parameter num_stages needs values, each once"),
    "list as value": ("[1, 2]", "[1, [2]]", r":9: parameter num_stages .*\[2\]"),
    "null as value": ("[1, 2]", "[1, null]", r":9: parameter num_stages .*None"),
    "no doc": (", doc: buffers", "", r":9: parameter num_stages: key 'doc' is missing"),
    "parameter extra": ("doc: buffers", "doc: buffers, of: 1", r":9: .*unknown key 'of'"),
    "parameter as workload": ("  num_stages:", "  batch:", r":9: .*batch.*already"),
    "definition as parameter": ("  bytes:", "  BLOCK:", r":13: .*BLOCK.*already"),
    "resource as definition": ("  smem_bytes:", "  bytes:", r":15: .*bytes.*already"),
    "expression a list": (
        "num_stages == 2 or BLOCK <= 32",
        "[num_stages == 2]",
        r":18: 'one stage is for short blocks' must be",
    ),
    "expression null": ("window_left == None", "", r":11: 'it knows no window' must be"),
    "syntax": (
        "window_left == None",
        "window_left ==",
        r":11: it knows no window: in 'window_left =='",
    ),
    "attribute": ("window_left == None", "dtype.upper()", r":11: .*not allowed"),
    "call": ("window_left == None", "open('x')", r":11: .*unknown function 'open'"),
    "lambda": ("BLOCK * head_dim * dtype_bytes", "lambda: 1", r":13: .*not allowed"),
    "unknown name in serves": (
        "window_left == None",
        "window_lift == None",
        r":11: .*'window_lift'.*window_left\b",
    ),
    "parameter in serves": ("window_left == None", "BLOCK > 1", r":11: .*unknown name 'BLOCK'"),
    "unknown name in define": ("BLOCK * head_dim", "BLOCKS * head_dim", r":13: .*mean BLOCK\?"),
    "later name in define": ("BLOCK * head_dim", "smem_bytes * head_dim", r":13: .*'smem_bytes'"),
    "unknown name in resources": ("bytes * num_stages", "byte * num_stages", r":15: .*name 'byte'"),
    "unknown name in rules": (
        "num_stages == 2 or",
        "STAGE == 2 or",
        r":18: .*did you mean num_stages\?",
    ),
    "no tiling": (MODEL, "", r": key 'tiling' is missing"),
    "unknown name in tiling": ("warps: 4", "warps: num_warps", r":24: warps: .*'num_warps'"),
    "unknown field of the tiling": ("warps: 4", "warp: 4", r":24: warp: .*did you mean warps\?"),
    "no such field in the tiling": ("warps: 4, ", "", r":24: tiling lacks warps"),
    "unknown name in when": (
        "when: head_dim",
        "when: head_dims",
        r":21: .*mean head_dim\?",
    ),
    "parameter in when": ("when: head_dim", "when: BLOCK", r":21: .*unknown name 'BLOCK'"),
    "when a list": ("when: head_dim <= 64", "when: [1]", r":21: 'when' must be"),
    "default misses one": (
        "{BLOCK: 16, num_stages: 1}",
        "{BLOCK: 16}",
        r":23: default 2.*num_stages",
    ),
    "default has another": ("num_stages: 1}", "num_stages: 1, W: 2}", r":23: default 2.*W"),
    "default out of space": ("{BLOCK: 16,", "{BLOCK: 17,", r":23: default 2.*BLOCK=17"),
    "default no mapping": (
        "  - config: {BLOCK: 16, num_stages: 1}",
        "  - 16",
        r": default 2 must be a mapping",
    ),
    "unaligned unknown": ("{BLOCK: 16}", "{BLOK: 16}", r":19: .*'BLOK': did you mean BLOCK"),
    "unaligned out of space": ("{BLOCK: 16}", "{BLOCK: 1}", r":19: BLOCK=1 is not in the space"),
    "unaligned of another type": ("{BLOCK: 16}", "{BLOCK: 16.0}", r":19: BLOCK=16.0 is not in"),
    "unaligned a list": ("{BLOCK: 16}", "[BLOCK]", r":19: 'unaligned' must be"),
    "unaligned says nothing": ("{BLOCK: 16}", "' '", r":19: 'unaligned' must say why"),
    "defaults no list": ("defaults:", "defaults: 3\nx:", r":20: 'defaults' must be a list"),
}


@pytest.mark.parametrize(("old", "new", "error"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, error: str
) -> None:
    assert old in TINY
    path = written(tmp_path, TINY.replace(old, new))
    with pytest.raises(TunefaError, match=f"^{path}{error}"):
        spaces.read(path)


def empty(path: Path) -> None:
    path.write_text("")


def not_utf_8(path: Path) -> None:
    path.write_bytes(TINY.encode().replace(b"rows", b"\xff\xfe"))


def a_list(path: Path) -> None:
    path.write_text("- 1")


@pytest.mark.parametrize("make", [empty, not_utf_8, a_list, Path.unlink, Path.mkdir])
def test_what_is_no_file_of_a_space(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "tiny.yaml"
    if make is Path.unlink:
        path.touch()
    make(path)
    with pytest.raises(TunefaError, match=str(path)):
        spaces.read(path)


def mutations() -> Iterator[str]:
    """The file cut off anywhere, without any one line, with any one value replaced."""
    yield from (TINY[:end] for end in range(len(TINY)))
    lines = TINY.splitlines(keepends=True)
    for number, line in enumerate(lines):
        before, after = "".join(lines[:number]), "".join(lines[number + 1 :])
        yield before + after
        key = line.partition(":")[0]
        for value in ("", "[]", "{}", "0", "true", "a b", "-1.5", "[[]]", "{a: {}}", "1e400"):
            yield f"{before}{key}: {value}\n{after}"


def test_whatever_a_file_holds_only_tunefa_errors_come_out(tmp_path: Path) -> None:
    for text in mutations():
        path = written(tmp_path, text)
        try:
            spaces.read(path).feasible(WORKLOAD, SM90)
        except TunefaError as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)
