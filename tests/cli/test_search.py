"""tunefa search: the report, the exit codes, and the whole of it on a chip that is not here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, SMALL, Searching, trials
from tests.support.processes import environment
from tests.support.sample_records import predicted
from tests.support.tree import TREE
from tunefa.cli import targets
from tunefa.cli.targets import ChosenTarget
from tunefa.compile import languages
from tunefa.search.budget import FLOOR_S
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Target
from tunefa.store import results as store


def test_a_kernel_without_its_compiler_is_left_out(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = canned(record=predicted(config=CONFIG))
    missing = {"attention_fwd_gluon_sm90": "no compiler found: pip install it"}
    monkeypatch.setattr(languages, "without_compiler", lambda kernels, arch: missing)
    said = run(*SMALL).stderr
    assert "attention_fwd_gluon_sm90 is left out: no compiler found: pip install it" in said
    assert "attention_fwd_gluon_sm90" not in [kernel.name for kernel in requests[0].kernels]
    asked = run(*SMALL, "--kernel", "attention_fwd_gluon_sm90", code=1).stderr
    assert "no compiler found: pip install it" in asked and len(requests) == 1


def test_a_process_that_interprets_kernels_says_so(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for kernel in ("attention_fwd_triton", "attention_fwd_gluon_sm90"):
        said = run(*SMALL, "--kernel", kernel, code=1).stderr
        assert "TRITON_INTERPRET is '1' in the environment" in said and "unset it" in said


def test_help_states_the_floor_of_a_budget(run: Run) -> None:
    said = " ".join(run("search", "--help").stdout.split())
    assert f"a search with less than {FLOOR_S:.0f}s may take {FLOOR_S:.0f}s" in said


def test_nothing_valid_ends_with_3(run: Run, canned: Searching) -> None:
    canned(finished=trials()[6:])
    out = run(*SMALL, "--out", "best.yaml", code=3).stdout
    assert "No record: nothing valid was found." in out
    assert "tunefa explain --arch sm90 -w fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal -c " in out
    assert not Path("best.yaml").exists()


def test_options_reach_the_search(run: Run, canned: Searching) -> None:
    requests: Any = canned()
    kernel = "attention_fwd_triton"
    options = f"--budget 2m --kernel {kernel} --seed 7 --workers 1 --strategy auto --storage sqlite:///s.db"
    run(*SMALL, *options.split(), code=3)
    (request,) = requests
    assert request.budget.seconds == 120
    assert [each.name for each in request.kernels] == [kernel]
    assert (request.seed, request.workers, request.strategy) == (7, 1, "auto")
    assert request.storage == "sqlite:///s.db"
    assert not request.measured


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--budget soon", "budget 'soon' is neither a time nor a number of trials"),
        ("--budget 0", "budget '0' is neither"),
        ("--strategy autp", "unknown strategy 'autp': did you mean auto?"),
        ("--kernel attention", "unknown kernel 'attention'"),
        ("--out best.txt", "the name 'best.txt' does not say which format it is"),
        ("--out no/best.yaml", "the folder no does not exist"),
        ("--out broken.yaml", "broken.yaml:2: while parsing"),
        ("--out .", "the name '.' does not say which"),
    ],
)
def test_mistakes_are_found_before_the_search(
    run: Run, canned: Searching, arguments: str, error: str
) -> None:
    requests: Any = canned()
    Path("broken.yaml").write_text("records: [")
    assert error in run(*SMALL, *arguments.split(), code=1).stderr
    assert requests == []


def test_space_whose_every_config_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(archs.gpu(archs.load("sm90")), smem_per_block_bytes=64)
    chosen = ChosenTarget(Target(tiny, tiny.device()), present=False)
    monkeypatch.setattr(targets, "choose", lambda *_: chosen)
    error = run(*SMALL, code=1).stderr
    assert "every config for fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal on sm90 is ref" in error
    assert "the shared memory of a CTA must not exceed the chip's limit (" in error
    assert "a warp needs at least 16 query rows (15000)" in error


@pytest.mark.parametrize(
    "arguments",
    [SMALL, ("explain", "--arch", "sm90", "--seqlen", "4096", "-c", "num_warps=4")],
    ids=["search", "explain"],
)
def test_no_compiler(arguments: tuple[str, ...], tmp_path: Path, home: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('it is not for you')\n")
    done = subprocess.run(
        [sys.executable, "-m", "tunefa", *arguments],
        env=environment(home, tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "it is not for you" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert "install" in done.stderr


QUICK = (*SMALL, "--head-dim", "64", "--workers", "1")
"""Compiles in half the time."""


@pytest.mark.slow
def test_search_record_export_import(run: Run, home: Path) -> None:
    result = run(*QUICK, "--budget", "6", "--json", "--out", "best.yaml")
    said = json.loads(result.stdout)
    assert said["objective"] == "predicted"
    assert 1 <= len(said["top"]) <= 5
    assert said["record"]["workload"] == said["workload"]
    assert 1 <= said["trials"] <= 8
    assert Path(said["journal"]).is_relative_to(home)
    assert [record.to_dict() for record in store.read(Path("best.yaml"))] == [said["record"]]
    shown = json.loads(run("show", "--json").stdout)["records"]
    assert shown == [said["record"]]
    for chip in ("h100", "sm90"):  # what was predicted for sm90 is that of its devices too
        assert json.loads(run("show", "--json", "--arch", chip).stdout)["records"] == shown
    assert "best.yaml: 1 record, 0 of them new" in run("import", "best.yaml").stdout


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_so_far(home: Path, ctrl_c_raises: None) -> None:
    # By trials: one by seconds may be on its plateau when it says its best, with all in the cache.
    process = subprocess.Popen(
        [sys.executable, "-m", "tunefa", *QUICK, "--budget", "9999"],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    while "best" not in (line := process.stderr.readline()):
        assert line, "the search ended by itself"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers get it too
    try:
        out, error = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out.startswith("Interrupted: the record is the best config so far.\n")
    assert "Record, predicted" in out
    assert "Traceback" not in error
    assert len(list(home.glob("journals/*.jsonl"))) == 1
    assert len(list(home.glob("results/**/*.yaml"))) == 1


def test_blas_has_one_thread_before_there_is_any() -> None:
    program = """
import os, sys
from importlib.abc import MetaPathFinder
from tunefa.cli import main
class Watch(MetaPathFinder):
    def find_spec(self, name, *rest):
        if name == "numpy":
            print(os.environ.get("OMP_NUM_THREADS"))
os.environ.pop("OMP_NUM_THREADS", None)
assert "numpy" not in sys.modules
sys.meta_path.insert(0, Watch())
try:
    main(["search", "--arch", "sm90", "--seqlen", "512", "--strategy", "none"], prog_name="tunefa")
except SystemExit as end:
    print(end.code, os.environ["OMP_NUM_THREADS"])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=TREE, capture_output=True, text=True)
    assert set(done.stdout.splitlines()) == {"1", "1 1"}, done.stderr
