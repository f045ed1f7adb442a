"""tunefa/cli/completion.py: what the shell completes, as a shell asks for it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tunefa.cli import main


def completed(line: str) -> list[tuple[str, str]]:
    """(kind, value) of what bash is offered for the last word of a command line."""
    words = line.split(" ")
    asked = {
        "_TUNEFA_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(main, [], prog_name="tunefa", env=asked)
    found = (offered.partition(",") for offered in result.stdout.splitlines())
    return [(kind, value) for kind, _, value in found]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tunefa search --arch h2", ["h200", "h20"]),
        ("tunefa doctor --arch sm1", ["sm100", "sm120"]),
        ("tunefa show --device B2", ["b200"]),
        ("tunefa explain --model llama4", ["llama4-scout", "llama4-maverick"]),
        ("tunefa space --dtype b", ["bf16", "bfloat16"]),
        ("tunefa export x --format j", ["json"]),
        ("tunefa se", ["search"]),
    ],
)
def test_names_are_completed(line: str, offered: list[str]) -> None:
    assert [value for kind, value in completed(line) if kind == "plain"] == offered


def test_a_name_of_two_words_is_not_offered() -> None:
    assert ("plain", "h100") in completed("tunefa search --arch h10")
    assert not any(" " in value for _, value in completed("tunefa search --arch h10"))


def test_a_model_may_be_a_file() -> None:
    assert completed("tunefa search --model ./my") == [("file", "./my")]
