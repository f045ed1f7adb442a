"""Attention of packed queries over a cache with pages: `flash_attention_varlen` with a block table,
and its op for torch.compile."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_any_autocast_enabled
from torch.compiler import is_compiling

from tunefa.errors import TunefaError
from tunefa.runtime import autocast, process
from tunefa.runtime.cache_checks import check_no_gradients
from tunefa.runtime.call import Options, Tensors, rows_behind
from tunefa.runtime.decode import broadcast, is_plain
from tunefa.runtime.decode_call import check_like_result
from tunefa.runtime.prefill_call import PrefillCall, PrefillTensors

_COUNT = len(PrefillTensors._fields)
_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor seqlens_k, Tensor block_table, "
    "Tensor? sinks, Tensor? k_descale, Tensor? v_descale, bool causal, int? window_left, "
    "int? window_right, str layout, float? softcap, SymInt max_seqlen_q, SymInt max_seqlen_k, "
    "bool deterministic, str accumulate, float? scale) -> (Tensor, Tensor)"
)


def attention(
    tensors: PrefillTensors, options: Options, scale: float | None, out: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns (out, lse) of a call whose arguments were not checked, with `out` in `out` if given.

    Descales may have any shape that broadcasts to (batch, heads_kv). Raises TunefaError for
    arguments that do not fit.
    """
    tensors = _with_whole_descales(tensors)
    check_no_gradients("flash_attention_varlen with block_table has", tensors)
    if _is_any_autocast_enabled():
        tensors = tensors._replace(q=autocast.cast(Tensors(*tensors[:3])).q)
    if not is_compiling() and is_plain(tensors):
        return process.current().prefill(tensors, options, scale, out)
    if not is_compiling():
        if _are_functorch_transforms_active():
            raise TunefaError(
                "flash_attention_varlen with block_table has no rule for torch.func's transforms, "
                "as vmap"
            )
        PrefillCall.of(tensors, options, scale)  # raises for wrong arguments before PyTorch does
    found, lse = torch.ops.tunefa.prefill_attention.default(*tensors, *options, scale)
    if out is not None:
        check_like_result(out, found)
        # Rows behind the last sequence keep what they are.
        behind = rows_behind(out.shape[0], tensors.cu_seqlens_q)
        found = out.copy_(torch.where(behind[:, None, None], out, found))
    return found, lse


def _with_whole_descales(tensors: PrefillTensors) -> PrefillTensors:
    """Returns the tensors with descales as (batch, heads_kv), where they broadcast to it."""
    k, lengths, factors = tensors.k, tensors.seqlens_k, tensors[-2:]
    known = isinstance(k, Tensor) and isinstance(lengths, Tensor)
    if factors == (None, None) or not known or k.dim() != 4 or lengths.dim() != 1:
        return tensors
    k_descale, v_descale = broadcast(factors, (lengths.shape[0], k.shape[2]))
    return tensors._replace(k_descale=k_descale, v_descale=v_descale)


def _run(*arguments: object) -> tuple[Tensor, Tensor]:
    tensors, options, scale = _split(arguments)
    return process.current().prefill(tensors, options, scale, None)


def _fake(*arguments: object) -> tuple[Tensor, Tensor]:
    tensors, options, _ = _split(arguments)
    call = PrefillCall.of(tensors, options, 1.0)
    return call.new_out(), call.new_lse()


def _split(arguments: tuple[object, ...]) -> tuple[PrefillTensors, Options, float | None]:
    *given, scale = arguments
    tensors, options = given[:_COUNT], given[_COUNT:]
    return PrefillTensors(*tensors), Options(*options), scale  # type: ignore[arg-type, return-value]


torch.library.custom_op(
    "tunefa::prefill_attention", _run, mutates_args=(), schema=_SCHEMA
).register_fake(_fake)
