"""Attention for torchtitan: `--override.imports tunefa.integrations.torchtitan.attention`.

It replaces torchtitan's VarlenAttention, which models have with `attn_backend="varlen"`. Source of
the interface: torchtitan/config/override.py and torchtitan/models/common/attention.py of 0.3.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import spmd_types as spmd
import torch
from spmd_types.runtime import get_partition_spec
from torch import Tensor
from torchtitan.config import derive, override
from torchtitan.models.common.attention import VarlenAttention, VarlenMetadata

from tunefa.errors import TunefaError
from tunefa.integrations.compat.arguments import window
from tunefa.runtime.api_varlen import flash_attention_varlen


class TunefaAttention(VarlenAttention):  # type: ignore[misc]
    """torchtitan's attention of packed documents, computed by tunefa.

    Its config is one of VarlenAttention, so that models make the same lengths for it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):  # type: ignore[misc]
        """`window_size`, (left, right): as in VarlenAttention, -1 means no limit."""

    def __init__(self, config: Config) -> None:
        # Not that of VarlenAttention, which loads FlashAttention-3 or 4 on newer chips.
        super(VarlenAttention, self).__init__()
        self.window_size = config.window_size

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        attention_masks: Any,
        scale: float | None = None,
        out_transform: Callable[[Tensor, Tensor], Tensor] | None = None,
        **_: Any,
    ) -> Tensor:
        """Returns the attention of q, (batch, seqlen, heads, head_dim), over k and v, (batch,
        seqlen, heads_kv, head_dim | head_dim_v): (batch, seqlen, heads, head_dim_v) in q's dtype.

        It is computed in bf16, as VarlenAttention does. `out_transform` makes the result from it
        and from lse, (batch, seqlen, heads). Raises TunefaError for masks other than lengths.
        """
        if not isinstance(attention_masks, VarlenMetadata):
            raise TunefaError(
                f"attention_masks is a {type(attention_masks).__name__}, and tunefa takes the "
                f"lengths of documents: choose attn_backend='varlen' for the model"
            )
        starts = attention_masks.cu_seq_q, attention_masks.cu_seq_k
        longest = attention_masks.max_q, attention_masks.max_k
        causal = self.window_size[1] == 0
        packed = [x.flatten(0, 1).to(torch.bfloat16) for x in (q, k, v)]
        with spmd.no_typecheck():
            out, lse = flash_attention_varlen(
                *(*packed, *starts, *longest),
                causal=causal,
                window=window(self.window_size, causal),
                scale=scale,
                return_lse=True,
            )
            whole: Tensor = out.view(*q.shape[:3], v.shape[3]).to(q.dtype)
            lse = lse.transpose(0, 1).reshape(q.shape[:3])
        _give_type(whole, q)
        if out_transform is None:
            return whole
        _give_type(lse, q)
        return out_transform(whole, lse)


def _give_type(result: Tensor, q: Tensor) -> None:
    """Tells torchtitan's type checker of shards, where it is on, that a result, (batch, seqlen,
    heads, ...), is sharded as q is."""
    if spmd.is_type_checking():
        spec = get_partition_spec(q)
        if spec is not None:
            spec = spmd.PartitionSpec(*spec[: result.dim()])
        spmd.assert_type(result, spmd.get_local_type(q), spec)


@override(  # type: ignore[untyped-decorator]
    target=VarlenAttention.Config, exact=True, description="Attention by tunefa"
)
def attention(config: VarlenAttention.Config) -> TunefaAttention.Config:
    """Returns the config of tunefa's attention, with all that is set in that of torchtitan's."""
    return derive(config, TunefaAttention.Config)  # type: ignore[no-any-return]
