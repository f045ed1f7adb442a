"""One call of `flash_attention_varlen`: its arguments, checked, and the shapes that follow."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.measure.packed import Packed, heads_first
from tunefa.measure.reference import E4M3
from tunefa.runtime.call import (
    DTYPES,
    Options,
    Window,
    check_like_q,
    check_scale,
    check_sizes,
    check_tensor,
)
from tunefa.spec.workload import Workload

_AXES = "packed tensors are (rows, heads, head_dim)"


class PackedTensors(NamedTuple):
    """Arguments of `flash_attention_varlen` that are tensors."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor


class PackedOptions(NamedTuple):
    """Those that, with the tensors' shapes, decide what runs."""

    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool = False
    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    """These four as in `Options`."""

    @classmethod
    def of(
        cls,
        max_seqlen_q: int,
        max_seqlen_k: int,
        causal: bool = False,
        window: Window = None,
        softcap: float | None = None,
    ) -> PackedOptions:
        """From `flash_attention_varlen`'s arguments. Raises TunefaError for no proper window."""
        one = Options.of(causal, window, softcap=softcap)
        sides = one.window_left, one.window_right
        return cls(max_seqlen_q, max_seqlen_k, one.causal, *sides, one.softcap)

    def check(self) -> None:
        """Raises TunefaError for the first that does not fit."""
        Options(self.causal, self.window_left, self.window_right, softcap=self.softcap).check()
        for name in ("max_seqlen_q", "max_seqlen_k"):
            value = getattr(self, name)
            if not isinstance(value, int | torch.SymInt) or isinstance(value, bool) or value < 0:
                raise TunefaError(
                    f"{name} is {value!r}: give the length of the longest sequence, or more, as a "
                    f"whole number from 0"
                )


@dataclass(frozen=True, kw_only=True)
class PackedCall(Packed):
    """A packed problem and how long its sequences are at most."""

    options: PackedOptions

    @classmethod
    def of(cls, tensors: PackedTensors, options: PackedOptions, scale: float | None) -> PackedCall:
        """The call with these arguments, as `flash_attention_varlen` takes them.

        Raises TunefaError for the first argument that does not fit, saying which and why. What
        cu_seqlens hold is not looked at: that would wait for the device.
        """
        options.check()
        q, k, v, *cu_seqlens = tensors
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, tensor, 3, _AXES)
        if q.dtype == E4M3:
            raise TunefaError(f"q is {E4M3}: packed sequences are served in bf16, fp16 and fp32")
        for name, tensor in (("k", k), ("v", v)):
            check_like_q(name, tensor, q)
        check_sizes(heads_first(q), heads_first(k), heads_first(v), _AXES)
        for name, starts in zip(("cu_seqlens_q", "cu_seqlens_k"), cu_seqlens, strict=True):
            _check_cu_seqlens(name, starts, q)
        sequences = [starts.shape[0] - 1 for starts in cu_seqlens]
        if sequences[0] != sequences[1]:
            raise TunefaError(
                f"cu_seqlens_q has {sequences[0]} sequences and cu_seqlens_k {sequences[1]}: give "
                f"every sequence in both, with a length of 0 where it has none"
            )
        scale = check_scale(scale, q.shape[2])
        _, _, causal, *more = options
        return cls(*tensors, causal, scale, *more, options=options)  # type: ignore[arg-type]

    @property
    def cu_seqlens(self) -> tuple[Tensor, Tensor]:
        """cu_seqlens_q and cu_seqlens_k."""
        return self.cu_seqlens_q, self.cu_seqlens_k

    def new_out(self) -> Tensor:
        """Uninitialised memory for `out`, contiguous."""
        return self.q.new_empty(self.out_shape)

    def new_lse(self) -> Tensor:
        """Uninitialised memory for lse, (heads, rows)."""
        rows, heads, _ = self.out_shape
        return self.q.new_empty((heads, rows), dtype=self.dtype)

    def workload(self) -> Workload:
        """What lookup knows it as, each length and the batch as the next power of two: calls with
        others like them run the same. Raises TunefaError where no kernel could serve it."""
        return Workload(
            batch=power_of_2(self.cu_seqlens_q.shape[0] - 1),
            heads=self.q.shape[1],
            heads_kv=self.k.shape[1],
            seqlen_q=power_of_2(max(1, self.options.max_seqlen_q)),
            seqlen_k=power_of_2(max(1, self.options.max_seqlen_k)),
            head_dim=self.q.shape[2],
            head_dim_v=self.v.shape[2],
            dtype=DTYPES[self.q.dtype],
            causal=self.causal,
            window_left=self.window_left,
            window_right=self.window_right,
            softcap=self.softcap is not None,
            varlen=True,
        )


def plan_key(tensors: PackedTensors, options: PackedOptions) -> Hashable:
    """Equal for all calls that one plan serves: their lengths differ by less than a factor of two.

    Of tensors that `PackedCall.of` refuses it equals that of none that it takes.
    """
    q, k, v, *cu_seqlens = tensors
    return (
        *((x.shape[1:], x.stride(), x.dtype, x.get_device()) for x in (q, k, v)),
        *((x.dim(), x.stride(), x.dtype, x.get_device()) for x in cu_seqlens),
        (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16 == 0,
        tuple(map(power_of_2, q.shape[:1])),
        (0 in k.shape[:1], k.shape[:1] == v.shape[:1]),
        tuple(power_of_2(bounds - 1) for bounds in cu_seqlens[0].shape[:1]),
        cu_seqlens[0].shape == cu_seqlens[1].shape,
        *map(power_of_2, options[:2]),
        *options[2:],
    )


def power_of_2(number: Any) -> Any:
    """The next power of two; what is no whole number from 1 stays as it is."""
    if type(number) is not int or number < 1:
        return number
    return 1 << (number - 1).bit_length()


def _check_cu_seqlens(name: str, tensor: Any, q: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TunefaError(
            f"{name} is a {type(tensor).__name__}: give a torch.Tensor, (batch + 1,), of int32"
        )
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
