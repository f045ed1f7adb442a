"""Names are the field's words: none of those that they replaced is left as a name.

Names are those of variables, functions, parameters and attributes in Python, keys in YAML, and
identifiers and macros in CUDA C++; in Python also strings that are a parameter's old name and
nothing else. What is said in comments and sentences is not looked at.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from tests.support.tree import TREE, statements

INSTEAD = {
    "SLACK": "RESCALE_THRESHOLD",
    "LAG": "RESCALE_THRESHOLD",
    "ROOM": "RESCALE_THRESHOLD",
    "OVERLAP": "INTRA_WG_OVERLAP",
    "P_SHARED": "P_IN_SMEM",
    "PACK_HEADS": "PACK_GQA",
    "CLUSTER": "CLUSTER_SIZE",
    "EXP2_FMA": "EX2_EMULATION_FREQ",
    "LANE_SUM": "DEFER_ROW_SUM",
    "SECTION_MB": "L2_SECTION_MB",
    "SECTION_HEADS": "L2_SECTION_HEADS",
    "O_PARTS": "EPILOGUE_SUBTILE",
    "SWIZZLE": "SWIZZLE_BYTES",
    "BLOCKS_PER_SM": "MIN_BLOCKS_PER_SM",
    "SHARE_QK": "SHARE_QK_SMEM",
    "LOADS": "USE_TMA",
    "HALF_DIAGONAL": "SPLIT_DIAGONAL_BLOCK",
    "K_FIRST": "LOAD_K_FIRST",
    "LOOPS": "SPLIT_MASK_LOOP",
    "WARPS": "num_warps",
    "STAGES": "num_stages",
    "window": "window_left",
    "ahead": "window_right",
    "program": "cta",
    "ring": "pipeline",
    "turns": "scheduler barrier",
    "tray": "work info",
    "hand": "tile counter",
    "draw": "tile counter",
    "prologue": "preprocess",
    "decay": "row_scale",
    "put_aside": "two-level accumulation",
    "take_back": "two-level accumulation",
    "law": "latency_model",
    "order": "priority",
    "fitted": "specialize",
    "awkward": "ragged",
    "by_promise": "by_predicted_time",
    "Outlook": "StoppingRule",
    "room": "RESCALE_THRESHOLD",
}
"""The names that must not be, and what the field calls them."""
ALLOWED = {
    "window": {
        "tunefa/runtime/*": "the parameter of flash_attention, which both sides or one make",
        "tunefa/integrations/*": "the same, made of other libraries' windows",
        "tests/*": "calls of it",
        "benchmarks/*": "calls of it, and of FlashAttention's own",
    },
    "program": {
        "tunefa/compile/nvrtc.py": "an nvrtcProgram",
        "kernels/triton/*": "Triton's word for one instance of a kernel, as in tl.program_id",
        "tests/*": "a program that a test starts, and Triton's word for what tests of it simulate",
    },
    "draw": {
        "tunefa/experiments/*": "draws a plot",
        "tunefa/report/*": "draws a plot",
        "tunefa/cli/reports/work.py": "calls what draws a roofline",
        "tests/*": "what hypothesis hands to a strategy",
        "benchmarks/*": "draws a plot, or a workload by chance",
    },
    "order": {
        "tunefa/search/*": "an order of configs",
        "tunefa/store/*": "an order of records",
        "tunefa/measure/*": "the order in which racers are timed",
        "tests/*": "the same",
        "kernels/hopper/*": "an order of tiles",
    },
    "room": {
        "tunefa/measure/*": "elements that memory has left",
        "tests/*": "memory that is left",
    },
}
"""Names that mean something else there: ordinary English, or another project's word."""
TRANSLATING = ("tunefa/store/schema1.py", "tests/store/test_schema1.py", "tests/test_words.py",
               "tests/fixtures/*")  # fmt: skip
"""Files of old names: what they are for."""
FOLDERS = ("tunefa", "tests", "benchmarks", "scripts", "kernels", "search_spaces", "results")
MACRO = re.compile(r"[A-Z][A-Z0-9_]*")
ANY_OLD = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b")
BEGINNINGS = ("Of", "Those", "That", "As")
"""Words with which no docstring begins."""
ANY_BEGINNING = re.compile(rf"""["'](?:\s|\\n|\\)*(?:{"|".join(BEGINNINGS)})\b""")
"""A string that begins so: most files have none, and need not be parsed."""


def python_names(text: str) -> Iterator[tuple[int, str]]:
    """(line, name), the strings that are a macro's name included."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string
        elif token.type == tokenize.STRING and MACRO.fullmatch(bare := token.string.strip("\"'")):
            yield token.start[0], bare


def cuda_names(text: str) -> Iterator[tuple[int, str]]:
    """(line, identifier) outside of comments and strings."""
    dropped = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    code = dropped.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), start=1):
        yield from ((number, name) for name in re.findall(r"[A-Za-z_]\w*", line))


def yaml_names(text: str) -> Iterator[tuple[int, str]]:
    """(line, key) of every mapping."""
    nodes: list[Any] = [yaml.compose(text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                yield key.start_mark.line + 1, str(key.value)
                nodes.append(value)
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value


KINDS = {".py": python_names, ".cu": cuda_names, ".cuh": cuda_names, ".yaml": yaml_names}


def is_allowed(name: str, path: str) -> bool:
    """Whether it may stand in that file."""
    return any(fnmatch(path, pattern) for pattern in ALLOWED.get(name, ()))


def found_in(path: str, text: str) -> list[str]:
    """The names that are left in a file, each with its place and what to call it. A file without
    such words, in names or sentences, is not looked through: that takes most of the time."""
    if all(is_allowed(word, path) for word in set(ANY_OLD.findall(text))):
        return []
    names = KINDS[Path(path).suffix](text)
    return [
        f"{path}:{line}: {name}: {INSTEAD[name]}"
        for line, name in names
        if name in INSTEAD and not is_allowed(name, path)
    ]


def test_no_old_name_is_left() -> None:
    left: list[str] = []
    for path in sorted(path for folder in FOLDERS for path in (TREE / folder).rglob("*")):
        place = path.relative_to(TREE).as_posix()
        translating = any(fnmatch(place, pattern) for pattern in TRANSLATING)
        if path.suffix in KINDS and not translating:
            left += found_in(place, path.read_text(encoding="utf-8"))
    assert not left, "\n".join(left)


def test_names_are_found_and_sentences_are_not() -> None:
    python = '"""A ring of turns."""\ndef f(ring, *, STAGES=1):  # turns\n    x.decay = "LAG"\n'
    assert found_in("kernels/a.py", python) == [
        "kernels/a.py:2: ring: pipeline",
        "kernels/a.py:2: STAGES: num_stages",
        "kernels/a.py:3: decay: row_scale",
        "kernels/a.py:3: LAG: RESCALE_THRESHOLD",
    ]
    cuda = '// a ring\n/* of\nturns */ int ring_of = LAG; char *s = "turns";\n#ifdef WARPS\n'
    assert found_in("kernels/a.cu", cuda) == [
        "kernels/a.cu:3: LAG: RESCALE_THRESHOLD",
        "kernels/a.cu:4: WARPS: num_warps",
    ]
    text = "parameters:\n  WARPS: {doc: STAGES}\nlist: [{order: 5}]\n"
    assert sorted(found_in("search_spaces/a.yaml", text)) == [
        "search_spaces/a.yaml:2: WARPS: num_warps",
        "search_spaces/a.yaml:3: order: priority",
    ]


def test_what_is_allowed_is_there() -> None:
    """A place where a word is not used any more needs no leave."""
    for name, places in ALLOWED.items():
        for pattern in places:
            files = [path for folder in FOLDERS for path in (TREE / folder).rglob("*.py")
                     if fnmatch(path.relative_to(TREE).as_posix(), pattern)]  # fmt: skip
            texts = (path.read_text(encoding="utf-8") for path in files)
            word = re.compile(rf"\b{name}\b")
            used = any(
                name == found
                for text in filter(word.search, texts)
                for _, found in python_names(text)
            )
            assert used, f"{name} in {pattern}"


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """(line, first word) of every docstring, the docstrings of attributes included."""
    for each in statements(text):
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            yield each.lineno, [*str(each.value.value).split(), ""][0]


def wrong(text: str) -> list[int]:
    """The lines of docstrings that begin with such a word."""
    if ANY_BEGINNING.search(text) is None:
        return []
    return [line for line, word in docstrings(text) if word in BEGINNINGS]


def test_docstrings_begin_with_what_they_are_about() -> None:
    begun = []
    for folder in FOLDERS:
        for path in sorted((TREE / folder).rglob("*.py")):
            where = path.relative_to(TREE).as_posix()
            if not any(fnmatch(where, pattern) for pattern in TRANSLATING):
                begun += [f"{where}:{line}" for line in wrong(path.read_text(encoding="utf-8"))]
    assert not begun, begun
    assert wrong('def one():\n    """Of it."""\n') == [2]
    assert wrong("class One:\n    x = 1\n    '''\\\n    Those of it.'''\n") == [3]
    assert not wrong('def one():\n    """It."""\n    return f("Of")\n')
