"""tunefa/runtime/all_ops.py: programs that PyTorch saved with tunefa's ops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

import tunefa
from tests.support.tree import TREE


def test_another_process_loads_a_saved_program(tmp_path: Path) -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, lengths: Tensor, cache: Tensor) -> Tensor:
            out = tunefa.flash_attention(q, k, k, causal=True)
            return tunefa.decode_attention(out[:, -1:], cache, cache, lengths)

    q, k = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 2, 16)
    given = q, k, torch.tensor([3, 7], dtype=torch.int32), torch.randn(2, 8, 2, 16)
    program = tmp_path / "attention.pt2"
    torch.export.save(torch.export.export(Attention(), given), program)
    torch.save(given, tmp_path / "given.pt")
    code = f"""
import torch, tunefa
names = "decode_attention", "flash_attention", "flash_attention_backward", "prefill_attention"
assert not any(hasattr(torch.ops.tunefa, name) for name in names)
tunefa.register_ops()
assert all(hasattr(torch.ops.tunefa, name) for name in names)
program = torch.export.load({str(program)!r}).module()
torch.save(program(*torch.load({str(tmp_path / "given.pt")!r})), {str(tmp_path / "out.pt")!r})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.load(tmp_path / "out.pt"), Attention()(*given))
