"""The attention operators of PyTorch and of flash-attn, as a trace sees them."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tunefa.integrations.overrides import Below, Layer, Layers, has_kernel
from tunefa.integrations.traced_runtime import of_attention
from tunefa.integrations.tracer import Tracer
from tunefa.runtime.call import PACKED, Options, Tensors
from tunefa.spec.workload import Workload


class Operator(NamedTuple):
    """An operator that computes attention."""

    name: str
    layout: str
    """The layout of its dense tensors."""
    is_backward: bool = False
    is_top_left: bool = False
    """Whether its causal mask is aligned to the top left."""


OPERATORS = (
    Operator("aten::_flash_attention_forward", "bshd"),
    Operator("aten::_flash_attention_backward", "bshd", True),
    Operator("aten::_scaled_dot_product_cudnn_attention", "bhsd", False, True),
    Operator("aten::_scaled_dot_product_cudnn_attention_backward", "bhsd", True, True),
    Operator("aten::_scaled_dot_product_efficient_attention", "bhsd", False, True),
    Operator("aten::_scaled_dot_product_efficient_attention_backward", "bhsd", True, True),
    Operator("aten::_scaled_dot_product_flash_attention_for_cpu", "bhsd", False, True),
    Operator("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "bhsd", True, True),
    Operator("flash_attn::_flash_attn_forward", "bshd"),
    Operator("flash_attn::_flash_attn_backward", "bshd", True),
    Operator("flash_attn::_flash_attn_varlen_forward", PACKED),
    Operator("flash_attn::_flash_attn_varlen_backward", PACKED, True),
)
"""scaled_dot_product_attention and torch.nn.attention.varlen call those of aten. The others are
flash-attn's, from 2.7 on."""
KEYS = ("CUDA", "CPU")
"""The dispatch keys of the kernels that are seen."""
_NAMES: Mapping[str, tuple[str, ...]] = {
    "q": ("query", "q"),
    "k": ("key", "k"),
    "v": ("value", "v"),
    "starts_q": ("cum_seq_q", "cu_seqlens_q"),
    "starts_k": ("cum_seq_k", "cu_seqlens_k"),
    "max_q": ("max_q", "max_seqlen_q"),
    "max_k": ("max_k", "max_seqlen_k"),
    "causal": ("is_causal", "causal"),
    "dropout": ("dropout_p",),
    "left": ("window_size_left",),
    "right": ("window_size_right",),
    "softcap": ("softcap",),
}
"""The names that the operators give to their arguments."""
_FORMS = {
    "dropout": ("dropout_p",),
    "a mask": ("attn_mask", "attn_bias"),
    "ALiBi": ("alibi_slopes",),
    "a cache with pages": ("block_table",),
    "a part of the keys": ("seqused_k", "leftpad_k"),
}
"""Arguments for what is no workload of tunefa, by what they are."""


@contextlib.contextmanager
def observed(tracer: Tracer) -> Iterator[None]:
    """Shows a tracer all calls of the operators inside of the `with`."""
    if importlib.util.find_spec("flash_attn") is not None:
        with contextlib.suppress(ImportError):  # installed for another PyTorch, say
            importlib.import_module("flash_attn.flash_attn_interface")  # defines its operators
    layers = {each.name: _layer(each, tracer) for each in OPERATORS if _is_there(each)}
    added: list[Layers] = []
    try:
        for key in KEYS:
            added.append(Layers(layers, key))
        yield
    finally:
        for each in added:
            each.remove()


def _is_there(operator: Operator) -> bool:
    return any(has_kernel(operator.name, key) for key in KEYS)


def _layer(operator: Operator, tracer: Tracer) -> Layer:
    space, _, name = operator.name.partition("::")
    schema = getattr(getattr(torch.ops, space), name).default._schema
    names = [argument.name for argument in schema.arguments]

    def call(below: Below, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **named}
        return tracer.call(lambda: workload(operator, given), _first(given, "q").device, below)

    return call


def workload(operator: Operator, given: Mapping[str, Any]) -> Workload | str:
    """Returns the workload of a call with these arguments, or what it is instead."""
    for what, names in _FORMS.items():
        if any(_is_tensor(given, name) or given.get(name) not in (None, 0.0) for name in names):
            return f"attention with {what}"
    q, k, v = (_first(given, name) for name in ("q", "k", "v"))
    causal, layout = bool(_first(given, "causal")), operator.layout
    starts = _first(given, "starts_q"), _first(given, "starts_k")
    longest = (0, 0)
    if _is_tensor(given, "cum_seq_q") or _is_tensor(given, "cu_seqlens_q"):
        layout, longest = PACKED, (_first(given, "max_q"), _first(given, "max_k"))
    elif operator.is_top_left and causal:
        rows = 2 if layout == "bhsd" else 1
        if q.shape[rows] != k.shape[rows]:
            return "attention with a causal mask that is aligned to the top left"
    left, right = (_side(_first(given, name)) for name in ("left", "right"))
    if causal or right == 0:
        causal, right = True, None
    softcap = _first(given, "softcap") or None
    options = Options(causal, left, right, layout, softcap, *longest)
    tensors = Tensors(q, k, v, starts if layout == PACKED else None)
    return of_attention(tensors, options, "bwd" if operator.is_backward else "fwd")


def _first(given: Mapping[str, Any], what: str) -> Any:
    """The argument that is known by one of several names; None if there is none."""
    return next((given[name] for name in _NAMES[what] if name in given), None)


def _is_tensor(given: Mapping[str, Any], name: str) -> bool:
    return isinstance(given.get(name), Tensor)


def _side(side: int | None) -> int | None:
    return None if side is None or side < 0 else side
