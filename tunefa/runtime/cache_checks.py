"""Checks of the tensors of calls over a cache: their dtypes, sizes, devices and layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime.argument_checks import check_like_q


def check_dtypes(tensors: Sequence[Tensor], names: Sequence[str]) -> None:
    """Raises TunefaError unless k and v, with these names, have q's dtype, or e4m3 under bf16 or
    fp16."""
    q, k, v = tensors
    if k.dtype != E4M3 or q.dtype not in (torch.bfloat16, torch.float16):
        check_like_q(names[0], k, q)
    if k.dtype == q.dtype:
        check_like_q(names[1], v, q)
    if v.dtype != k.dtype:
        raise TunefaError(f"{names[0]} is {k.dtype} and {names[1]} {v.dtype}: make them equal")
    for name, tensor in zip(names, (k, v), strict=True):
        check_device(name, tensor, q)


def check_descales(descales: Sequence[Any], shape: tuple[int, int], k: Tensor) -> None:
    """Raises TunefaError unless a cache in e4m3, and no other, has the factors of k and v."""
    is_e4m3 = k.dtype == E4M3
    for name, tensor in zip(("k_descale", "v_descale"), descales, strict=True):
        if tensor is None:
            if is_e4m3:
                raise TunefaError(f"the cache is {E4M3}, and {name} is missing: give k_descale and "
                                  f"v_descale, (batch, heads_kv) in torch.float32")  # fmt: skip
            continue
        if not is_e4m3:
            raise TunefaError(f"{name} goes with a cache in {E4M3}, and it is {k.dtype}")
        if not isinstance(tensor, Tensor):
            raise TunefaError(f"{name} is a {type(tensor).__name__}: give a torch.Tensor")
        if (tuple(tensor.shape), tensor.dtype) != (shape, torch.float32):
            raise TunefaError(f"{name} is {tuple(tensor.shape)}, {tensor.dtype}: give (batch, "
                              f"heads_kv), here {shape}, in torch.float32")  # fmt: skip
        check_device(name, tensor, k)


def check_sizes(q: Tensor, k: Tensor, v: Tensor, block_table: Any, names: Sequence[str]) -> None:
    """Raises TunefaError unless q and the cache, whose tensors have these names, fit together.
    Heads come first."""
    of_k, of_v = names
    sizes = [
        ("heads", of_k, k.shape[1], of_v, v.shape[1]),
        ("page_size" if block_table is not None else "seqlen", of_k, k.shape[2], of_v, v.shape[2]),
        ("head_dim", "q", q.shape[3], of_k, k.shape[3]),
        ("pages" if block_table is not None else "batch", of_k, k.shape[0], of_v, v.shape[0]),
    ]
    if block_table is None:
        sizes.append(("batch", "q", q.shape[0], of_k, k.shape[0]))
    for size, one, here, other, there in sizes:
        if here != there:
            raise TunefaError(f"{size} of {one} is {here} and of {other} {there}: make them equal")
    if block_table is not None and k.shape[2] == 0:
        raise TunefaError(f"page_size of {of_k} is 0: give 1 or more")
    if q.shape[3] == 0:
        raise TunefaError("head_dim of q is 0: give 1 or more")
    heads, heads_kv = q.shape[1], k.shape[1]
    if heads_kv == 0 or heads % heads_kv:
        raise TunefaError(
            f"q has {heads} heads, which is not a multiple of the {heads_kv} of the cache: each KV "
            f"head serves the same number of query heads"
        )


def check_vector(
    name: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype, q: Tensor
) -> None:
    """Raises TunefaError unless it is a contiguous tensor of that shape and dtype on q's device."""
    said = f"give {'(heads,)' if name == 'sinks' else '(batch,)'}, here {shape}, in {dtype}"
    if not isinstance(tensor, Tensor):
        raise TunefaError(f"{name} is a {type(tensor).__name__}: {said}, a torch.Tensor")
    if (tuple(tensor.shape), tensor.dtype) != (shape, dtype):
        raise TunefaError(f"{name} is {tuple(tensor.shape)}, {tensor.dtype}: {said}")
    if not tensor.is_contiguous():
        raise TunefaError(f"{name} has strides {tensor.stride()}: make it contiguous")
    check_device(name, tensor, q)


def check_table(table: Any, q: Tensor, batch: int) -> None:
    """Raises TunefaError unless it is a block table of so many sequences."""
    said = f"give (batch, pages of the longest sequence) in torch.int32, with batch {batch}"
    if not isinstance(table, Tensor):
        raise TunefaError(f"block_table is a {type(table).__name__}: {said}, a torch.Tensor")
    if table.dim() != 2 or table.shape[0] != batch or table.dtype != torch.int32:
        raise TunefaError(f"block_table is {tuple(table.shape)}, {table.dtype}: {said}")
    if table.shape[1] > 1 and table.stride(1) != 1:
        raise TunefaError(f"block_table has strides {table.stride()}: make its rows contiguous")
    check_device("block_table", table, q)


def check_device(name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.device != q.device:
        raise TunefaError(
            f"{name} is on {tensor.device} and q is on {q.device}: move one, such as "
            f"{name}.to(q.device)"
        )


def check_no_gradients(what: str, tensors: Sequence[object]) -> bool:
    """Raises TunefaError where a gradient of a tensor is asked for; `what` has none. Returns True
    if all are plain tensors that require no gradient; most calls are."""
    for tensor in tensors:
        if tensor is not None and (type(tensor) is not Tensor or tensor.requires_grad):
            break
    else:
        return True
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.requires_grad and is_grad_enabled():
            raise TunefaError(
                f"{what} no gradients: call it under torch.no_grad(), or flash_attention where you "
                f"need them"
            )
    return False


def check_pages(pages: Tensor, count: int) -> None:
    """Raises TunefaError unless these are pages of the cache, which has `count` of them. On a GPU
    nothing is read, and so nothing is said."""
    if (
        _are_known(pages)
        and pages.numel()
        and not 0 <= int(pages.min()) <= int(pages.max()) < count
    ):
        wrong = int(pages.min() if pages.min() < 0 else pages.max())
        raise TunefaError(f"block_table has page {wrong}: give pages from 0 to {count - 1}")


def check_room(places: Tensor, capacity: int | torch.SymInt) -> None:
    """Raises TunefaError where a sequence has no room for new keys, which go to `places` (batch,
    new) of at most `capacity`. On a GPU nothing is read, and so nothing is said."""
    if _are_known(places) and places.numel() and int(places.max()) >= capacity:
        full = int(places.amax(1).argmax())
        raise TunefaError(
            f"sequence {full} has {int(places[full, 0])} keys, and the cache has room for "
            f"{capacity}: {places.shape[1]} new ones do not fit"
        )


def _are_known(numbers: Tensor) -> bool:
    """Whether the numbers of a tensor can be read without a wait for a GPU."""
    return not is_compiling() and type(numbers) is Tensor and numbers.device.type == "cpu"
