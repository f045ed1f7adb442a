from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sample_exports import CUDA, FAST, GUESS, OF_SM80, SLOW
from tests.support.sample_records import records
from tunefa.errors import TunefaError
from tunefa.store import exports
from tunefa.store.record import Record

OF_RECORDS = [name for name in exports.names() if exports.of_trials(name) is None]


@pytest.mark.parametrize("name", OF_RECORDS)
def test_every_format_keeps_the_contract(name: str) -> None:
    found = exports.get(name)
    assert found.DESCRIPTION and "\n" not in found.DESCRIPTION
    assert found.SUFFIXES and all(suffix.startswith(".") for suffix in found.SUFFIXES)
    for some in ([], [FAST, SLOW, GUESS, CUDA]):
        assert found.dump(some).endswith("\n")


@pytest.mark.parametrize("name", sorted({*exports.names()} - {*OF_RECORDS}))
def test_formats_of_trials_hold_no_records(name: str) -> None:
    found = exports.of_trials(name)
    assert found is not None and found.DESCRIPTION and "\n" not in found.DESCRIPTION
    assert found.SUFFIXES and all(suffix.startswith(".") for suffix in found.SUFFIXES)
    with pytest.raises(TunefaError, match=f"'{name}' holds the trials of a journal, not records"):
        exports.get(name)
    assert not exports.can_be_read(name)


def test_names_are_the_files() -> None:
    files = Path(exports.__file__).parent.glob("[a-z]*.py")
    assert exports.names() == sorted(file.stem for file in files)
    assert {"flex", "json", "python", "triton", "yaml"} <= set(exports.names())


@settings(deadline=None)
@given(some=st.lists(records(), max_size=3))
def test_round_trip(some: list[Record]) -> None:
    """For both formats at once: drawing records takes as long as writing them."""
    for name in ("yaml", "json"):
        found = exports.readable(name)
        assert found.load(found.dump(some), "best") == some, name


@settings(deadline=None)
@given(some=st.lists(records(), max_size=3))
def test_generated_python_compiles_whatever_the_texts(some: list[Record]) -> None:
    of_one_chip = [replace(record, arch="sm90") for record in some]
    for name in ("triton", "flex", "python"):
        compile(exports.get(name).dump(of_one_chip), f"exported for {name}", "exec")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("best.yaml", "yaml"),
        ("best.YML", "yaml"),
        ("out/best.json", "json"),
        ("best.py", "python"),
        ("best.triton.py", "triton"),
        ("best.flex.py", "flex"),
        ("space.t4.json", "t4"),
        ("space.kernel_tuner.json", "kernel_tuner"),
    ],
)
def test_a_file_s_name_says_its_format(path: str, name: str) -> None:
    assert exports.for_path(Path(path)) == name


def test_a_file_of_records_has_a_format_of_records() -> None:
    assert exports.for_records("best.yaml") == "yaml"
    with pytest.raises(TunefaError, match="not records"):
        exports.for_records("best.t4.json")


@pytest.mark.parametrize("name", ["flex", "triton"])
def test_options_of_two_chips_are_never_in_one_file(name: str) -> None:
    error = f"a {name} file holds .* of sm80, sm90: name one of them with --arch"
    with pytest.raises(TunefaError, match=error):
        exports.get(name).dump([FAST, OF_SM80])
    apart = replace(CUDA, arch="sm80")
    assert "left out" in exports.get(name).dump([FAST, apart]), "what is left out does not count"


@pytest.mark.parametrize(
    ("path", "name", "instead"),
    [
        ("best.py", "yaml", "in the format python, not yaml: end it in .yaml or .yml, or name no"),
        ("best.yaml", "triton", "in the format yaml, not triton: end it in .triton.py"),
        ("best.triton.py", "flex", "in the format triton, not flex"),
        ("best.triton.py", "python", "in the format triton, not python"),
        ("best.json", "yaml", "in the format json, not yaml"),
        ("best.py", "triton", None),
        ("best.yml", "yaml", None),
        ("best.txt", "json", None),
    ],
)
def test_a_suffix_that_contradicts_the_format(path: str, name: str, instead: str | None) -> None:
    if instead is None:
        return exports.check_suffix(path, name)
    with pytest.raises(TunefaError, match=f"{path} is the name of a file {instead}"):
        exports.check_suffix(path, name)


def test_errors_name_the_formats() -> None:
    with pytest.raises(TunefaError, match="unknown format 'ymal': did you mean yaml"):
        exports.get("ymal")
    with pytest.raises(TunefaError, match=r"'best\.txt' does not say .* \.flex\.py, \.json"):
        exports.for_path(Path("best.txt"))
    with pytest.raises(TunefaError, match=r"'triton' can be written but not read: .* json, yaml"):
        exports.readable("triton")
