"""vLLM's attention backend TUNEFA: the three classes that vLLM 0.32 and 0.33 ask of a backend.

vLLM asks `TunefaBackend` whether it serves a model, makes a `TunefaBuilder` for layers that share
pages and a `TunefaImpl` for each layer. It calls `build` once in a step, and for each layer
`do_kv_cache_update` and `forward`. The attention itself is `tunefa.integrations.vllm_attention`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from tunefa.errors import TunefaError
from tunefa.integrations import vllm_attention as paged
from tunefa.integrations.vllm import NAME

E4M3_CACHES = ("fp8", "fp8_e4m3")
"""vLLM's names of caches in e4m3."""


class TunefaImpl(AttentionImpl):
    """The attention of one layer. What it does not serve raises TunefaError when it is made."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
        **more: Any,
    ) -> None:
        # Arguments of other backends, such as Triton's use_alibi_sqrt, are off when false or -1.
        asked = [name for name, value in more.items() if not _is_off(value)]
        asked += ["alibi_slopes"] if alibi_slopes is not None else []
        if asked:
            raise _not_served(f"{' and '.join(asked)} of a layer")
        if attn_type != AttentionType.DECODER:
            raise _not_served(f"attention of the type {attn_type}")
        if kv_cache_dtype not in TunefaBackend.supported_kv_cache_dtypes:
            raise _not_served(f"a cache in {kv_cache_dtype}")
        # vLLM reads these.
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self._mask = paged.Mask(sliding_window, logits_soft_cap or None, self.scale, None)
        self._take_sinks()

    def _take_sinks(self) -> None:
        """Makes the sinks what kernels read: in fp32, without gradients."""
        if self.sinks is not None:
            self._mask = self._mask._replace(sinks=self.sinks.detach().float().contiguous())

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Reads the sinks again: they are weights, which vLLM loads after it makes layers."""
        self._take_sinks()

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Writes new keys and values, (rows, heads_kv, head_dim), into the cache of a layer."""
        if not kv_cache.is_cuda:
            factors = layer._k_scale, layer._v_scale
            paged.write(key, value, kv_cache, slot_mapping, factors)
            return
        from vllm._custom_ops import reshape_and_cache_flash

        rows = kv_cache.transpose(1, 2)
        k, v = rows[..., : self.head_size], rows[..., self.head_size :]
        dtype, factors = self.kv_cache_dtype, (layer._k_scale, layer._v_scale)
        reshape_and_cache_flash(key, value, k, v, slot_mapping, dtype, *factors)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: paged.Batch | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Writes the attention of a batch to `output` and returns it.

        query and output are (rows, heads, head_dim), kv_cache (pages, heads_kv, page_size,
        2 * head_dim). The keys and values of the batch are in the cache already. Without
        attn_metadata, when vLLM measures how much memory it needs, the output is 0. Raises
        TunefaError where the output is to be quantized.
        """
        if output_scale is not None or output_block_scale is not None:
            raise _not_served("quantized output")
        if attn_metadata is None:
            return output.fill_(0)
        paged.attend(query, kv_cache, attn_metadata, self._mask, output, layer)
        return output


class TunefaBuilder(AttentionMetadataBuilder):
    """Makes a `Batch` in each step, without waiting for the device."""

    # The plan of decode_attention depends on no length. Batches with prompts do not fit: their grid
    # depends on the longest prompt.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # Requests that verify speculated tokens decode too, with as many queries.
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> paged.Batch:
        """Returns the batch of a step. Raises TunefaError where it is not causal."""
        return paged.batch_of(common_attn_metadata, self.reorder_batch_threshold or 1)


class TunefaBackend(AttentionBackend):
    """The layers TUNEFA serves. vLLM asks before it makes layers, and says what does not fit."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16", *E4M3_CACHES]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[TunefaImpl]:
        return TunefaImpl

    @staticmethod
    def get_builder_cls() -> type[TunefaBuilder]:
        return TunefaBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return 16 <= head_size <= 256 and head_size % 8 == 0

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # `batch_of` counts queries on the host

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(tuple(capability) >= (8, 0))

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: Any,
    ) -> str | None:
        """The reason that the parts do not go together; None where they do."""
        if kv_cache_dtype in E4M3_CACHES and tuple(device_capability) < (8, 9):
            return f"a cache in {kv_cache_dtype} needs compute capability 8.9 or newer"
        return None


def _is_off(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, int) and value == -1)


def _not_served(what: str) -> TunefaError:
    return TunefaError(
        f"tunefa's backend for vLLM does not serve {what}: choose another --attention-backend"
    )
