"""Stand-ins for what tests and tunefa's plugin import of SGLang 0.5.23, with the names they use.

They have what SGLang's have and the plugin or a test calls, and no attention. Where SGLang is
installed, the same tests run with SGLang's own classes: `loaded` chooses.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.vllm_stand_ins import packages

SRT = "sglang.srt"
REGISTRY = f"{SRT}.layers.attention.attention_registry"
PLACES = {
    "AttentionBackend": f"{SRT}.layers.attention.base_attn_backend",
    "AttentionType": f"{SRT}.layers.radix_attention",
    "RadixAttention": f"{SRT}.layers.radix_attention",
    "ForwardMode": f"{SRT}.model_executor.forward_batch_info",
    "ForwardBatch": f"{SRT}.model_executor.forward_batch_info",
    "KVWriteLoc": f"{SRT}.mem_cache.memory_pool",
    "MHATokenToKVPool": f"{SRT}.mem_cache.memory_pool",
    "ReqToTokenPool": f"{SRT}.mem_cache.memory_pool",
    "SWAKVPool": f"{SRT}.mem_cache.swa_memory_pool",
    "get_parallel": f"{SRT}.runtime_context",
    "register_attention_backend": REGISTRY,
    "ATTENTION_BACKENDS": REGISTRY,
    "add_attention_backend_choices": f"{SRT}.server_args",
    "ATTENTION_BACKEND_CHOICES": f"{SRT}.server_args",
}
"""The modules of SGLang that have the names which are used."""


class AttentionType(Enum):
    DECODER = "decoder"
    DECODER_BIDIRECTIONAL = "decoder_bidirectional"
    ENCODER_ONLY = "encoder_only"


class ForwardMode(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()

    def is_decode(self) -> bool:
        return self == ForwardMode.DECODE

    def is_idle(self) -> bool:
        return self == ForwardMode.IDLE

    def is_decode_or_idle(self) -> bool:
        return self.is_decode() or self.is_idle()


class AttentionBackend:
    def forward(
        self, q: Tensor, k: Any, v: Any, layer: Any, forward_batch: Any, save: bool = True, **w: Any
    ) -> Any:
        """Calls what the mode of the batch asks for."""
        made: Any = self
        if forward_batch.forward_mode.is_idle():
            return q.new_empty(len(q), layer.tp_q_head_num * layer.v_head_dim)
        if forward_batch.forward_mode.is_decode():
            return made.forward_decode(q, k, v, layer, forward_batch, save_kv_cache=save, **w)
        return made.forward_extend(q, k, v, layer, forward_batch, save_kv_cache=save, **w)


class RadixAttention:
    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        scaling: float,
        num_kv_heads: int,
        layer_id: int,
        logit_cap: float = 0.0,
        v_head_dim: int = -1,
        sliding_window_size: int = -1,
        is_cross_attention: bool = False,
        pos_encoding_mode: str = "NONE",
        logit_capping_method: str = "tanh",
        attn_type: AttentionType = AttentionType.DECODER,
        use_irope: bool = False,
    ) -> None:
        self.tp_q_head_num, self.tp_k_head_num, self.tp_v_head_num = num_heads, *[num_kv_heads] * 2
        self.qk_head_dim, self.v_head_dim = head_dim, head_dim if v_head_dim < 0 else v_head_dim
        self.scaling, self.layer_id, self.logit_cap = scaling, layer_id, logit_cap
        self.sliding_window_size, self.use_irope = sliding_window_size, use_irope
        self.is_cross_attention, self.attn_type = is_cross_attention, attn_type
        self.pos_encoding_mode, self.xai_temperature_len = pos_encoding_mode, -1
        self.logit_capping_method = logit_capping_method
        self.k_scale = self.v_scale = None


class ForwardBatch(SimpleNamespace):
    """A batch; what a test does not give is None."""

    def __getattr__(self, name: str) -> None:
        return None


@dataclass
class KVWriteLoc:
    loc: Tensor
    swa_loc: Tensor | None = None

    @classmethod
    def for_layer(cls, batch: Any, layer: Any, *, swa_loc: Tensor | None = None) -> KVWriteLoc:
        return cls(batch.out_cache_loc, swa_loc)


class ReqToTokenPool:
    def __init__(self, size: int, max_context_len: int, device: str, saver: bool) -> None:
        shape = size + 1, max_context_len
        self.req_to_token = torch.zeros(shape, dtype=torch.int32, device=device)


class MHATokenToKVPool:
    """Keys and values of layers, (slots, heads_kv, head_dim); those of the first page are nobody's.
    In e4m3 they are kept as bytes."""

    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        head_num: int,
        head_dim: int,
        layer_num: int,
        device: str,
        enable_memory_saver: bool,
    ) -> None:
        shape = 2, layer_num, size + page_size, head_num, head_dim
        self.dtype = dtype
        kept = torch.uint8 if dtype == torch.float8_e4m3fn else dtype
        self.k_buffer, self.v_buffer = torch.zeros(shape, dtype=kept, device=device)

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        return self.k_buffer[layer_id].view(self.dtype), self.v_buffer[layer_id].view(self.dtype)

    def set_kv_buffer(self, layer: Any, place: Any, k: Tensor, v: Tensor, *scales: Any) -> None:
        self.store(layer.layer_id, place.loc, (k, v), scales)

    def store(self, layer_id: int, slots: Tensor, new: Any, scales: Any) -> None:
        for buffer, rows, scale in zip(self.get_kv_buffer(layer_id), new, scales, strict=True):
            if rows.dtype != self.dtype and scale is not None:
                rows.div_(scale)  # SGLang's changes the rows too
            buffer.view(torch.uint8)[slots] = rows.to(self.dtype).view(torch.uint8)


class SWAKVPool:
    """Two pools, the second for layers with a window."""

    def __init__(
        self,
        size: int,
        size_swa: int,
        page_size: int,
        dtype: torch.dtype,
        head_num: int,
        head_dim: int,
        swa_attention_layer_ids: list[int],
        full_attention_layer_ids: list[int],
        device: str,
    ) -> None:
        sizes = page_size, dtype, head_num, head_dim
        of_layers = full_attention_layer_ids, swa_attention_layer_ids
        self.pools = [
            MHATokenToKVPool(tokens, *sizes, len(layers), device, False)
            for tokens, layers in zip((size, size_swa), of_layers, strict=True)
        ]
        self.layers_mapping = {
            layer: (place, bool(sliding))
            for sliding, layers in enumerate(of_layers)
            for place, layer in enumerate(layers)
        }
        self.full_to_swa_index_mapping: Tensor | None = None

    def register_mapping(self, mapping: Tensor) -> None:
        self.full_to_swa_index_mapping = mapping

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        place, sliding = self.layers_mapping[layer_id]
        return self.pools[sliding].get_kv_buffer(place)

    def set_kv_buffer(self, layer: Any, place: Any, k: Tensor, v: Tensor, *scales: Any) -> None:
        within, sliding = self.layers_mapping[layer.layer_id]
        slots = place.swa_loc if sliding else place.loc
        self.pools[sliding].store(within, slots, (k, v), scales)


class Parallel(SimpleNamespace):
    """SGLang's sizes of groups, which it sets when it starts."""

    @contextlib.contextmanager
    def override(self, **sizes: int) -> Iterator[None]:
        before = dict(vars(self))
        vars(self).update(sizes)
        yield
        vars(self).clear()
        vars(self).update(before)


PARALLEL = Parallel()


def get_parallel() -> Parallel:
    """The sizes of groups."""
    return PARALLEL


def modules() -> dict[str, ModuleType]:
    """The modules of stand-ins by name, with an empty registry."""
    registered: dict[str, Any] = {}
    choices = ["triton"]

    def register_attention_backend(name: str) -> Any:
        return lambda function: registered.setdefault(name, function)

    made: dict[str, Any] = {path: ModuleType(path) for path in PLACES.values()}
    own = {
        "register_attention_backend": register_attention_backend,
        "ATTENTION_BACKENDS": registered,
        "add_attention_backend_choices": choices.extend,
        "ATTENTION_BACKEND_CHOICES": choices,
    }
    for name, path in PLACES.items():
        setattr(made[path], name, own.get(name, globals().get(name)))
    return packages(*made.values())


def loaded(patch: pytest.MonkeyPatch) -> Any:
    """Returns the names of PLACES: SGLang's where it is installed, and stand-ins elsewhere."""
    if importlib.util.find_spec("sglang") is None:
        for name, module in modules().items():
            patch.setitem(sys.modules, name, module)
    else:
        define_operators_of_torchvision()
    found = {name: getattr(importlib.import_module(path), name) for name, path in PLACES.items()}
    return SimpleNamespace(**found)


def define_operators_of_torchvision() -> None:
    """Lets torchvision be imported, which SGLang's configurations of models do. PyPI has it for
    CUDA: on a CPU its operators are missing, and its import fails for them."""
    if hasattr(torch.ops.torchvision, "nms"):
        return
    operators = ("roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d")
    names = [*operators, *(f"_{name}_backward" for name in operators), "nms", "qnms", "qroi_align"]
    for name in names:
        torch.library.define(f"torchvision::{name}", "(Tensor x) -> Tensor")
