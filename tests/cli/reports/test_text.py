"""tunefa/cli/reports/text.py: how numbers, configs and commands are spelled."""

from __future__ import annotations

import io
import json
import math
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.support.sample_records import measured, predicted
from tunefa.cli.reports import text


@pytest.mark.parametrize(
    ("value", "digits", "spelled"),
    [(164864, 0, "164,864"), (0.96, 1, "1.0"), (1234.56, 1, "1,234.6"), (None, 0, "-"),
     (math.inf, 1, "-"), (math.nan, 0, "-"), (0, 0, "0")],
)  # fmt: skip
def test_numbers(value: float | None, digits: int, spelled: str) -> None:
    assert text.number(value, digits) == spelled


def test_names_are_listed_as_in_a_sentence() -> None:
    assert [text.listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]


def test_one_and_many() -> None:
    assert [text.plural(count, "block") for count in (0, 1, 2, 1000)] == [
        "0 blocks", "1 block", "2 blocks", "1,000 blocks",
    ]  # fmt: skip


def test_kib_have_a_digit_where_they_are_not_whole() -> None:
    sizes = (None, 0, 1024, 1536, 98304, 1024 * 1024)
    assert [text.kib(size) for size in sizes] == ["-", "0", "1", "1.5", "96", "1,024"]


def test_json_is_one_document_without_what_json_has_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text.emit_json({"a": [math.inf, -math.inf, math.nan, 1.5], 7: {"b": (1, None, "x")}})
    assert json.loads(capsys.readouterr().out) == {
        "a": [None, None, None, 1.5], "7": {"b": [1, None, "x"]},
    }  # fmt: skip


def test_a_config_is_as_the_option_takes_it() -> None:
    config = {"BLOCK_M": 128, "COPIES": "tma"}
    assert text.config_text(config) == "BLOCK_M=128 COPIES=tma"
    assert text.config_text(config, ",") == "BLOCK_M=128,COPIES=tma"


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_a_shell_reads_a_command_back(words: list[str]) -> None:
    assert shlex.split(text.command(*words)) == words


def test_where_a_record_is_from() -> None:
    assert text.chip(measured(mode="graph")) == "NVIDIA H200 (sm90), measured in graph mode"
    assert text.chip(predicted()) == "sm90, predicted (no measurement)"


def test_a_long_line_is_broken_where_its_clauses_end() -> None:
    assert text.broken("one; two; three", 15) == "one; two; three"
    assert text.broken("one; two; three", 14) == "one;\ntwo;\nthree"


def test_a_command_to_copy_is_never_broken() -> None:
    file = io.StringIO()
    line = "tunefa search " + "--more " * 40
    text.print_command(Console(file=file, width=40), "Next: search", line)
    assert file.getvalue() == f"\nNext: search\n  {line}\n"


def test_figures_are_to_the_right_and_facts_in_two_columns() -> None:
    file = io.StringIO()
    out = Console(file=file, width=40)
    rows = text.table("name", "us", right=("us",))
    rows.add_row("fast", "5.0")
    rows.add_row("slow", "5,000.0")
    out.print(rows)
    out.print(text.facts({"kernel": "k", "a longer name": "v"}, indent=2))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert lines[1:3] == ["fast      5.0", "slow  5,000.0"]
    assert lines[3:] == ["  kernel         k", "  a longer name  v"]


def test_brackets_are_text() -> None:
    """Rich would take [red] for markup, and a config may hold anything."""
    file = io.StringIO()
    out = text.console()
    out.file = file
    out.print("a [red] b :smile:")
    assert file.getvalue() == "a [red] b :smile:\n"
