"""attention_decode_triton in Triton's interpreter, with lengths beyond the cache."""

from __future__ import annotations

import pytest

from tests.support import processes

CODE = """
import torch
from tunefa.compile import languages
from tunefa.measure import ops
from tunefa.spec.target import Case

def run(case, config, lengths):
    op = ops.of(case.workload)
    made = op.tensors(case.workload, "cpu", seed=0)
    made[5].copy_(torch.tensor(lengths, dtype=torch.int32))
    languages.load("triton").interpret(op.launch_spec(case, config), made)
    return made[3], made[4]

for pages in ("", "_page16"):
    text = f"decode_b3_h4_kv2_k512_d16_fp16{pages}"
    case = Case.from_names("attention_decode_triton", text, "sm90")
    config = {**case.default(), "BLOCK_N": 32, "num_warps": 1, "MIN_SPLIT_KEYS": 128}
    full = run(case, config, [512, 512, 512])
    for lengths in ([900, 512, 512], [512, 2000, 512], [512, 512, 10**6]):
        assert all(map(torch.equal, run(case, config, lengths), full)), (pages, lengths)
print("equal")
"""


@pytest.mark.slow
def test_a_length_beyond_the_cache_counts_as_a_full_one() -> None:
    """Its splits beyond the memory for partial results would overwrite those of other rows."""
    assert processes.interpreted_code(CODE) == "equal\n"
