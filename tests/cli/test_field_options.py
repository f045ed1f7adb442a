"""tunefa/cli/field_options.py: the option of each field of a workload."""

from __future__ import annotations

from typing import Any

import pytest

from tunefa.cli.field_options import SIZE_OPTIONS, flag, words


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("op", "bwd", "--backward"),
        ("deterministic", True, "--deterministic"),
        ("batchvariant", True, "--batch-variant"),
        ("causal", True, "--causal"),
        ("causal", False, "--full"),
        ("softcap", True, "--softcap"),
        ("dtype", "fp16", "--dtype fp16"),
        ("heads_kv", 4, "--kv-heads 4"),
        ("window_left", 4095, "--window 4096"),
        ("window_right", 9, "--window-right 9"),
    ],
)
def test_a_field_is_written_as_its_option(name: str, value: Any, said: str) -> None:
    assert words(name, value) == said
    assert said.split()[0] in flag(name).split("/")


def test_each_size_has_an_option_of_its_own() -> None:
    flags = [flag(name) for name in SIZE_OPTIONS]
    assert len(set(flags)) == len(flags) and all(each.startswith("--") for each in flags)
