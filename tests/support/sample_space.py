"""The text of a small search space, right in every part."""

from __future__ import annotations

from pathlib import Path

MODEL = """\
tiling: {block_m: 64, block_n: 64, columns: head_dim, columns_v: head_dim_v, warps: 4, stages: 1,
         copied_by_threads: true, max_registers: 255, l2_section_heads: 1, packed_heads: 1,
         diagonal_n: 64, warp_specialised: false}
"""
"""For spaces whose times do not matter."""

TINY = f"""\
schema: 2
kernel: tiny
op: fwd
language: triton
parameters:
  BLOCK:
    values: [16, 32, 64]
    doc: rows
  num_stages: {{values: [1, 2], doc: buffers}}
serves:
  it knows no window: window_left == None
define:
  bytes: BLOCK * head_dim * dtype_bytes
resources:
  smem_bytes: bytes * num_stages
rules:
  too much shared memory: smem_bytes <= smem_per_block_bytes
  one stage is for short blocks: num_stages == 2 or BLOCK <= 32
unaligned: {{BLOCK: 16}}
defaults:
  - when: head_dim <= 64
    config: {{BLOCK: 64, num_stages: 2}}
  - config: {{BLOCK: 16, num_stages: 1}}
{MODEL}"""


def written(folder: Path, text: str = TINY) -> Path:
    """The file of the space, in `folder`."""
    path = folder / "tiny.yaml"
    path.write_text(text, encoding="utf-8")
    return path
