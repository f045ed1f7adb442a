"""tunefa/runtime/op_arguments.py: a call's arguments as the ops take them, and back."""

from __future__ import annotations

import pytest
import torch

from tests.support.op_calls import FORWARD
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.op_arguments import COUNT, OUTPUTS_COUNT, flat, split

Q, K, V, STARTS, SCALE = (torch.randn(3) for _ in range(5))
GRADIENTS = torch.ops.tunefa.flash_attention_backward.default


@pytest.mark.parametrize(
    "tensors",
    [
        Tensors(Q, K, V),
        Tensors(Q, K, V, (STARTS, STARTS)),
        Tensors(Q, K, V, None, (None, SCALE, None)),
    ],
)
def test_arguments_come_back_as_they_went(tensors: Tensors) -> None:
    options = Options(True, 7, None, "bhsd", 2.0, 3, 4, True)
    made = split(flat(tensors, options, 0.5))
    assert str(made) == str((tensors, options, 0.5))
    assert made[0].q is Q and made[0].k is K and made[0].v is V


def test_the_ops_take_them_in_this_order() -> None:
    names = [argument.name for argument in FORWARD._schema.arguments]
    options = [name for name in names[COUNT:] if name != "scale"]
    assert options == list(Options._fields) and names[:3] == ["q", "k", "v"]
    before = [argument.name for argument in GRADIENTS._schema.arguments][:OUTPUTS_COUNT]
    assert before == ["grad_out", "grad_lse", "out", "lse"]
