"""tunefa/runtime/flop_formulas.py: PyTorch's counter counts attention as it does its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import tunefa
from tests.support.op_calls import inputs
from tests.support.tree import TREE

FORWARD = torch.ops.tunefa.flash_attention
BACKWARD = torch.ops.tunefa.flash_attention_backward
HALVES = {FORWARD: 2, BACKWARD: 5}
"""Matmuls of each op; one takes two FLOPs for each score and element of head_dim."""


def counted(run: Any) -> dict[Any, int]:
    with FlopCounterMode(display=False) as counter:
        run()
    made: dict[Any, int] = counter.get_flop_counts()["Global"]
    return made


def step(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> None:
    attention: Any = tunefa.flash_attention
    torch.autograd.backward(attention(q, k, v, **given).sum())


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("heads_kv", [4, 2, 1])
def test_every_score_counts_for_each_query_head(layout: str, heads_kv: int) -> None:
    x = inputs((4, heads_kv, 7, 12, 8, 8), layout)
    scores = 2 * 4 * 7 * 12  # the batch is 2
    made = counted(lambda: step(*x, causal=True, layout=layout))
    assert made == {op: halves * 2 * scores * 8 for op, halves in HALVES.items()}
    assert made[BACKWARD] / made[FORWARD] == 2.5


def test_counts_are_those_of_pytorch_s_attention() -> None:
    """The backends for CUDA have formulas in PyTorch, and meta tensors choose them."""
    x = [torch.randn(2, 64, 4, 32, device="meta", requires_grad=True) for _ in range(3)]
    mine = counted(lambda: step(*x, causal=True))

    def theirs() -> None:
        heads_first = [each.transpose(1, 2) for each in x]
        op = torch.ops.aten._scaled_dot_product_flash_attention.default
        torch.autograd.backward(op(*heads_first, is_causal=True)[0].sum())

    assert sorted(mine.values()) == sorted(counted(theirs).values())
    assert len(mine) == 2


def test_head_dim_v_counts_where_v_is_used() -> None:
    x = inputs((4, 2, 7, 12, 8, 16))
    scores = 2 * 4 * 7 * 12
    made = counted(lambda: step(*x))
    assert made == {FORWARD: 2 * scores * (8 + 16), BACKWARD: 2 * scores * (3 * 8 + 2 * 16)}


def packed_step(x: list[Tensor], starts: Tensor) -> None:
    out = tunefa.flash_attention_varlen(x[0], x[1], x[2], starts, starts, 9, 9)
    torch.autograd.backward(out.sum())


def test_packed_sequences_count_by_their_lengths() -> None:
    x = [torch.randn(14, 4, 8, requires_grad=True) for _ in range(3)]
    starts = torch.tensor([0, 5, 5, 14], dtype=torch.int32)
    scores = 4 * (5 * 5 + 9 * 9)
    made = counted(lambda: packed_step(x, starts))
    assert made == {op: halves * 2 * scores * 8 for op, halves in HALVES.items()}


def test_unknown_lengths_count_as_the_longest() -> None:
    with FakeTensorMode():
        x = [torch.randn(14, 4, 8, requires_grad=True) for _ in range(3)]
        starts = torch.zeros(4, dtype=torch.int32)
        made = counted(lambda: packed_step(x, starts))
    assert made == {op: halves * 2 * 4 * 3 * 9 * 9 * 8 for op, halves in HALVES.items()}


def test_masks_change_no_count() -> None:
    x = inputs((4, 2, 7, 12, 8, 8))
    plain = counted(lambda: step(*x))
    assert plain == counted(lambda: step(*x, causal=True, window=3))


CALL = "tunefa.flash_attention(leaf, leaf, leaf)"
IMPORT = "from torch.utils.flop_counter import FlopCounterMode"
MAKE = "counter = FlopCounterMode(display=False)"
IN_FUNC = "torch.func.grad(lambda x: tunefa.flash_attention(x, x, x).sum())(q)"


COUNTERS = {
    "before the first call": (f"{IMPORT}; {MAKE}; import tunefa", f"{CALL}.sum().backward()"),
    "after inference": (
        f"import tunefa; {IMPORT}; tunefa.flash_attention(q, q, q); {MAKE}",
        f"{CALL}.sum().backward()",
    ),
    "after training": (f"import tunefa; {IMPORT}; {CALL}; {MAKE}", f"{CALL}.sum().backward()"),
    "in torch.func": (f"import tunefa; {CALL}; {IMPORT}; {MAKE}", IN_FUNC),
}
COUNTED = """
q = torch.randn(1, 8, 2, 4)
leaf = q.clone().requires_grad_()
{made}
with counter:
    {call}
print(counter.get_total_flops(), flush=True)
"""
FORKS = """
import os, sys, torch
import torch._dynamo  # PyTorch imports it in each call under a counter
for program in sys.argv[1:]:
    if not os.fork():
        exec(program)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(program)
"""
"""Programs in processes of their own, which share the seconds that importing PyTorch takes. The
counter's module and tunefa are imported by each of them: the order in which they come matters."""


def test_a_counter_counts_whenever_it_was_made() -> None:
    programs = [COUNTED.format(made=made, call=call) for made, call in COUNTERS.values()]
    done = subprocess.run(
        [sys.executable, "-c", FORKS, *programs],
        capture_output=True, text=True, timeout=120, check=False, cwd=TREE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    right = (2 + 5) * 2 * 2 * 8 * 8 * 4
    found = dict(zip(COUNTERS, map(int, done.stdout.split()), strict=True))
    assert found == dict.fromkeys(COUNTERS, right)
