"""tunefa/runtime/plan_key.py: what it tells apart. One plan must not serve two such calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.plan_key import plan_key

DENSE = Options.of(True, None)
PACKED = Options.of(True, None, "thd", None, (16, 16, False))


def dense(**changes: Any) -> Tensors:
    """The tensors of a call with two heads in bshd, some of them changed."""
    made: dict[str, Any] = {name: torch.zeros(2, 16, 2, 64, dtype=torch.bfloat16) for name in "qkv"}
    return Tensors(**{**made, **changes})


def packed(**changes: Any) -> Tensors:
    """The tensors of a call with four sequences of 16 rows, some of them changed."""
    starts = torch.arange(5, dtype=torch.int32) * 16
    made: dict[str, Any] = {name: torch.zeros(64, 2, 64, dtype=torch.bfloat16) for name in "qkv"}
    return Tensors(**{**made, "cu_seqlens": (starts, starts.clone()), **changes})


def with_one(tensors: Tensors, name: str, tensor: Tensor) -> Tensors:
    """The tensors with another q, k or v."""
    return Tensors(**{**tensors._asdict(), name: tensor})


def wider(tensor: Tensor) -> Tensor:
    """A tensor of the same values whose rows are further apart: only its strides are others."""
    room = tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])
    view = room[..., : tensor.shape[-1]]
    assert view.shape == tensor.shape and view.stride() != tensor.stride()
    return view


def unaligned(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, strides and dtype that begins 2 bytes beyond 16."""
    return tensor.new_zeros(tensor.numel() + 1)[1:].view(tensor.shape)


def shorter(tensor: Tensor) -> Tensor:
    """The tensor's part with one row less, with the strides of the whole."""
    return tensor[:, :-1]


def as_fp16(tensor: Tensor) -> Tensor:
    """The same bytes as another dtype of their size."""
    return tensor.new_zeros(tensor.shape, dtype=torch.float16)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "strides": wider,
    "alignment": unaligned,
    "shape": shorter,
    "dtype": as_fp16,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_each_dense_tensor_decides(name: str, change: str) -> None:
    tensors = dense()
    changed = with_one(tensors, name, CHANGES[change](getattr(tensors, name)))
    assert plan_key(changed, DENSE) != plan_key(tensors, DENSE)


@pytest.mark.parametrize("change", ["strides", "alignment", "dtype"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_each_packed_tensor_decides(name: str, change: str) -> None:
    tensors = packed()
    changed = with_one(tensors, name, CHANGES[change](getattr(tensors, name)))
    assert plan_key(changed, PACKED) != plan_key(tensors, PACKED)


@pytest.mark.parametrize("tensors", [dense(), packed()], ids=["dense", "packed"])
def test_it_says_which_tensor_is_not_aligned(tensors: Tensors) -> None:
    """The one that is not may be copied, and so be aligned when a kernel reads it."""
    options = DENSE if tensors.cu_seqlens is None else PACKED
    changed = [with_one(tensors, name, unaligned(getattr(tensors, name))) for name in "qkv"]
    assert len({plan_key(each, options) for each in (tensors, *changed)}) == 4


@pytest.mark.parametrize("place", [0, 1])
def test_each_tensor_of_starts_decides(place: int) -> None:
    tensors = packed()
    assert tensors.cu_seqlens is not None
    starts = tensors.cu_seqlens[place]
    for other in (starts.long(), starts[None], starts.repeat_interleave(2)[::2], starts[:-2]):
        both = list(tensors.cu_seqlens)
        both[place] = other
        changed = tensors._replace(cu_seqlens=(both[0], both[1]))
        assert plan_key(changed, PACKED) != plan_key(tensors, PACKED)


def test_all_changes_make_keys_of_their_own() -> None:
    tensors = dense()
    keys = {plan_key(tensors, DENSE)}
    for name, change in itertools.product("qkv", ("strides", "shape", "dtype")):
        keys.add(plan_key(with_one(tensors, name, CHANGES[change](getattr(tensors, name))), DENSE))
    assert len(keys) == 10


@pytest.mark.parametrize(
    "options",
    [
        Options.of(False, None),
        Options.of(True, 4),
        Options.of(False, (None, 3)),
        Options.of(True, None, "bhsd"),
        Options.of(True, None, "bshd", 30.0),
        Options.of(False, None, accumulate="fast"),
    ],
)
def test_every_option_decides(options: Options) -> None:
    assert plan_key(dense(), options) != plan_key(dense(), DENSE)


def test_descales_decide_by_their_shapes_and_not_by_their_values() -> None:
    one, other = torch.ones(2, 2), torch.full((2, 2), 0.5)
    given = plan_key(dense(descales=(one, one, None)), DENSE)
    assert plan_key(dense(descales=(other, one, None)), DENSE) == given
    for descales in (
        (), (None, None, None), (one, None, one), (one, None, None),
        (one[:, :1], one, None), (one.half(), one, None), (one.to("meta"), one, None),
    ):  # fmt: skip
        assert plan_key(dense(descales=descales), DENSE) != given


def test_calls_on_other_memory_have_the_same_key() -> None:
    assert plan_key(dense(), DENSE) == plan_key(dense(), DENSE)
    assert plan_key(packed(), PACKED) == plan_key(packed(), PACKED)


def rows(count: int) -> dict[str, Tensor]:
    return {name: torch.zeros(count, 2, 64, dtype=torch.bfloat16) for name in "qkv"}


def starts(count: int) -> tuple[Tensor, Tensor]:
    made = torch.zeros(count + 1, dtype=torch.int32)
    return made, made


def test_packed_lengths_share_a_key_up_to_a_power_of_two() -> None:
    known = plan_key(packed(), PACKED)  # 64 rows, 4 sequences, at most 16 long
    assert plan_key(packed(**rows(33)), PACKED) == known
    assert plan_key(packed(cu_seqlens=starts(3)), PACKED) == known
    assert plan_key(packed(), PACKED._replace(max_seqlen_q=9, max_seqlen_k=9)) == known
    for tensors, options in (
        (packed(**rows(65)), PACKED),
        (packed(**rows(32)), PACKED),
        (packed(cu_seqlens=starts(2)), PACKED),
        (packed(cu_seqlens=starts(5)), PACKED),
        (packed(), PACKED._replace(max_seqlen_q=8)),
        (packed(), PACKED._replace(max_seqlen_k=17)),
        (packed(), PACKED._replace(causal=False)),
        (packed(), PACKED._replace(window_left=3)),
        (packed(), PACKED._replace(softcap=1.0)),
    ):
        assert plan_key(tensors, options) != known


def test_packed_tensors_that_a_call_refuses_share_no_key_with_one_it_takes() -> None:
    known = plan_key(packed(), PACKED)
    more_keys = {**rows(64), "k": rows(96)["k"]}
    no_keys = {**rows(64), "k": rows(0)["k"], "v": rows(0)["v"]}
    for changes in (more_keys, no_keys, {"cu_seqlens": (starts(4)[0], starts(3)[0])}):
        assert plan_key(packed(**changes), PACKED) != known


def test_dense_and_packed_calls_never_share_a_key() -> None:
    assert plan_key(dense(), DENSE) != plan_key(packed(), PACKED)
