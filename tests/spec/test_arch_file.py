"""tunefa/spec/arch_file.py: what is wrong with a file is said with its line, no source first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs

# Changes of one line of sm90.yaml and what must be said about them; {line} is the changed line's.
SPOILED = [
    (
        "max_blocks_per_sm: {value: 32, source: guide}",
        "max_blocks_per_sm: 32",
        "{path}:{line}: number 'max_blocks_per_sm' has no source: "
        "write it as {{value: N, source: KEY}}, with KEY one of 'sources'",
    ),
    (
        "    power_w: {value: 600, source: h200_nvl}",
        "    power_w: {value: 600}",
        "{path}:{line}: number 'power_w' has no source: "
        "write it as {{value: N, source: KEY}}, with KEY one of 'sources'",
    ),
    (
        "max_blocks_per_sm: {value: 32, source: guide}",
        "max_blocks_per_sm: {value: 32, source: guid}",
        "{path}:{line}: unknown source 'guid': did you mean guide? (known: ",
    ),
    (
        "max_blocks_per_sm: {value: 32, source: guide}",
        "max_blocks_per_sm: {value: 0, source: guide}",
        "{path}:{line}: number 'max_blocks_per_sm' must be above 0, not 0",
    ),
    (
        "max_blocks_per_sm: {value: 32, source: guide}",
        "max_blocks_per_sm: {value: 1.5, source: guide}",
        "{path}:{line}: 'value' must be a whole number, not 1.5",
    ),
    (
        "  bf16: {value: 4096, source: whitepaper}",
        "  bf16: 4096",
        "{path}:{line}: number 'bf16' has no source: ",
    ),
    (
        "max_blocks_per_sm: {value: 32, source: guide}",
        "max_block_per_sm: {value: 32, source: guide}",
        "number 'max_blocks_per_sm' is missing: add {{value: N, source: KEY}}",
    ),
    (
        "    match: [h200]",
        "    match: [h200]\n    volts: {value: 1, source: h200}",
        "unknown key 'volts'",
    ),
    ("    match: [h200]", "    match: []", "{path}:{line}: 'match' is empty"),
    ("    match: [h200]", "    match: [200]", "{path}:{line}: 'match' must be a list of text"),
    (
        'compute_capability: "9.0"',
        "compute_capability: '9'",
        "{path}:{line}: compute_capability '9'",
    ),
    ("name: sm90", "name: sm91", "{path}:{line}: name 'sm91' is not the file's name 'sm90'"),
    ("sources:", "sources:\n  gossip: hearsay", "no number names source 'gossip': remove it"),
]


@pytest.mark.parametrize(("old", "new", "message"), SPOILED, ids=[each[1] for each in SPOILED])
def test_a_spoiled_file_is_refused_with_file_and_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = (Path(archs.__file__).parent / "archs" / "sm90.yaml").read_text(encoding="utf-8")
    assert text.count(f"\n{old}\n") == 1
    path = tmp_path / "sm90.yaml"
    path.write_text(text.replace(f"\n{old}\n", f"\n{new}\n"), encoding="utf-8")
    line = text[: text.index(f"\n{old}\n")].count("\n") + 2
    with pytest.raises(TunefaError) as error:
        archs.read(path)
    assert message.format(path=path, line=line) in str(error.value)
    assert str(error.value).startswith(f"{path}:")


def test_a_file_without_devices_is_refused(tmp_path: Path) -> None:
    text = (Path(archs.__file__).parent / "archs" / "sm90.yaml").read_text(encoding="utf-8")
    path = tmp_path / "sm90.yaml"
    path.write_text(text[: text.index("\ndevices:")] + "\ndevices: []\n", encoding="utf-8")
    with pytest.raises(TunefaError, match=r"sm90\.yaml:\d+: no devices: add one"):
        archs.read(path)
