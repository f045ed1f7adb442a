"""The folder that stands for flash-attn in Hugging Face's `kernels`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tunefa
from tests.support.tree import TREE
from tunefa.integrations import local_kernels
from tunefa.integrations.compat import flash_attn2

MODEL = """
import torch, transformers, tunefa
sizes = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=99, pad_token_id=0)
config = transformers.LlamaConfig(**sizes, attn_implementation="flash_attention_2")
config.dtype = torch.bfloat16
model = transformers.LlamaForCausalLM(config).bfloat16().eval()
torch.manual_seed(0)
ids, mask = torch.randint(2, 90, (2, 9)), torch.ones(2, 9, dtype=torch.long)
mask[0, :4] = 0
with torch.no_grad():
    found = model(ids, attention_mask=mask).logits[mask.bool()].float()
    choice = tunefa.last_choice()
    model.set_attn_implementation("sdpa")
    right = model(ids, attention_mask=mask).logits[mask.bool()].float()
assert choice is not None, "tunefa was not called"
print(float((found - right).norm() / right.norm()))
"""


PICTURE = """
import torch, diffusers, tunefa
from diffusers.utils import is_kernels_available
if not is_kernels_available():
    raise SystemExit("skip: kernels is not installed")
model = diffusers.FluxTransformer2DModel(
    patch_size=1, in_channels=8, num_layers=1, num_single_layers=1, attention_head_dim=16,
    num_attention_heads=2, joint_attention_dim=24, pooled_projection_dim=24,
    axes_dims_rope=(4, 4, 8),
)
for weights in model.parameters():
    weights.data.mul_(2)
given = {
    "hidden_states": torch.randn(2, 12, 8), "encoder_hidden_states": torch.randn(2, 5, 24),
    "pooled_projections": torch.randn(2, 24), "timestep": torch.tensor([0.5, 0.7]),
    "img_ids": torch.randn(12, 3).round(), "txt_ids": torch.zeros(5, 3),
}
with torch.no_grad():
    right = model(**given).sample
    for name in ("flash_hub", "flash_varlen_hub"):
        assert name == "flash_varlen_hub" or tunefa.last_choice() is None
        model.set_attention_backend(name)
        found = model(**given).sample
        assert tunefa.last_choice() is not None, "tunefa was not called"
        print(float((found - right).norm() / right.norm()))
"""


def test_the_folder_has_flash_attn_s_functions(tmp_path: Path) -> None:
    assignment = local_kernels.write(tmp_path / "new")
    assert assignment == f"LOCAL_KERNELS=kernels-community/flash-attn2={tmp_path}/new"
    for backend in ("cuda", "cpu"):
        place = tmp_path / "new" / "build" / f"torch-{backend}"
        names: dict[str, object] = {}
        exec((place / "__init__.py").read_text(), names)
        assert names["flash_attn_func"] is flash_attn2.flash_attn_func
        assert names["flash_attn_varlen_func"] is flash_attn2.flash_attn_varlen_func
        data = json.loads((place / "metadata.json").read_text())
        assert data["backend"] == {"type": backend} and data["name"] == "flash-attn2"


def test_a_folder_of_its_own_is_written_again_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert local_kernels.write(folder) == local_kernels.write(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(tunefa.TunefaError, match="other is not empty: name a new folder"):
        local_kernels.write(tmp_path / "other")


def test_the_folder_of_an_older_version_is_written_again(tmp_path: Path) -> None:
    local_kernels.write(tmp_path / "new")
    place = tmp_path / "new" / "build" / "torch-cuda" / "__init__.py"
    place.write_text(local_kernels.SOURCE.partition("\n")[0] + "\n\nolder = True\n")
    local_kernels.write(tmp_path / "new")
    assert place.read_text() == local_kernels.SOURCE


@pytest.mark.parametrize("name", ["a:b", "a=b"])
def test_a_path_that_the_variable_cannot_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(tunefa.TunefaError, match="takes for a separator"):
        local_kernels.write(tmp_path / name)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(tunefa.TunefaError, match="cannot be written: Not a directory"):
        local_kernels.write(tmp_path / "file" / "new")


def test_an_unchanged_program_runs_tunefa(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.utils import import_utils

    if not import_utils.is_kernels_available():
        pytest.skip("the version of kernels that transformers needs is not installed")
    done = run(MODEL, tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.03


def test_an_unchanged_program_of_diffusers_runs_tunefa(tmp_path: Path) -> None:
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    done = run(PICTURE, tmp_path)
    if "skip: " in done.stderr:
        pytest.skip(done.stderr.strip().removeprefix("skip: "))
    assert done.returncode == 0, done.stderr
    assert [float(each) < 1e-4 for each in done.stdout.split()] == [True, True]


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program with the variable for a new folder."""
    name, _, value = local_kernels.write(folder / "new").partition("=")
    path = os.pathsep.join([str(TREE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, name: value, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
