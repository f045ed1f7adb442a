"""SGLang's attention backend `tunefa`: the class that SGLang 0.5.23 asks of a backend.

SGLang makes one `TunefaBackend` for a model. In each step it calls `init_forward_metadata`, or for
a CUDA graph of requests that decode `init_forward_metadata_out_graph`, and then `forward_extend` or
`forward_decode` for each layer. The attention itself is `tunefa.integrations.sglang_attention`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.integrations import sglang_attention as paged
from tunefa.measure.attention_inputs import E4M3

CUDA: Any = torch.cuda  # parts of it have no types


class TunefaBackend(AttentionBackend):
    """The attention of all layers of a model. What it does not serve raises TunefaError when it is
    made, and what only a layer says, in its first call."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        check_model(model_runner)
        # SGLang reads these two.
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self._page_size = model_runner.page_size or 1
        place = self.req_to_token_pool.req_to_token.device
        self._ones = torch.ones((), dtype=torch.float32, device=place)
        self.forward_metadata: paged.Pages | None = None
        self._in_graphs: paged.Pages | None = None

    @property
    def _pool(self) -> paged.Pool:
        """Returns where keys are. SGLang may make the map to the second pool after the backend."""
        to_sliding = getattr(self.token_to_kv_pool, "full_to_swa_index_mapping", None)
        return paged.Pool(self.req_to_token_pool.req_to_token, self._page_size, to_sliding)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Reads the batch of a step that runs outside of a graph of its whole."""
        mode = forward_batch.forward_mode
        check_mode(mode)
        if mode.is_idle() or not len(forward_batch.seq_lens):
            self.forward_metadata = None
        elif mode.is_decode():
            self.forward_metadata = paged.decodes(self._pool, forward_batch)
        else:
            self.forward_metadata = paged.prompts(self._pool, forward_batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Makes the tensors that all CUDA graphs of requests that decode read."""
        pool = self._pool
        made = pool.new_pages(max_bs, pool.most_pages, max_num_tokens)
        for each in (made.seqlens, made.table, made.sliding_table, made.sliding_slots):
            if each is not None:
                each.zero_()
        self._in_graphs = made

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Writes the batch of a graph to the tensors that it reads, before it is captured or
        replayed. Raises TunefaError for graphs of prompts."""
        mode = forward_batch.forward_mode
        check_mode(mode)
        if not mode.is_decode_or_idle():
            raise not_served("full CUDA graphs of prompts", "set no full prefill graph")
        whole = self._in_graphs
        if whole is None:
            raise TunefaError("init_cuda_graph_state was not called before a graph's batch came")
        count = len(forward_batch.seq_lens)
        table = whole.sliding_table
        pages = replace(
            whole,
            seqlens=whole.seqlens[:count],
            table=whole.table[:count],
            sliding_table=None if table is None else table[:count],
        )
        self._pool.fill(pages, forward_batch)
        self.forward_metadata = pages

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Returns the length of rows of a graph without a request, which read page 0: it is
        nobody's."""
        return 1

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: Tensor | None = None,
        **more: Any,
    ) -> Tensor:
        """Returns the attention of a layer for the new tokens of a batch, (tokens, heads *
        head_dim).

        q is (tokens, heads * head_dim) or (tokens, heads, head_dim), k and v are (tokens, heads_kv,
        head_dim) or None, where the cache has them already. sinks is (heads,).
        Raises TunefaError for what a layer asks that is not served.
        """
        check_layer(layer, more)
        pages = self.forward_metadata
        if pages is None:
            raise TunefaError("init_forward_metadata was not called before a layer")
        if save_kv_cache and k is not None:
            self._write(k, v, layer, forward_batch, pages)
        buffers = self.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        cache = [paged.in_pages(each, self._page_size) for each in buffers]
        rows = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = rows.new_empty(rows.shape)  # contiguous, also where q is a part of a projection
        ones = self._ones
        options = mask_of(layer, pages.cu_seqlens_q is None) | {
            "softcap": layer.logit_cap or None,
            "scale": float(layer.scaling),
            "sinks": None if sinks is None else sinks.detach().float().contiguous(),
            "k_descale": ones if layer.k_scale is None else layer.k_scale,
            "v_descale": ones if layer.v_scale is None else layer.v_scale,
            "out": out,
        }
        with torch.no_grad():
            paged.attend(rows, (cache[0], cache[1]), pages, self._is_sliding(layer), options)
        return out.flatten(1)

    forward_decode = forward_extend

    def _write(self, k: Tensor, v: Any, layer: Any, batch: Any, pages: paged.Pages) -> None:
        """Writes new keys and values into the pool, by SGLang's own kernel."""
        from sglang.srt.mem_cache.memory_pool import KVWriteLoc

        slots = pages.sliding_slots
        if slots is not None:
            slots = slots[: len(batch.out_cache_loc)]
        place = KVWriteLoc.for_layer(batch, layer, swa_loc=slots)
        self.token_to_kv_pool.set_kv_buffer(layer, place, k, v, layer.k_scale, layer.v_scale)

    def _is_sliding(self, layer: Any) -> bool:
        """Whether a layer's keys are in the second pool."""
        mapping = getattr(self.token_to_kv_pool, "layers_mapping", None)
        return mapping is not None and bool(mapping[layer.layer_id][1])


def mask_of(layer: Any, decodes: bool) -> dict[str, Any]:
    """Returns the options `causal` and `window` of a layer.

    SGLang's sliding_window_size counts the keys before a query's own; -1 stands for none. Layers
    of encoders, and those of bidirectional decoders in prompts, see to both sides.
    """
    kind, left = layer.attn_type.value, layer.sliding_window_size
    causal = kind == "decoder" or (decodes and kind != "encoder_only")
    if left is None or left < 0:
        return {"causal": causal, "window": None}
    return {"causal": causal, "window": left + 1 if causal else (left, left)}


def check_model(runner: Any) -> None:
    """Raises TunefaError, with the name of the first thing about a model that is not served."""
    from sglang.srt.runtime_context import get_parallel

    config, parallel, translator = runner.model_config, get_parallel(), runner.kv_index_translator
    stored = runner.kv_cache_dtype
    asked = {
        "latent attention (MLA)": runner.use_mla_backend,
        "models with an encoder": config.is_encoder_decoder,
        "chunked attention": config.attention_chunk_size,
        "windows that keep the prompt": getattr(runner, "prefill_aware_swa", False),
        "speculative decoding": not runner.spec_algorithm.is_none(),
        "context parallelism": max(parallel.attn_cp_size, parallel.attn_dcp_size) > 1,
        "--enable-unified-memory": translator is not None and translator.is_translating,
        f"a cache in {runner.kv_cache_dtype_str}": runner.kv_cache_dtype_str == "mxfp8"
        or stored not in (runner.dtype, E4M3),
        f"head dimensions of {config.head_dim} and {config.v_head_dim}": not _is_served(
            config.head_dim, config.v_head_dim
        ),
    }
    if str(runner.device).startswith("cuda"):
        capability = tuple(CUDA.get_device_capability(runner.device))
        needed = (8, 9) if stored == E4M3 else (8, 0)
        text = f"a cache in {stored} on compute capability {'.'.join(map(str, capability))}"
        asked[text] = capability < needed
        asked[f"models in {runner.dtype}"] = runner.dtype not in (torch.float16, torch.bfloat16)
    for what, is_asked in asked.items():
        if is_asked:
            raise not_served(what)


def check_layer(layer: Any, more: dict[str, Any]) -> None:
    """Raises TunefaError for what a layer, or its call, asks that is not served. `more` are
    arguments of other backends, which are off when None or False."""
    asked = {name: value is not None and value is not False for name, value in more.items()}
    asked |= {
        "cross attention": layer.is_cross_attention,
        "chunked attention": layer.use_irope,
        f"soft-caps by {layer.logit_capping_method}": layer.logit_cap
        and layer.logit_capping_method != "tanh",
        "a temperature by length": layer.xai_temperature_len > 0,
        f"positions by {layer.pos_encoding_mode}": layer.pos_encoding_mode != "NONE",
        f"head dimensions of {layer.qk_head_dim} and {layer.v_head_dim}": not _is_served(
            layer.qk_head_dim, layer.v_head_dim
        ),
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise not_served(what)


def check_mode(mode: Any) -> None:
    """Raises TunefaError for steps of speculative decoding and of diffusion models."""
    if mode.name not in ("EXTEND", "DECODE", "MIXED", "IDLE", "SPLIT_PREFILL"):
        raise not_served(f"steps of the kind {mode.name}")


def _is_served(head_dim: int, head_dim_v: int) -> bool:
    return head_dim == head_dim_v and 16 <= head_dim <= 256 and head_dim % 8 == 0


def not_served(what: str, instead: str = "choose another --attention-backend") -> TunefaError:
    """Returns the error for something that the backend does not serve."""
    return TunefaError(f"tunefa's backend for SGLang does not serve {what}: {instead}")
