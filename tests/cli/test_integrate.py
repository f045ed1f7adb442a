"""`tunefa integrate`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tunefa.cli import main


def test_the_variable_is_printed_for_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    done = CliRunner().invoke(main, ["integrate", "transformers", str(folder)])
    assert done.exit_code == 0
    assert done.output == f"export 'LOCAL_KERNELS=kernels-community/flash-attn2={folder}'\n"
    assert (folder / "build" / "torch-cuda" / "metadata.json").is_file()


def test_json(tmp_path: Path) -> None:
    arguments = ["integrate", "transformers", str(tmp_path / "new"), "--json"]
    data = json.loads(CliRunner().invoke(main, arguments).output)
    assert data["folder"] == str(tmp_path / "new")
    assert data["LOCAL_KERNELS"] == f"kernels-community/flash-attn2={tmp_path / 'new'}"


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, ["integrate", "transformers", str(tmp_path)])
    assert done.exit_code == 1
    assert f"Error: {tmp_path} is not empty" in done.output
