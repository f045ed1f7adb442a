"""Checks of the arguments of attention; they raise TunefaError if an argument does not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from tunefa.errors import TunefaError, unknown
from tunefa.measure.attention_inputs import E4M3

DTYPES: Mapping[torch.dtype, str] = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    E4M3: "e4m3",
}
"""The dtypes that q, k and v may have, with tunefa's names."""

ACCUMULATE = ("precise", "fast")
"""Ways to compute sums over keys in e4m3, by the accuracy of workloads (`ACCURACIES`): "precise"
adds those of 512 keys at most, or of a block, in fp32; "fast" leaves all to the tensor cores."""


MOST_KEYS = 2**62
"""The largest number of keys: PyTorch's integers have 64 bits, and lengths are added to it."""


def check_tensor(name: str, tensor: Any, count: int, axes: str) -> None:
    """Raises TunefaError unless `tensor` is dense, with `count` axes and a known dtype.

    `axes` names the axes for the message.
    """
    if not isinstance(tensor, Tensor):
        raise TunefaError(f"{name} is a {type(tensor).__name__}: give a torch.Tensor, {axes}")
    if tensor.is_nested:
        raise TunefaError(
            f"{name} is a nested tensor: call flash_attention_varlen with its values() and "
            f"offsets().int()"
        )
    _check_strided(name, tensor)
    if tensor.dim() != count:
        shape = tuple(tensor.shape)
        raise TunefaError(f"{name} has {tensor.dim()} axes, {shape}: give {count}, {axes}")
    if tensor.dtype not in DTYPES:
        raise unknown(f"dtype of {name},", str(tensor.dtype), [str(dtype) for dtype in DTYPES])


def check_like_q(name: str, tensor: Tensor, q: Tensor) -> None:
    """Raises TunefaError unless the tensor has q's dtype and device."""
    if tensor.dtype != q.dtype:
        raise TunefaError(
            f"{name} is {tensor.dtype} and q is {q.dtype}: convert one, such as {name}.to(q.dtype)"
        )
    if tensor.device != q.device:
        raise TunefaError(
            f"{name} is on {tensor.device} and q is on {q.device}: move one, such as "
            f"{name}.to(q.device)"
        )


def check_sizes(q: Tensor, k: Tensor, v: Tensor, axes: str) -> None:
    """Raises TunefaError where the sizes of (batch, heads, seqlen, head_dim) views do not match.

    `axes` describes the caller's axes for the message.
    """
    sizes = (
        ("batch", "q", q.shape[0], "k", k.shape[0]),
        ("batch", "k", k.shape[0], "v", v.shape[0]),
        ("heads", "k", k.shape[1], "v", v.shape[1]),
        ("seqlen", "k", k.shape[2], "v", v.shape[2]),
        ("head_dim", "q", q.shape[3], "k", k.shape[3]),
    )
    for size, one, here, other, there in sizes:
        if here != there:
            raise TunefaError(
                f"{size} of {one} is {here} and of {other} {there}: make them equal ({axes})"
            )
    heads, heads_kv = q.shape[1], k.shape[1]
    if heads_kv == 0 or heads % heads_kv:
        raise TunefaError(
            f"q has {heads} heads, which is not a multiple of the {heads_kv} of k and v: each KV "
            f"head serves the same number of query heads ({axes})"
        )
    for name, head_dim in (("q", q.shape[3]), ("v", v.shape[3])):
        if head_dim < 1:
            raise TunefaError(f"head_dim of {name} is {head_dim}: give 1 or more ({axes})")


def check_descales(q: Tensor, k: Tensor, descales: Sequence[Tensor | None]) -> None:
    """Raises TunefaError for the first descale that does not fit q and k.

    q and k are (batch, heads, seqlen, head_dim).
    """
    if q.dtype != E4M3 and any(descale is not None for descale in descales):
        raise TunefaError(
            f"q is {q.dtype} and has a descale: give descales for {E4M3} only, or multiply q, k "
            f"and v by them"
        )
    shape = (k.shape[0], k.shape[1])
    for name, descale in zip("qkv", descales, strict=bool(descales)):
        if descale is None:
            continue
        if not isinstance(descale, Tensor):
            raise TunefaError(
                f"{name}_descale is a {type(descale).__name__}: give an fp32 torch.Tensor, "
                f"(batch, heads_kv), or None for 1"
            )
        _check_strided(f"{name}_descale", descale)
        if (tuple(descale.shape), descale.dtype) != (shape, torch.float32):
            raise TunefaError(
                f"{name}_descale is {tuple(descale.shape)}, {descale.dtype}: give (batch, "
                f"heads_kv), here {shape}, in torch.float32"
            )
        if descale.device != q.device:
            raise TunefaError(
                f"{name}_descale is on {descale.device} and q is on {q.device}: move one, such as "
                f"{name}_descale.to(q.device)"
            )


def check_cu_seqlens(cu_seqlens_q: Any, cu_seqlens_k: Any, q: Tensor) -> None:
    """Raises TunefaError unless both are int32, (batch + 1,), on q's device.

    Their contents are not checked: reading them would wait for the device.
    """
    for name, starts in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        check_starts(name, starts, q)
    sequences = [starts.shape[0] - 1 for starts in (cu_seqlens_q, cu_seqlens_k)]
    if sequences[0] != sequences[1]:
        raise TunefaError(
            f"cu_seqlens_q has {sequences[0]} sequences and cu_seqlens_k {sequences[1]}: give "
            f"every sequence in both, with a length of 0 where it has none"
        )


def check_max_seqlen(name: str, value: Any) -> None:
    """Raises TunefaError unless `value` is a whole number from 0, within 64 bits."""
    if not isinstance(value, int | torch.SymInt) or isinstance(value, bool) or not _counts(value):
        raise TunefaError(
            f"{name} is {value!r}: give the length of the longest sequence, or more, as a "
            f"whole number from 0"
        )


def _check_strided(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided:
        raise TunefaError(f"{name} is {tensor.layout}: convert it, {name}.to_dense()")


def check_starts(name: str, tensor: Any, q: Tensor) -> None:
    """Raises TunefaError unless it is int32, (batch + 1,), on q's device."""
    if not isinstance(tensor, Tensor):
        raise TunefaError(
            f"{name} is a {type(tensor).__name__}: give a torch.Tensor, (batch + 1,), of int32"
        )
    _check_strided(name, tensor)
    if tensor.dim() != 1 or tensor.shape[0] < 1 or not tensor.is_contiguous():
        raise TunefaError(
            f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}: give one "
            f"contiguous axis, (batch + 1,)"
        )
    if tensor.dtype != torch.int32:
        raise TunefaError(f"{name} is {tensor.dtype}: convert it, {name}.int()")
    if tensor.device != q.device:
        raise TunefaError(
            f"{name} is on {tensor.device} and q is on {q.device}: move one, such as "
            f"{name}.to(q.device)"
        )


def check_window_side(name: str, keys: Any, least: int) -> None:
    """Raises TunefaError unless `keys` is None or a whole number from `least`, within 64 bits."""
    if keys is not None and (type(keys) is not int or keys < least or not _counts(keys)):
        raise TunefaError(
            f"{name} is {keys!r}: give a number of keys from {least} to 2**62, or None"
        )


def check_flag(name: str, value: Any) -> None:
    """Raises TunefaError for an argument that is neither True nor False."""
    if not isinstance(value, bool):
        raise TunefaError(f"{name} is {value!r}: give True or False")


def check_softcap(softcap: Any) -> None:
    """Raises TunefaError unless the soft-cap is None, or positive and finite as a float."""
    if softcap is not None and not (_is_finite(softcap) and softcap > 0):
        raise TunefaError(
            f"softcap is {softcap!r}: give a positive number, or None for scores as they are"
        )


def check_scale(scale: Any, head_dim: int) -> float:
    """Returns the scale; for None, head_dim ** -0.5. Raises TunefaError unless it is finite."""
    if scale is None:
        return float(head_dim**-0.5)
    if not _is_finite(scale):
        raise TunefaError(f"scale is {scale!r}: give a finite number, or None for head_dim ** -0.5")
    return float(scale)


SMALLEST_SCALE = 2.0**-100
"""The smallest scale that kernels take: those of gradients may divide a row's lse by it, and the
quotient must be finite in fp32 and bf16."""


def is_usual(scale: float | None) -> bool:
    """Whether kernels take the scale without a check."""
    return scale is None or (type(scale) is float and SMALLEST_SCALE <= scale < math.inf)


def _is_finite(number: Any) -> bool:
    try:
        return isinstance(number, Real) and math.isfinite(number)
    except OverflowError:  # an int that no float holds
        return False


def _counts(number: int | torch.SymInt) -> bool:
    # A symbolic number has 64 bits, and a comparison with MOST_KEYS would become a guard.
    return number >= 0 and (not isinstance(number, int) or number <= MOST_KEYS)


def check_accumulate(accumulate: str, dtype: torch.dtype) -> None:
    """Raises TunefaError unless sums of the dtype can be computed so."""
    if accumulate not in ACCUMULATE:
        raise unknown("accumulate", str(accumulate), ACCUMULATE)
    if accumulate != ACCUMULATE[0] and dtype != E4M3:
        raise TunefaError(
            f"accumulate is {accumulate!r} and q is {dtype}: it is for {E4M3} only, other dtypes "
            f"are summed in fp32"
        )
