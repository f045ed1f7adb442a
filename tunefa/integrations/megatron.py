"""Attention for Megatron-core: `CoreAttention`, for `core_attention=` of a layer's submodules.

    from tunefa.integrations.megatron import with_tunefa
    spec = with_tunefa(get_gpt_layer_local_spec())

Source of the interface: megatron/core/transformer/attention.py and dot_product_attention.py of
Megatron-core 0.16.1. Where that and Transformer Engine differ, masks are as in the latter.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.integrations.compat.arguments import window
from tunefa.runtime.api import flash_attention
from tunefa.runtime.api_varlen import flash_attention_varlen


def with_tunefa(spec: ModuleSpec) -> ModuleSpec:
    """Returns a copy of a layer's spec whose self-attention is computed by tunefa.

    Raises TunefaError where the spec is none of a layer with a core_attention.
    """
    made = copy.deepcopy(spec)
    attention = getattr(getattr(made, "submodules", None), "self_attention", None)
    submodules: Any = getattr(attention, "submodules", None)
    if not hasattr(submodules, "core_attention"):
        raise TunefaError(
            f"{type(spec).__name__} has no submodules.self_attention.submodules.core_attention: "
            f"give the spec of a layer, such as get_gpt_layer_local_spec()"
        )
    submodules.core_attention = CoreAttention
    return made


class CoreAttention(DotProductAttention):  # type: ignore[misc]
    """Megatron-core's attention, computed by tunefa, with the same parameters and checkpoints.

    The constructor raises TunefaError for settings of the config that tunefa has not.
    """

    def __init__(self, config: TransformerConfig, layer_number: int, **named: Any) -> None:
        _check(config, named.get("attention_dropout"))
        for name in ("k_channels", "v_channels"):  # of latent attention; tensors have them too
            named.pop(name, None)
        super().__init__(config, layer_number, **named)
        self.scale = self.softmax_scale
        if config.apply_query_key_layer_scaling:
            self.scale *= self.layer_number  # Megatron divides by it, and multiplies in fp32
        skipped = config.window_attn_skip_freq
        is_windowed = is_layer_window_attention(config.window_size, skipped, layer_number)
        self.window_size = config.window_size if is_windowed else (-1, -1)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Returns the attention of query, (seqlen, batch, heads, head_dim), over key and value,
        (seqlen_k, batch, heads_kv, head_dim | head_dim_v): (seqlen, batch, heads · head_dim_v).

        Packed sequences are (rows, heads, head_dim) and give (rows, heads · head_dim_v). Masks that
        attn_mask_type does not say are not used, with a warning. Raises TunefaError for a bias, and
        for masks of padding in sequences that are not packed.
        """
        kind = self.attn_mask_type if attn_mask_type is None else attn_mask_type
        is_packed = packed_seq_params is not None and packed_seq_params.qkv_format == "thd"
        causal = _is_causal(kind, is_packed)
        if attention_bias is not None:
            raise TunefaError("attention_bias is given, and tunefa has none: leave it out")
        if attention_mask is not None:
            warnings.warn(
                f"attention_mask is not used: tunefa's mask is {kind.name}, as attn_mask_type says",
                stacklevel=2,
            )
        named: dict[str, Any] = {"causal": causal, "window": window(self.window_size, causal)}
        named.update(scale=self.scale, deterministic=self.config.deterministic_mode)
        if self.softmax_offset is not None:
            named["sinks"] = self.softmax_offset.float()
        if is_packed:
            return _packed((query, key, value), packed_seq_params, named)
        out = flash_attention(*(x.transpose(0, 1) for x in (query, key, value)), **named)
        return out.transpose(0, 1).flatten(2)  # type: ignore[no-any-return]


def _check(config: TransformerConfig, dropout: float | None) -> None:
    """Raises TunefaError for settings that tunefa has not."""
    dropout = config.attention_dropout if dropout is None else dropout
    refused = {
        "attention_dropout": (dropout, "set attention_dropout=0.0"),
        "context_parallel_size": (config.context_parallel_size - 1, "set 1"),
        "qk_clip": (config.qk_clip, "it needs the largest scores: leave it out"),
        "log_max_attention_logit": (config.log_max_attention_logit, "leave it out"),
    }
    for name, (value, advice) in refused.items():
        if value:
            raise TunefaError(
                f"{name} is set in the TransformerConfig, and tunefa has none: {advice}, or keep "
                f"Megatron's own core_attention"
            )


def _is_causal(kind: AttnMaskType, is_packed: bool) -> bool:
    """Returns whether a mask is causal. Raises TunefaError for masks that tunefa has not."""
    if kind in (AttnMaskType.causal, AttnMaskType.causal_bottom_right):
        return True
    if kind == AttnMaskType.no_mask:
        return False
    if is_packed and kind != AttnMaskType.arbitrary:  # packed sequences have no padding to mask
        return bool(kind == AttnMaskType.padding_causal)
    raise TunefaError(
        f"attn_mask_type is {kind.name}, which tunefa has not: pack the sequences "
        f"(packed_seq_params), or keep Megatron's own core_attention"
    )


def _packed(
    inputs: tuple[Tensor, Tensor, Tensor], given: PackedSeqParams, named: dict[str, Any]
) -> Tensor:
    """Returns the attention of packed sequences, (rows, heads · head_dim_v).

    Padding behind a sequence is one with it: under a causal mask no token sees it.
    """
    starts = []
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        padded = getattr(given, f"{name}_padded")
        if padded is not None and not named["causal"]:
            raise TunefaError(
                f"{name}_padded is given, and attention is not causal: tunefa would attend to the "
                f"padding between sequences, so pack them without it"
            )
        starts.append(getattr(given, name) if padded is None else padded)
    longest = given.max_seqlen_q or len(inputs[0]), given.max_seqlen_kv or len(inputs[1])
    out = flash_attention_varlen(*inputs, *starts, *(int(most) for most in longest), **named)
    return out.flatten(1)  # type: ignore[no-any-return]
