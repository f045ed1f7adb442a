"""One call of attention, dense or packed: its checked arguments, and the shapes of its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tunefa.errors import TunefaError, unknown
from tunefa.measure.attention_inputs import E4M3, AttentionInputs, batch_of_one
from tunefa.runtime.argument_checks import (
    ACCUMULATE,
    DTYPES,
    MOST_KEYS,
    check_accumulate,
    check_cu_seqlens,
    check_descales,
    check_flag,
    check_like_q,
    check_max_seqlen,
    check_scale,
    check_sizes,
    check_softcap,
    check_tensor,
    check_window_side,
)
from tunefa.spec.workload import ACCURACIES, Workload

LAYOUTS: Mapping[str, str] = {
    "bshd": "(batch, seqlen, heads, head_dim)",
    "bhsd": "(batch, heads, seqlen, head_dim)",
}
"""The orders of the axes of dense q, k, v and out, by layout."""

PACKED = "thd"
"""The layout of packed sequences: (rows, heads, head_dim)."""
_PACKED_AXES = "packed tensors are (rows, heads, head_dim)"

Window = int | tuple[int | None, int | None] | None
"""A window as the public functions take it. In (left, right) they are the numbers of keys before
and beyond the diagonal, None for all. A number goes with a causal mask, and counts the keys up to
the diagonal, with the one on it."""

Descales = tuple[Tensor | None, ...]
"""The descales of q, k and v; () where a call gives none of them."""


class Tensors(NamedTuple):
    """The arguments of a call that are tensors, in the caller's layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens: tuple[Tensor, Tensor] | None = None
    """(cu_seqlens_q, cu_seqlens_k) of packed sequences; None for dense tensors."""
    descales: Descales = ()


class Options(NamedTuple):
    """The arguments that decide, with the tensors' shapes, what runs a call."""

    causal: bool = False
    window_left: int | None = None
    """The number of keys before the diagonal that a query sees; None for all."""
    window_right: int | None = None
    """The number of keys beyond the diagonal that a query sees; None for all, or if `causal`."""
    layout: str = "bshd"
    softcap: float | None = None
    max_seqlen_q: int = 0
    """The length of the longest packed sequence of queries, or more; 0 for dense tensors."""
    max_seqlen_k: int = 0
    """The same for keys."""
    deterministic: bool = False
    """Whether the gradients of equal calls are equal to the last bit; the output always is."""
    accumulate: str = ACCUMULATE[0]
    """The way to compute sums over keys in e4m3, one of `ACCUMULATE`."""

    @classmethod
    def of(
        cls,
        causal: bool,
        window: Window,
        layout: str = "bshd",
        softcap: float | None = None,
        more: tuple[int, int, bool] = (0, 0, False),
        accumulate: str = ACCUMULATE[0],
    ) -> Options:
        """Makes options from a window as the public functions take it.

        `more` are max_seqlen_q, max_seqlen_k and deterministic. Raises TunefaError for a window
        that has none of the forms of `Window`.
        """
        if window is None:
            # The class itself would take twice the time.
            return tuple.__new__(cls, (causal, None, None, layout, softcap, *more, accumulate))
        rest = layout, softcap, *more, accumulate
        if type(window) is int:
            if not 1 <= window <= MOST_KEYS:
                raise _bad_window(window)
            if not causal:
                raise TunefaError(
                    f"window is {window} and causal is False: a number counts the keys up to the "
                    f"diagonal, so give causal=True, or a pair (left, right)"
                )
            return cls(causal, window - 1, None, *rest)
        if type(window) is not tuple or len(window) != 2:
            raise _bad_window(window)
        for side in window:
            if side is not None and (type(side) is not int or not 0 <= side <= MOST_KEYS):
                raise _bad_window(window)
        left, right = window
        if causal or right == 0:
            return cls(causal or True, left, None, *rest)
        return cls(causal, left, right, *rest)

    def shared(self) -> Options:
        """Returns the options of all calls with the same `plan_key`: the longest sequences may be
        as long as the next powers of two."""
        longest = power_of_2(self.max_seqlen_q), power_of_2(self.max_seqlen_k)
        return self._replace(max_seqlen_q=longest[0], max_seqlen_k=longest[1])

    def check(self) -> None:
        """Raises TunefaError for the first option that does not fit."""
        if self.layout not in (*LAYOUTS, PACKED):
            raise unknown("layout", str(self.layout), LAYOUTS)
        check_max_seqlen("max_seqlen_q", self.max_seqlen_q)
        check_max_seqlen("max_seqlen_k", self.max_seqlen_k)
        check_flag("causal", self.causal)
        check_flag("deterministic", self.deterministic)
        check_window_side("window_left", self.window_left, 0)
        check_window_side("window_right", self.window_right, 1)
        if self.causal and self.window_right is not None:
            raise TunefaError(
                f"window_right is {self.window_right} and causal is True, which hides every key "
                f"beyond the diagonal: leave out one of them"
            )
        check_softcap(self.softcap)


def _bad_window(window: object) -> TunefaError:
    return TunefaError(
        f"window is {window!r}: give the number of keys that a query sees up to the diagonal, 1 to "
        "2**62; or (left, right), the numbers of keys before and beyond it, 0 to 2**62, None for "
        "all; or None"
    )


@dataclass(frozen=True, kw_only=True)
class Call(AttentionInputs):
    """The checked arguments of a call.

    Dense q, k and v are (batch, heads, seqlen, head_dim) views of the caller's tensors.
    """

    options: Options

    @classmethod
    def of(cls, tensors: Tensors, options: Options, scale: float | None) -> Call:
        """Makes the call with these arguments, as the public functions take them.

        Raises TunefaError for the first argument that does not fit, saying which and why.
        """
        q, k, v, cu_seqlens, descales = tensors
        packed, layout = cu_seqlens is not None, options.layout
        if packed != (layout == PACKED):
            raise unknown("layout", str(layout), LAYOUTS)
        options.check()
        axes = _PACKED_AXES if packed else f"{LAYOUTS[layout]} for layout {layout!r}"
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, tensor, 3 if packed else 4, axes)
        if packed and q.dtype == E4M3:
            raise TunefaError(f"q is {E4M3}: packed sequences are served in bf16, fp16 and fp32")
        for name, tensor in (("k", k), ("v", v)):
            check_like_q(name, tensor, q)
        q, k, v = (heads_first(tensor, layout) for tensor in (q, k, v))
        axes = _PACKED_AXES if packed else f"layout {layout!r} is {LAYOUTS[layout]}"
        views = [batch_of_one(x) if packed else x for x in (q, k, v)]
        check_sizes(views[0], views[1], views[2], axes)
        if cu_seqlens is not None:
            check_cu_seqlens(*cu_seqlens, q)
        check_descales(q, k, descales)
        check_accumulate(options.accumulate, q.dtype)
        descales = as_kernels_take_them(descales, no_descales(q))
        scale = check_scale(scale, q.shape[-1])
        mask = options.window_left, options.window_right, options.softcap
        return cls(q, k, v, options.causal, scale, *mask, descales, cu_seqlens, options=options)

    def new_out(self) -> Tensor:
        """Returns an uninitialised `out`, contiguous in the call's layout."""
        shape = self.out_shape
        if self.options.layout == "bshd":
            shape = shape[0], shape[2], shape[1], shape[3]
        return self.q.new_empty(shape, dtype=self.out_dtype)

    def new_lse(self) -> Tensor:
        """Returns an uninitialised lse, of the shape `lse_shape`."""
        return self.q.new_empty(self.lse_shape, dtype=self.dtype)

    def workload(self) -> Workload:
        """The workload that lookup is asked for. Raises TunefaError where no kernel could serve it.

        For packed sequences, the batch and the lengths are rounded up to powers of two, so that
        calls with similar lengths share a config.
        """
        q, k, options = self.q, self.k, self.options
        if self.cu_seqlens is None:
            batch, seqlen_q, seqlen_k = q.shape[0], q.shape[2], k.shape[2]
        else:
            batch = power_of_2(self.cu_seqlens[0].shape[0] - 1)
            seqlen_q = power_of_2(max(1, options.max_seqlen_q))
            seqlen_k = power_of_2(max(1, options.max_seqlen_k))
        return Workload(
            batch=batch,
            heads=q.shape[1],
            heads_kv=k.shape[1],
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            head_dim=q.shape[-1],
            head_dim_v=self.v.shape[-1],
            dtype=DTYPES[q.dtype],
            causal=self.causal,
            window_left=self.window_left,
            window_right=self.window_right,
            softcap=self.softcap is not None,
            varlen=self.cu_seqlens is not None,
            accuracy=ACCURACIES[ACCUMULATE.index(options.accumulate)],
        )


def heads_first(tensor: Tensor, layout: str) -> Tensor:
    """Returns a dense tensor of `layout` as a (batch, heads, seqlen, head_dim) view, and a packed
    one unchanged. It is its own inverse."""
    return tensor.transpose(1, 2) if layout == "bshd" else tensor


def no_descales(q: Tensor) -> tuple[Tensor, ...]:
    """The descales that kernels take for 1: three empty tensors for e4m3, none for other dtypes."""
    return (q.new_empty(0, dtype=torch.float32),) * 3 if q.dtype == E4M3 else ()


def as_kernels_take_them(descales: Descales, none: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Returns the given descales, made contiguous; those of `none` stand for the ones not given."""
    if not descales:
        return none
    return tuple(
        empty if descale is None else descale.contiguous()
        for descale, empty in zip(descales, none, strict=bool(none))
    )


def power_of_2(number: Any) -> Any:
    """Rounds a positive int up to a power of two; returns anything else unchanged."""
    # next_pow2 takes twice as long, and each packed call needs four.
    return 1 << (number - 1).bit_length() if type(number) is int and number >= 1 else number


def has_no_numbers(q: Tensor) -> bool:
    """Whether a call with q (batch, heads, ...) has shapes alone to give: q is on the device meta,
    or has no heads."""
    return q.is_meta or q.shape[1] == 0


def rows_behind(rows: int, starts: Tensor) -> Tensor:
    """Says of so many packed rows which stand behind the last sequence; `starts` are cumulative
    lengths, (sequences + 1,)."""
    numbers, at = torch.arange(rows, device=starts.device), starts[-1]
    placed: Any = starts
    if hasattr(placed, "device_mesh"):  # a DTensor, which takes no others beside it
        numbers = placed.from_local(numbers, placed.device_mesh, placed.placements, run_check=False)
    return numbers >= at
