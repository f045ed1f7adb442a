"""tunefa/runtime/autocast.py: attention casts its inputs as PyTorch's does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support import packed_calls
from tests.support.dense_calls import sdpa, tensors
from tunefa.runtime.call import Tensors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dense_tensors_get_the_dtype_of_autocast(dtype: torch.dtype) -> None:
    q, k, v = tensors()
    right = tunefa.flash_attention(*(x.to(dtype) for x in (q, k, v)), causal=True)
    for mixed in ((q, k, v), (q.bfloat16(), k.half(), v)):
        with torch.autocast("cpu", dtype=dtype):
            assert sdpa(*mixed, True).dtype == dtype  # as PyTorch has it
            out, lse = tunefa.flash_attention(*mixed, causal=True, return_lse=True)
        assert (out.dtype, lse.dtype) == (dtype, torch.float32)
        torch.testing.assert_close(out, right, atol=2e-2, rtol=2e-2)


def test_gradients_have_the_dtype_of_the_inputs() -> None:
    q, k, v = (x.requires_grad_() for x in tensors())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tunefa.flash_attention(q, k, v)
    (found,) = torch.autograd.grad(out.sum(), q)
    assert out.dtype == torch.bfloat16
    assert found.dtype == torch.float32 and bool(found.any())


def test_packed_sequences_too() -> None:
    made = packed_calls.tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert packed_calls.call(made).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_what_is_left_as_it_is() -> None:
    q, k, v = tensors()
    with torch.autocast("cpu", dtype=torch.float16):
        doubles = tunefa.flash_attention(q.double(), k.double(), v.double())
        e4m3 = tunefa.flash_attention(*(x.to(torch.float8_e4m3fn) for x in (q, k, v)))
        with torch.autocast("cpu", enabled=False):
            off = tunefa.flash_attention(q, k, v)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        other = tunefa.flash_attention(q, k, v)
    dtypes = [x.dtype for x in (doubles, e4m3, off, other)]
    assert dtypes == [torch.float64, torch.bfloat16, torch.float32, torch.float32]


def test_mistakes_are_still_named() -> None:
    q, k, v = tensors()
    wrong: Any = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for given in ((wrong, k, v), (q, wrong, v)):
            with pytest.raises(tunefa.TunefaError, match=r"is a NoneType: give a torch\.Tensor"):
                tunefa.flash_attention(*given)


def test_autocast_within_a_compiled_function() -> None:
    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return tunefa.flash_attention(q, k, v, causal=True)

    torch.compiler.reset()
    compiled: Any = torch.compile(block, fullgraph=True, backend="aot_eager")
    made = Tensors(*tensors())
    out = compiled(*made[:3])
    assert out.dtype == torch.bfloat16 and torch.equal(out, block(*made[:3]))
