"""tunefa bench: its experiments are found, and other words are refused."""

from __future__ import annotations

from click.testing import CliRunner

from tunefa.cli import main
from tunefa.experiments import experiment as experiments


def test_the_help_lists_every_experiment() -> None:
    said = CliRunner().invoke(main, ["bench", "--help"]).stdout
    assert all(f"\n  {name} " in said for name in [*experiments.names(), "tiles", "all"])


def test_another_word_lists_the_known_ones() -> None:
    done = CliRunner().invoke(main, ["bench", "scalling"])
    assert done.exit_code == 2 and "scaling" in done.stderr
