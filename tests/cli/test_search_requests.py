"""tunefa search --resume JOURNAL: the journal knows workload, chip, kernels and strategy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import Searching, trials
from tests.support.fake_objective import Fake


@pytest.fixture
def made(run: Run, fake: type[Fake], home: Path) -> Path:
    """The journal of a search with options of its own."""
    options = "--arch h200 --seqlen 2048 --dtype fp16 --kernel attention_fwd_cuda_sm80 --seed 7"
    run("search", *options.split(), "--strategy", "random", "--budget", "5")
    (path,) = home.glob("journals/*.jsonl")
    return path


def test_a_journal_knows_its_search(run: Run, home: Path, made: Path) -> None:
    result = run("search", "--resume", str(made), "--budget", "9", "--json")
    assert f"Continuing {made}: 5 trials will not be repeated." in result.stderr
    said = json.loads(result.stdout)
    assert said["workload"] == "fwd_b1_h32_kv8_q2048_k2048_d128_fp16_causal"
    assert (said["device"], said["trials"], said["journal"]) == ("NVIDIA H200", 9, str(made))
    assert said["record"]["provenance"]["strategy"] == "random"
    assert len(list(home.glob("journals/*.jsonl"))) == 1


def test_an_interrupted_one_goes_on_by_its_journal(
    run: Run, made: Path, canned: Searching, tmp_path: Path
) -> None:
    canned(finished=trials()[6:], interrupted=True)
    out = run("search", "--resume", str(made), "--budget", "9", code=130).stdout
    journal = tmp_path / "journal.jsonl"
    assert out.endswith(f"the search\n  tunefa search --budget 9 --resume {journal}\n")


def test_what_is_given_beside_a_journal_must_agree(run: Run, made: Path) -> None:
    error = run("search", "--resume", str(made), "--dtype", "bf16", code=1).stderr
    assert (
        f"{made} holds fwd_b1_h32_kv8_q2048_k2048_d128_fp16_causal, which does not match" in error
    )
    assert "--dtype bf16: leave that out" in error
    several = ("search", "--resume", str(made), "-w", "q64", "-w", "q32", "--arch", "sm90")
    assert "continues one search" in " ".join(run(*several, code=2).stderr.split())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"workload": "fwd', '"workload": "bad', "does not say what was searched"),
        ('"arch": "sm90"', '"arch": 90', "'arch' must be text, not 90"),
        ('"seed": 7', '"seed": "7"', "its mode or its seed is not valid"),
        ("{", "", "this line is not the first line of a journal"),
    ],
)
def test_a_journal_that_does_not_say_it(
    run: Run, made: Path, old: str, new: str, says: str
) -> None:
    first, *rest = made.read_text().splitlines(keepends=True)
    header = json.loads(first)
    del header["checksum"]  # of a line that was not edited
    made.write_text("".join([json.dumps(header).replace(old, new, 1) + "\n", *rest]))
    assert says in run("search", "--resume", str(made), code=1).stderr
    assert "gone.jsonl cannot be read" in run("search", "--resume", "gone.jsonl", code=1).stderr


def test_libraries_have_no_part_without_a_device(run: Run, fake: type[Fake]) -> None:
    words = ("search", "--arch", "h200", "--seqlen", "2048", "--budget", "3")
    says = "it calls the cuDNN inside PyTorch, whose time only a device tells"
    assert f"attention_fwd_cudnn is left out: {says}" in run(*words).stderr
    error = run(*words, "--kernel", "attention_fwd_cudnn", code=1).stderr
    assert says in " ".join(error.split())
    explained = ("explain", *words[1:5], "--kernel", "attention_fwd_cudnn")
    assert "there is no config of attention_fwd_cudnn" in run(*explained, code=1).stderr
