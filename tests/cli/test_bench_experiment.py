"""tunefa bench NAME: modelled figures, files, and wrong input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tunefa.cli import main
from tunefa.experiments import tile_grid

MODELLED = ("--arch", "h200", "-w", "b1_h8_q1024_d64_fp16_causal")


def bench(*words: str | Path) -> Result:
    """Runs `tunefa bench` with these words."""
    return CliRunner().invoke(main, ["bench", *map(str, words)], env={"COLUMNS": "120"})


def test_modelled_figures_say_so_and_are_kept(tmp_path: Path) -> None:
    done = bench("scaling", *MODELLED, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "MODELLED for NVIDIA H200 (sm90); nothing was measured" in done.stdout
    assert "1 of 1" in done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"scaling.json", "scaling.png"}
    again = bench("scaling", "--from", tmp_path / "out" / "scaling.json")
    assert again.exit_code == 0 and again.stdout == done.stdout
    assert bench("scaling", "--from", tmp_path / "out").stdout == done.stdout, "a folder"


def test_a_number_that_is_changed_in_the_file_is_shown(tmp_path: Path) -> None:
    bench("memory", *MODELLED, "--out", tmp_path)
    path = tmp_path / "memory.json"
    data = json.loads(path.read_text())
    data["rows"][0]["operators_bytes"] = 77 * 2**20
    path.write_text(json.dumps(data))
    assert "77.0" in bench("memory", "--from", path).stdout


def test_json_is_the_document() -> None:
    done = bench("causal", *MODELLED, "--json")
    data = json.loads(done.stdout)
    assert data["experiment"] == "causal" and data["source"] == "modelled"
    assert [row["causal"] for row in data["rows"]] == [False, True]


def test_a_folder_is_shown_as_a_whole(tmp_path: Path) -> None:
    for name in ("scaling", "causal"):
        bench(name, *MODELLED, "--out", tmp_path)
    done = bench("all", "--from", tmp_path, "--json")
    found = json.loads(done.stdout)["experiments"]
    assert [each["experiment"] for each in found] == ["causal", "scaling"]
    (tmp_path / "empty").mkdir()
    done = bench("all", "--from", tmp_path / "empty")
    assert done.exit_code == 1 and "empty holds no results" in done.stderr


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{")
    bench("causal", *MODELLED, "--out", tmp_path)
    for words, said in (
        (["--from", tmp_path / "file"], "is no JSON document"),
        (["--from", tmp_path / "causal.json"], "tunefa bench causal --from"),
        ([*MODELLED, "--out", tmp_path / "file" / "out"], "cannot make the folder"),
        (["--arch", "sm99"], "sm99"),
        ([*MODELLED[:2], "-w", "b4_h8_q1024_d64_full_varlen"], "packed"),
    ):
        done = bench("memory", *words)
        assert done.exit_code == 1 and said in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr


def test_without_matplotlib_results_are_kept_and_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = bench("memory", *MODELLED, "--out", tmp_path)
    assert done.exit_code == 1 and "pip install 'matplotlib>=3.8'" in done.stderr
    assert (tmp_path / "memory.json").exists()


def test_without_matplotlib_all_experiments_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(tile_grid, "MOST_COMPILED", 1)  # all tiles take half a minute
    done = bench("all", *MODELLED, "--out", tmp_path)
    assert done.exit_code == 1 and "pip install 'matplotlib>=3.8'" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {"causal.json", "scaling.json"}
    assert done.stderr.count("plots need matplotlib") == 1, "one sentence for all"
    assert "causal: What does a causal mask cost" in done.stdout


def test_an_experiment_that_fails_costs_no_other(tmp_path: Path) -> None:
    for name in ("causal", "memory", "scaling"):
        bench(name, *MODELLED, "--out", tmp_path)
    (tmp_path / "causal.json").write_text("{")
    (tmp_path / "memory.png").unlink()
    done = bench("all", "--from", tmp_path, "--out", tmp_path, "--json")
    assert done.exit_code == 1 and "causal.json is no JSON document" in done.stderr
    found = json.loads(done.stdout)["experiments"]
    assert [each["experiment"] for each in found] == ["memory", "scaling"]
    assert (tmp_path / "memory.png").exists()


def test_experiments_that_search_run_last(tmp_path: Path) -> None:
    for name, point in (("matmul", "matmul_m512_n512_k512_fp16"), ("memory", MODELLED[-1])):
        bench(name, *MODELLED[:2], "-w", point, "--out", tmp_path)
    found = json.loads(bench("all", "--from", tmp_path, "--json").stdout)["experiments"]
    assert [each["experiment"] for each in found] == ["memory", "matmul"]
