"""tunefa/cli/workers_option.py: more processes than a machine can run are refused."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from tests.support.fake_objective import Fake
from tunefa.cli import main
from tunefa.cli.workers_option import MOST_PER_CORE

SEARCH = ("search", "--arch", "sm90", "--seqlen", "512", "--budget", "1")


@pytest.mark.parametrize(
    ("cores", "said"), [(2, "too many for 2 cores: give at most 16"), (1, "1 core: give at most 8")]
)
def test_too_many_processes_are_refused(
    cores: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    done = CliRunner().invoke(main, [*SEARCH, "--workers", "100000"])
    assert done.exit_code == 2
    assert f"'--workers': 100,000 processes are too many for {cores} core" in done.stderr
    assert said in done.stderr


def test_as_many_as_the_help_allows_are_taken(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    done = CliRunner().invoke(main, [*SEARCH, "--workers", str(2 * MOST_PER_CORE)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("seed", ["-1", str(2**32)])
def test_a_seed_that_no_generator_takes_is_refused(seed: str) -> None:
    done = CliRunner().invoke(main, [*SEARCH, "--seed", seed])
    assert done.exit_code == 2
    assert f"'--seed': {seed} is not in the range 0<=x<=4294967295" in done.stderr
