"""Text in files that would act on a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.sample_journals import written
from tests.support.sample_records import measured
from tunefa.cli import main
from tunefa.spec.trial import Trial
from tunefa.store import results as store
from tunefa.store.results import Store

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\r\b"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


def run(*line: str) -> Result:
    result = CliRunner().invoke(main, list(line), env={"COLUMNS": "80"})
    assert not ACTS.search(result.stderr), result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_a_reason_and_a_config_of_a_journal() -> None:
    config = {"BLOCK_M": HOSTILE}
    written(
        "20260101T000000", Trial(config, "crashed", HOSTILE), kernel="a_kernel", device="\x1b[1m"
    )
    result = run("show", "--failures")
    assert not ACTS.search(result.stdout)
    assert "\ufffd[2J" in result.stdout and "evil" in result.stdout
    exact = json.loads(run("show", "--failures", "--json").stdout)["failures"][0]
    assert exact["reason"] == HOSTILE and exact["config"] == config


def test_a_config_and_a_certificate_of_a_record() -> None:
    record = measured(config={"ORDER": HOSTILE}, certificate={"refused": HOSTILE})
    Store([store.user_root()]).add(record)
    result = run("show")
    assert not ACTS.search(result.stdout) and "ORDER=\ufffd]0;owned" in result.stdout
    (exact,) = json.loads(run("show", "--json").stdout)["records"]
    assert exact["config"] == {"ORDER": HOSTILE}


@pytest.mark.parametrize("line", [["import"], ["show", "-w"], ["explain", "--arch", "sm90", "-c"]])
def test_an_error_and_a_warning(line: list[str], tmp_path: Path) -> None:
    assert run(*line, str(tmp_path / f"{HOSTILE}.yaml")).exit_code in (1, 2)
    bad = store.user_root() / f"bad{HOSTILE}.yaml".replace("/", "")
    bad.parent.mkdir(parents=True, exist_ok=True)
    bad.write_text("nonsense")
    assert "results file left out" in run("show").stderr
