"""tunefa/cli/reports/next_steps.py: the command that a report ends with, run as it is printed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, SMALL, Searching, trials
from tests.support.processes import environment
from tests.support.sample_records import measured, predicted
from tunefa.cli import targets
from tunefa.compile.launch.driver import SeenDevice
from tunefa.store import results as store
from tunefa.store.record import Record

W = "fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal"
H200 = SeenDevice("NVIDIA H200", (9, 0), 132, 10**11)


def step(out: str) -> list[str]:
    """The words of the command after the last "Next: " of a report."""
    _, line, *rest = out[out.rindex("\nNext: ") + 1 :].splitlines()
    assert not rest and line.startswith("  ")
    return shlex.split(line)


def test_a_shell_runs_each_next_command_as_it_is_printed(home: Path) -> None:
    """In a folder with an environment whose tunefa the shell does not find by its name."""
    for workload in ("q4096", "q4096_full"):
        store.default_store().add(measured(workload))
    script = Path("env", "bin", "tunefa")
    script.parent.mkdir(parents=True)
    script.write_text(f"#!{sys.executable}\nfrom tunefa.cli import main\nmain()\n")
    script.chmod(0o755)
    Path("a folder").mkdir()
    out = shell(home, "env/bin/tunefa export 'a folder/the best.json'")
    for words, said in (
        ([str(script), "import", "a folder/the best.json"], " records, 0 of them new"),
        ([str(script), "show"], "fwd_b1_h32"),
    ):
        assert step(out) == words
        out = shell(home, out.splitlines()[-1])
        assert said in out
    out = shell(home, f"{sys.executable} -m tunefa export best.yaml")
    assert step(out) == [sys.executable, "-m", "tunefa", "import", "best.yaml"]


def shell(home: Path, line: str) -> str:
    """Standard output of a command line."""
    env = {**environment(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(line, shell=True, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_export_is_next_for_what_a_search_predicted(run: Run, canned: Searching) -> None:
    record = predicted(config=CONFIG)
    canned(record=record)
    store.default_store().add(record)
    for chip in ("h100", "sm90"):
        out = run("search", "--arch", chip, "--seqlen", "4096").stdout
        assert "Next: export it for the machine that will use it\n" in out
        assert step(out) == ["tunefa", "export", "best.yaml", "--arch", chip, "-w", W]
        run(*step(out)[1:])
        assert store.read(Path("best.yaml")) == [record]


def test_several_workloads_are_exported_to_one_file(run: Run, canned: Searching) -> None:
    canned(record=predicted(config=CONFIG))
    out = run("search", "--arch", "sm90", "-w", "q4096", "-w", "q512").stdout
    other = W.replace("4096", "512")
    assert step(out) == ["tunefa", "export", "best.yaml", "--arch", "sm90", "-w", W, "-w", other]
    assert out.count("Next: ") == 1


def test_what_was_measured_here_serves_already(
    run: Run, canned: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "seen", lambda: [H200])
    canned(record=measured(config=CONFIG))
    store.default_store().add(measured(config=CONFIG))
    out = run("search", "--seqlen", "4096").stdout
    assert "Next: this machine uses it already; export it for another one\n" in out
    run(*step(out)[1:])


def test_a_file_that_can_be_imported_is_next(run: Run, canned: Searching) -> None:
    canned(record=predicted(config=CONFIG))
    assert step(run(*SMALL, "--out", "my best.yaml").stdout) == ["tunefa", "import", "my best.yaml"]
    run("import", "my best.yaml")
    assert step(run(*SMALL, "--out", "best.flex.py").stdout)[1] == "export"
    run("export", "best", "--format", "yaml")
    assert "Next: " not in run("export", "best", "--format", "yaml").stdout, (
        "no suffix to import by"
    )


def test_the_first_config_that_failed_is_explained_as_the_kernel_s_own(
    run: Run, canned: Searching
) -> None:
    canned(finished=trials()[6:])
    words = step(run(*SMALL, code=3).stdout)
    assert words[-2:] == ["--kernel", "attention_fwd_triton"]
    run(*words[1:], "--no-compile")
    run(*step(run(*words[1:], "--no-compile").stdout)[1:], "--no-compile")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "--arch sm90 --seqlen 8192"),
        ("--arch a100 --seqlen 4k --full --last", "--arch a100 --seqlen 4096 --full"),
        ("-w q512_w128", "--arch sm90 -w q512_w128"),
        ("--device h200 --window 128", "--device h200 --window 128 --seqlen 8192"),
    ],
)
def test_a_search_is_next_for_what_the_store_has_not(run: Run, given: str, words: str) -> None:
    line = step(run("show", *given.split()).stdout)
    assert line == ["tunefa", "search", *words.split()]
    run("space", *line[2:])  # which takes the same options, and is quick


def test_the_export_is_of_what_was_listed(run: Run, filled: list[Record]) -> None:
    line = step(run("show", "--arch", "h200", "--full").stdout)
    assert line == ["tunefa", "export", "best.yaml", "--arch", "h200", "--full"]
    run(*line[1:])
    assert len(store.read(Path("best.yaml"))) == 1


def test_verify_is_next_only_where_the_device_is(
    run: Run, filled: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seen, command in (([], "search"), ([H200], "verify")):
        monkeypatch.setattr(targets, "seen", lambda seen=seen: seen)
        assert step(run("show").stdout)[1] == command
    monkeypatch.setattr(targets, "seen", lambda: [])
    assert step(run("show", "--device", "h200", "--full").stdout)[1] == "export"


def test_a_space_is_searched_with_the_kernel_that_was_named(run: Run, canned: Searching) -> None:
    canned(record=predicted(config=CONFIG))
    words = step(run("space", *SMALL[1:], "--kernel", "attention_fwd_triton").stdout)
    assert words[-2:] == ["--kernel", "attention_fwd_triton"]
    run(*words[1:])
