"""tunefa/runtime/prefill.py: frozen processes, meta and fake tensors, transforms and autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.paged_calls import HEAD_DIM, HEADS, expected, found, made
from tunefa.errors import TunefaError


def test_a_frozen_process_computes_on_the_cpu(fresh: Any, tmp_path: Any) -> None:
    from tests.support.sample_records import measured
    from tunefa.store import results

    path = tmp_path / "lock.yaml"
    results.write(path, [measured()])
    fresh.planner.freeze.to(path)
    given = made()
    torch.testing.assert_close(found(given, causal=True)[0], expected(given)[0])


def test_meta_and_fake_tensors_have_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = made()
    shape = real["q"].shape
    given: dict[str, Any] = {
        name: x.to("meta") if isinstance(x, Tensor) else x for name, x in real.items()
    }
    out, lse = tunefa.flash_attention_varlen(**given, return_lse=True)
    assert out.is_meta and out.shape == shape and lse.shape == (HEADS, shape[0])
    with FakeTensorMode() as mode:
        fake: dict[str, Any] = {
            name: mode.from_tensor(x) if isinstance(x, Tensor) else x for name, x in real.items()
        }
        assert tunefa.flash_attention_varlen(**fake).shape == shape
        with pytest.raises(TunefaError, match="head_dim of q is 8 and of k 16"):
            tunefa.flash_attention_varlen(**{**fake, "q": fake["q"][..., :8]})


def test_transforms_are_refused_by_name() -> None:
    given = made()

    def attend(q: Tensor) -> Tensor:
        result: Tensor = tunefa.flash_attention_varlen(**{**given, "q": q})
        return result

    with pytest.raises(TunefaError, match=r"no rule for torch\.func"):
        torch.func.vmap(attend)(torch.randn(3, 30, HEADS, HEAD_DIM).double())


def test_autocast_casts_the_queries() -> None:
    given = made(dtype=torch.float32)
    given |= {name: given[name].bfloat16() for name in "qkv"}
    right = found(given)
    with torch.autocast("cpu", torch.bfloat16):
        for mine, theirs in zip(found({**given, "q": given["q"].float()}), right, strict=True):
            assert torch.equal(mine, theirs)


def test_compiled_calls_check_out() -> None:
    compiled: Any = torch.compile(tunefa.flash_attention_varlen, backend="eager")
    with pytest.raises(Exception, match=r"out is \(5,\)"):
        compiled(**made(), out=torch.zeros(5).double())


def test_an_unknown_parameter_is_named() -> None:
    wrong: dict[str, Any] = {"block_tabel": None}
    with pytest.raises(TunefaError, match="block_table"):
        tunefa.flash_attention_varlen(**made(), **wrong)
