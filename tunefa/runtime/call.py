"""One call of `flash_attention`: its arguments, checked, and the shapes that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tunefa.errors import TunefaError, unknown
from tunefa.measure.reference import E4M3, Problem
from tunefa.spec.workload import MAX_HEAD_DIM, Workload

LAYOUTS: Mapping[str, str] = {
    "bshd": "(batch, seqlen, heads, head_dim)",
    "bhsd": "(batch, heads, seqlen, head_dim)",
}
"""Orders of the axes of q, k, v and out."""

DTYPES: Mapping[torch.dtype, str] = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    E4M3: "e4m3",
}
"""What q, k and v may be, by our names."""


Window = int | tuple[int | None, int | None] | None
"""How `flash_attention` takes a window: (left, right) are the keys before and beyond the diagonal,
None for all; a number is those of a causal mask, the one on the diagonal included."""

Descales = Sequence[Tensor | None]
"""Those of q, k and v, or nothing where a call gives none of them."""


class Options(NamedTuple):
    """Arguments of `flash_attention` that, with the tensors' shapes, decide what runs."""

    causal: bool = False
    window_left: int | None = None
    """Keys before the one on the diagonal; None for all."""
    window_right: int | None = None
    """Keys beyond the diagonal; None for all, and where the mask is causal."""
    layout: str = "bshd"
    softcap: float | None = None

    @classmethod
    def of(
        cls, causal: bool, window: Window, layout: str = "bshd", softcap: float | None = None
    ) -> Options:
        """From what `flash_attention` takes. Raises TunefaError for a window that is none."""
        if window is None:
            return cls(causal, None, None, layout, softcap)
        if type(window) is int:
            if window < 1:
                raise _bad_window(window)
            if not causal:
                raise TunefaError(
                    f"window is {window} and causal is False: a number counts keys back from the "
                    f"diagonal, so give causal=True, or a pair (left, right)"
                )
            return cls(causal, window - 1, None, layout, softcap)
        if type(window) is not tuple or len(window) != 2:
            raise _bad_window(window)
        for side in window:
            if side is not None and (type(side) is not int or side < 0):
                raise _bad_window(window)
        left, right = window
        if causal or right == 0:
            return cls(causal or True, left, None, layout, softcap)
        return cls(causal, left, right, layout, softcap)

    def check(self) -> None:
        """Raises TunefaError for the first that does not fit."""
        if self.layout not in LAYOUTS:
            raise unknown("layout", str(self.layout), LAYOUTS)
        if not isinstance(self.causal, bool):
            raise TunefaError(f"causal is {self.causal!r}: give True or False")
        sides = ("window_left", self.window_left, 0), ("window_right", self.window_right, 1)
        for name, keys, least in sides:
            if keys is not None and (type(keys) is not int or keys < least):
                raise TunefaError(
                    f"{name} is {keys!r}: give a number of keys from {least}, or None"
                )
        if self.causal and self.window_right is not None:
            raise TunefaError(
                f"window_right is {self.window_right} and causal is True, which hides every key "
                f"beyond the diagonal: leave out one of them"
            )
        cap = self.softcap
        if cap is not None and not (isinstance(cap, Real) and 0 < cap < math.inf):
            raise TunefaError(
                f"softcap is {cap!r}: give a positive number, or None for scores as they are"
            )


def _bad_window(window: object) -> TunefaError:
    return TunefaError(
        f"window is {window!r}: give the number of keys that a query sees up to the diagonal, from "
        f"1; or (left, right), how many before it and beyond it, from 0, None for all; or None"
    )


@dataclass(frozen=True, kw_only=True)
class Call(Problem):
    """A problem that came in some layout; q, k and v are views of what the caller passed."""

    layout: str

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        options: Options,
        scale: float | None,
        descales: Descales = (),
    ) -> Call:
        """The call with these arguments, as `flash_attention` takes them.

        Raises TunefaError for the first argument that does not fit, saying which and why.
        """
        options.check()
        layout = options.layout
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            check_tensor(name, tensor, 4, f"{LAYOUTS[layout]} for layout {layout!r}")
        for name, tensor in (("k", k), ("v", v)):
            check_like_q(name, tensor, q)
        q, k, v = (heads_first(tensor, layout) for tensor in (q, k, v))
        check_sizes(q, k, v, f"layout {layout!r} is {LAYOUTS[layout]}")
        scale = check_scale(scale, q.shape[3])
        mask = (options.window_left, options.window_right)
        cap, descales = options.softcap, _descales(q, k, descales)
        return cls(q, k, v, options.causal, scale, *mask, cap, descales, layout=layout)

    @property
    def options(self) -> Options:
        """Those that it came with."""
        return Options(self.causal, self.window_left, self.window_right, self.layout, self.softcap)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: no row, or no key for any row."""
        return 0 in self.out_shape or self.k.shape[2] == 0

    def new_out(self) -> Tensor:
        """Uninitialised memory for `out`, contiguous in the call's layout."""
        batch, heads, seqlen_q, head_dim_v = self.out_shape
        if self.layout == "bhsd":
            return self.q.new_empty((batch, heads, seqlen_q, head_dim_v), dtype=self.out_dtype)
        return self.q.new_empty((batch, seqlen_q, heads, head_dim_v), dtype=self.out_dtype)

    def new_lse(self) -> Tensor:
        """Uninitialised memory for lse, (batch, heads, seqlen_q)."""
        return self.q.new_empty(self.out_shape[:3], dtype=self.dtype)

    def workload(self) -> Workload:
        """What lookup knows it as. Raises TunefaError where no kernel could serve it."""
        return Workload(
            batch=self.q.shape[0],
            heads=self.q.shape[1],
            heads_kv=self.k.shape[1],
            seqlen_q=self.q.shape[2],
            seqlen_k=self.k.shape[2],
            head_dim=self.q.shape[3],
            head_dim_v=self.v.shape[3],
            dtype=DTYPES[self.q.dtype],
            causal=self.causal,
            window_left=self.window_left,
            window_right=self.window_right,
            softcap=self.softcap is not None,
        )


def heads_first(tensor: Tensor, layout: str) -> Tensor:
    """A tensor of `layout` as a (batch, heads, seqlen, head_dim) view; its own inverse."""
    return tensor.transpose(1, 2) if layout == "bshd" else tensor


def check_tensor(name: str, tensor: Any, count: int, axes: str) -> None:
    """Raises TunefaError unless it is a tensor of so many axes, which the message names."""
    if not isinstance(tensor, Tensor):
        raise TunefaError(f"{name} is a {type(tensor).__name__}: give a torch.Tensor, {axes}")
    if tensor.dim() != count:
        shape = tuple(tensor.shape)
        raise TunefaError(f"{name} has {tensor.dim()} axes, {shape}: give {count}, {axes}")
    if tensor.dtype not in DTYPES:
        raise unknown(f"dtype of {name},", str(tensor.dtype), [str(dtype) for dtype in DTYPES])


def check_like_q(name: str, tensor: Tensor, q: Tensor) -> None:
    """Raises TunefaError unless it has q's dtype and device."""
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
    """Raises TunefaError where (batch, heads, seqlen, head_dim) views do not fit one another.

    The messages say what the caller's axes are.
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
            f"head serves equally many query heads ({axes})"
        )
    for name, head_dim in (("q", q.shape[3]), ("v", v.shape[3])):
        if not 1 <= head_dim <= MAX_HEAD_DIM:
            raise TunefaError(
                f"head_dim of {name} is {head_dim}: give 1 to {MAX_HEAD_DIM}, the largest tunefa's "
                f"kernels serve ({axes})"
            )


def _descales(q: Tensor, k: Tensor, descales: Descales) -> tuple[Tensor, ...]:
    """Of q and k with heads first: three tensors as kernels take them for e4m3, else none."""
    if q.dtype != E4M3:
        if any(descale is not None for descale in descales):
            raise TunefaError(
                f"q is {q.dtype} and has a descale: give descales for {E4M3} only, or multiply"
            )
        return ()
    shape = (k.shape[0], k.shape[1])
    for name, descale in zip("qkv", descales, strict=bool(descales)):
        if descale is None:
            continue
        if not isinstance(descale, Tensor):
            raise TunefaError(
                f"{name}_descale is a {type(descale).__name__}: give an fp32 torch.Tensor, "
                f"(batch, heads_kv), or None for 1"
            )
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
    return as_kernels_take_them(descales, no_descales(q))


def no_descales(q: Tensor) -> tuple[Tensor, ...]:
    """What stands for descales of 1: three empty tensors for e4m3, nothing for other dtypes."""
    return (q.new_empty(0, dtype=torch.float32),) * 3 if q.dtype == E4M3 else ()


def as_kernels_take_them(descales: Descales, none: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Descales that were given contiguous, and those of `none` for the others."""
    if not descales:
        return none
    return tuple(
        empty if descale is None else descale.contiguous()
        for descale, empty in zip(descales, none, strict=True)
    )


def check_scale(scale: Any, head_dim: int) -> float:
    """The scale, by default head_dim ** -0.5. Raises TunefaError unless it is a finite number."""
    if scale is None:
        return float(head_dim**-0.5)
    if not isinstance(scale, Real) or not math.isfinite(scale):
        raise TunefaError(f"scale is {scale!r}: give a finite number, or None for head_dim ** -0.5")
    return float(scale)
