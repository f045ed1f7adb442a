from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tunefa.errors import TunefaError
from tunefa.spec import strict_yaml
from tunefa.spec.strict_yaml import Fields, Located, dump, load, load_file

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TRAPS = st.sampled_from(["1e12", "12e34567", "1_0", "0x1", "0o7", "yes", "null", "~", "=", "<<"])
TREES = st.recursive(
    SCALARS | TRAPS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | TRAPS, inner),
    max_leaves=20,
)


@given(TREES)
def test_dump_then_load_is_the_same(data: Any) -> None:
    again = load(dump(data), "round-trip")
    assert again == data
    assert repr(again) == repr(data)  # 1 == 1.0 == True


@given(st.text())
def test_any_text_loads_or_is_one_tunefa_error(text: str) -> None:
    try:
        load(text, "any")
    except TunefaError as error:
        assert str(error).startswith("any:")


@given(st.text(alphabet="{}[]:,-?!&*|>'\"#%@`~=<. \n\tab0xe1_"))
def test_any_punctuation_loads_or_is_one_tunefa_error(text: str) -> None:
    try:
        load(text, "any")
    except TunefaError as error:
        assert str(error).startswith("any:")


@pytest.mark.parametrize("text", ["1e12", "+1E12", "1.e+12", "1.0e12", "1000e9"])
def test_exponents_are_numbers(text: str) -> None:
    value = load(text, "w")
    assert isinstance(value, float)
    assert value == 1e12


def test_dates_are_text() -> None:
    assert load("2026-01-31T10:00:00Z", "w") == "2026-01-31T10:00:00Z"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2", "f:4: key 'c' is already on line 3: remove one of the two"),
        ("a: 1\non: 2", "f:2: mapping key 'on' is not text: put it in quotes"),
        ("1: 2", "f:1: mapping key '1' is not text: put it in quotes"),
        ("\n<<: {a: 1}", "f:2: mapping key '<<' is not text: put it in quotes"),
        ("[a]: 1", "f:1: a mapping key must be text, not a list or a mapping"),
        ("a: !!python/object:os.x 1", "f:1: only plain data is read, not !!python/object:os.x"),
        ("a: !!set {b}", "f:1: only plain data is read, not !!set"),
        ("a: !!map b", "f:1: expected a mapping"),
        ("a: 1\nb: 0x_", "f:2: cannot read this as int"),
        ("a: " + "9" * 5000, "f:1: a number has at most 1,100 characters"),
        ("a: 0x" + "f" * 5000, "f:1: a number has at most 1,100 characters"),
        ("a: -0b" + "1" * 20_000, "f:1: a number has at most 1,100 characters"),
        ("a: " + ":".join(["59"] * 200_000), "f:1: a number has at most 1,100 characters"),
        ("a: " + ":".join(["1"] * 300), "f:1: whole numbers beyond 1.8e+308 are not read"),
        ("a: " + ":".join(["1"] * 300) + ".5", "f:1: cannot read this as float"),
        ("a: !!bool maybe", "f:1: cannot read this as bool"),
        ("a: 1\nb: \x00", "f:2: YAML does not allow the character '\\x00': remove it"),
        ("[" * 100_000, "f:1: nested more than 100 levels deep"),
        (
            "a: &x [1]\nb: *x",
            "f:1: this is used again through an alias: write it out in each place",
        ),
    ],
)
def test_refusals_name_the_line_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises(TunefaError) as caught:
        load(text, "f")
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["a: [1, 2", "a: 1\n---\nb: 2", "a: b: c", "a: *b", "&a {x: *a}"])
def test_malformed_text_names_the_line(text: str) -> None:
    with pytest.raises(TunefaError, match=r"^f:[12]: \w+"):
        load(text, "f")


def test_dump_keeps_order_and_shares_nothing() -> None:
    shared = [1]
    assert dump({"b": shared, "a": shared}) == "b:\n- 1\na:\n- 1\n"


def test_dump_writes_what_was_loaded() -> None:
    assert dump(load("a: {b: é}", "w")) == "a:\n  b: é\n"


def test_dump_of_anything_but_plain_data_is_a_bug() -> None:
    with pytest.raises(TypeError, match="1"):
        dump({1: 2})
    with pytest.raises(yaml.YAMLError):
        dump({1, 2})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"# nothing yet\n", "the file is empty"),
        (b"\xff\xfea", "not UTF-8"),
        (b"a: 1\na: 2\n", "already on line 1"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "best.yaml"
    path.write_bytes(content)
    with pytest.raises(TunefaError) as caught:
        load_file(path)
    assert str(caught.value).startswith(str(path))
    assert problem in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(TunefaError, match="cannot read") as caught:
            load_file(path)
        assert str(path) in str(caught.value)


def test_load_file(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    path.write_text("\ufeffa: é\n", encoding="utf-8")
    assert load_file(path) == {"a": "é"}


TEXT = """\
sms: 132
clock: 1.5
name: H200
rate: .inf
fast: true
list: [1]
"""


def fields() -> Fields:
    return Fields(load(TEXT, "f"), "f")


def test_mappings_know_the_lines_of_their_keys() -> None:
    data = load("a:\n  b: 1\n\nc: 2", "f")
    assert isinstance(data, Located)
    assert data.lines == {"a": 1, "c": 4}
    assert data["a"].lines == {"b": 2}
    assert Fields(data, "f").at("c") == "f:4"
    assert Fields({"c": 2}, "f").at("c") == "f"


def test_take_checks_and_converts() -> None:
    assert fields().take("sms", int) == 132
    assert isinstance(fields().take("sms", float), float)
    assert isinstance(fields().take("sms", (int, float)), int)
    assert fields().take("fast", (bool, int)) is True
    assert fields().take("list", list) == [1]
    assert fields().take("gone", str, None) is None
    assert Fields({"a": None}, "f").take("a", (str, type(None))) is None


@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [
        ("fast", int, "f:5: 'fast' must be a whole number, not True"),
        ("fast", float, "f:5: 'fast' must be a finite number, not True"),
        ("clock", int, "f:2: 'clock' must be a whole number, not 1.5"),
        ("rate", float, "f:4: 'rate' must be a finite number, not inf"),
        ("name", (int, type(None)), "f:3: 'name' must be a whole number or null, not 'H200'"),
        ("list", dict, "f:6: 'list' must be a mapping, not [1]"),
        ("l2_bytes", int, "f: key 'l2_bytes' is missing: add it (a whole number)"),
    ],
)
def test_take_refuses(key: str, kind: type, message: str) -> None:
    with pytest.raises(TunefaError) as caught:
        fields().take(key, kind)
    assert str(caught.value) == message


def test_an_integer_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(TunefaError, match="must be a finite number, not a whole number"):
        Fields({"a": 10**400}, "f").take("a", float)


def test_done_names_every_unknown_key_and_the_nearest() -> None:
    read = Fields(load("sms: 1\nclok: 2\nx: 3", "f"), "f")
    for key in ("sms", "clock"):
        read.take(key, int, 0)
    with pytest.raises(TunefaError) as caught:
        read.done()
    assert str(caught.value) == (
        "f:2: unknown key 'clok': did you mean clock? (known: sms, clock); "
        "f:3: unknown key 'x' (known: sms, clock)"
    )


def test_done_is_silent_when_all_keys_were_taken() -> None:
    read = Fields({"a": 1}, "f")
    read.take("a", int)
    read.done()


def test_fields_need_a_mapping() -> None:
    with pytest.raises(TunefaError, match=r"^f: expected a mapping of keys to values, not \[1\]$"):
        Fields([1], "f")


def test_without_libyaml_it_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    monkeypatch.delattr(yaml, "CSafeDumper", raising=False)
    slow = runpy.run_path(str(strict_yaml.__file__))  # a copy: others hold the real one's classes
    data = {"a": ["1e3", 1e3, None]}
    assert slow["load"](slow["dump"](data), "f") == data
    with pytest.raises(TunefaError, match="f:2: key 'a' is already on line 1"):
        slow["load"]("a: 1\na: 2", "f")
    with pytest.raises(TunefaError, match="nested more than 100 levels deep"):
        slow["load"]("[" * 500, "f")
