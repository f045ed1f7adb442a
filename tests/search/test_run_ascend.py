"""`tunefa search` for an NPU: with the real compiler where it is installed, and without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.ascend_compiler import THERE, needs_compiler
from tunefa.cli import main
from tunefa.store import results as store

ASKED = ["search", "--arch", "ascend910b3", "-w", "h8_q2048_d64_fp16_full"]


def run(*words: str) -> Result:
    return CliRunner().invoke(main, [*ASKED, *words])


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's toolchain, in this process and in those that it starts; another store."""
    home = Path(store.user_root()).parent
    home.mkdir(parents=True, exist_ok=True)
    (home / "ascend").symlink_to(THERE)


@needs_compiler
def test_a_search_ends_with_a_tile_that_fits(compiler: None) -> None:
    done = run("--budget", "24", "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    record = found["record"]
    assert (found["objective"], record["objective"]) == ("modelled", "modelled")
    assert "device" not in record and record["provenance"]["triton"] == "ascend 3.2.0"
    assert record["provenance"]["compiler"].startswith("bishengir-compile 1.")
    assert found["trials"] == 24 and 0 < found["programs"] <= 24
    assert record["resources"]["ub_bytes"] <= 196608
    trials = [json.loads(line) for line in Path(found["journal"]).read_text().splitlines()[1:]]
    winner = [trial for trial in trials if trial["config"] == record["config"]][-1]
    assert winner["outcome"] == "ok"
    assert max(winner["resources"]["planned"]["excess"].values()) <= 0
    for trial in trials:
        if trial["outcome"] == "compile_failed":
            assert "overflow: " in trial["reason"] and " B" in trial["reason"]
            assert max(trial["resources"]["planned"]["excess"].values()) > 0


def test_without_a_compiler_its_setup_is_offered_and_estimates() -> None:
    done = run("--budget", "24")
    assert done.exit_code == 1
    assert "run 'tunefa ascend setup', or use --estimate to go on without it" in done.stderr


def test_estimates_say_what_they_are() -> None:
    done = run("--budget", "24", "--estimate")
    assert done.exit_code == 0, done.output
    assert (
        "ESTIMATED: formulas say what fits, a latency model the time; no compiler ran"
        in done.stdout
    )
    assert "(estimated, not measured)" in done.stdout
    assert [record.objective for record in store.default_store().best()] == ["estimated"]


def test_what_no_compiler_knows_can_be_estimated() -> None:
    asked = ["search", "--arch", "ascend310p", "--seqlen", "2048", "--dtype", "fp16"]
    refused = CliRunner().invoke(main, asked)
    assert refused.exit_code == 1 and "only formulas say" in refused.stderr
    done = CliRunner().invoke(main, [*asked, "--estimate", "--budget", "8"])
    assert done.exit_code == 0, done.output


def test_a_gpu_takes_no_estimates() -> None:
    done = CliRunner().invoke(main, ["search", "--arch", "sm90", "--seqlen", "2k", "--estimate"])
    assert done.exit_code == 2 and "--estimate is for Huawei's NPUs" in done.stderr
