"""The error for a parameter that a function does not have; it says what the parameter is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from tunefa.errors import TunefaError

CALLED: Mapping[str, str] = {
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "attn_scale": "scale",
    "scaling": "scale",
    "is_causal": "causal",
    "window_size": "window",
    "sliding_window": "window",
    "logit_cap": "softcap",
    "logits_softcap": "softcap",
    "logits_soft_cap": "softcap",
    "logit_softcapping": "softcap",
    "soft_cap": "softcap",
    "tensor_layout": "layout",
    "input_layout": "layout",
    "qkv_format": "layout",
    "return_softmax_lse": "return_lse",
    "return_attn_probs": "return_lse",
    "descale_q": "q_descale",
    "descale_k": "k_descale",
    "descale_v": "v_descale",
    "page_table": "block_table",
    "block_tables": "block_table",
    "seqused_k": "seqlens_k",
}
"""The names of flash-attn, PyTorch, FlashInfer, SageAttention, xFormers and Transformers, with
those that mean the same here."""

_MASKS = "use causal and window, or flash_attention_varlen for sequences of different lengths"
_NO_DROPOUT = "there is no dropout, so leave it out"
LACKING: Mapping[str, str] = {
    **dict.fromkeys(("attn_mask", "attention_mask", "mask", "key_padding_mask"), _MASKS),
    **dict.fromkeys(("attn_bias", "bias", "alibi_slopes"), "scores take no bias"),
    **dict.fromkeys(("dropout_p", "dropout"), _NO_DROPOUT),
    "enable_gqa": "leave it out, because k and v may always have fewer heads than q",
    "block_table": "flash_attention_varlen and decode_attention read keys and values in pages",
}
"""Parameters of other libraries that have no counterpart, with what to do instead."""


class UnknownParameterError(TunefaError, TypeError):
    """A parameter that the function does not have. It is a TypeError too, as in Python."""


def unknown_parameter(function: Callable[..., Any], given: Iterable[str]) -> UnknownParameterError:
    """Returns the error for the first of the `given` names, none of which `function` has."""
    name, function_name = next(iter(given)), getattr(function, "__name__", str(function))
    known = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    says = f"{function_name} has no parameter {name!r}"
    ours = CALLED.get(name)
    if ours in known:
        more = ", and None stands for no limit" if ours == "window" else ""
        return UnknownParameterError(f"{says}; it is called {ours!r}{more}")
    if name in LACKING:
        return UnknownParameterError(f"{says}: {LACKING[name]}")
    nearest = get_close_matches(name.lower(), known, n=1)
    hint = f": did you mean {nearest[0]!r}?" if nearest else ""
    return UnknownParameterError(f"{says}{hint} (its parameters: {', '.join(known)})")
