"""The keys of a Hugging Face `config.json` that concern attention, checked one by one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec.strict_yaml import REQUIRED, Fields

_TEXT_PARTS = ("thinker_config", "text_config", "llm_config", "language_config")
"""The keys under which multimodal models have the configuration of their language model."""
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model"),
}
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "gemma3_text": {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4},
    "qwen3": {"head_dim": 128},
}
"""Values of a model type that its file leaves out, from transformers' `configuration_*.py`."""
_GLOBAL_EVERY: Mapping[str, int] = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6}
"""Model types in which every n-th layer is global and the others have a window."""
_WINDOW_EVERYWHERE = ("mistral", "mixtral", "phi3")
"""Model types in which all layers have the window."""
_CAUSAL = {
    *("llama", "gpt2", "gemma", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "phi"),
    *("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "llama4_text", "qwen3_5_moe_text"),
    *("gemma4_text", "ministral3", "olmo2", "olmo3", "falcon", *_GLOBAL_EVERY, *_WINDOW_EVERYWHERE),
}
_BIDIRECTIONAL = {"bert", "roberta", "xlm-roberta"}
_ALIBI = {"bloom", "mpt"}
_MOST_LAYERS, _LARGEST = 10_000, 1_000_000_000


@dataclass(frozen=True)
class Latent:
    """The dimensions of multi-head latent attention."""

    nope: int
    rope: int
    value: int
    rank: int


class ModelKeys:
    """Reads the keys of one configuration. Each error is a TunefaError that begins with `where`."""

    def __init__(self, data: Any, where: str) -> None:
        """Takes the language model's part of a multimodal configuration.

        Raises TunefaError for a model whose attention no workload can describe.
        """
        data, self._where = _text_part(data, where)
        self._data: Mapping[str, Any] = data
        self._fields = Fields(data, self._where)
        self.model_type: str | None = self._fields.take("model_type", (str, NoneType), None)
        self._refuse_biases()
        self.layers = self._count("num_hidden_layers", most=_MOST_LAYERS)
        self.heads = self._count("num_attention_heads")

    def _refuse_biases(self) -> None:
        """Raises TunefaError for models that add a bias to the scores."""
        if self._fields.take("is_encoder_decoder", bool, False):
            raise TunefaError(
                f"{self._where}: an encoder with a decoder has no single kind of attention that "
                f"this file describes: give its workloads with -w"
            )
        if self.model_type in _ALIBI or self._fields.take("alibi", bool, False):
            raise TunefaError(
                f"{self._where}: the model adds ALiBi biases to its scores, which no kernel of "
                f"tunefa does"
            )

    def _count(self, key: str, default: Any = REQUIRED, most: int = _LARGEST) -> Any:
        """Returns a whole number from 1, by one of its spellings; `default` for none or null."""
        names = [key, *_SPELLINGS.get(key, ())]
        found = next((each for each in names if self._data.get(each) is not None), key)
        of_type = _DEFAULTS.get(self.model_type or "", {}).get(key)
        if self._data.get(found) is None and (of_type is not None or default is not REQUIRED):
            return default if of_type is None else of_type
        value = self._fields.take(found, int)
        if not 1 <= value <= most:
            raise TunefaError(
                f"{self._where}: {found!r} is {shown(value)}: it must be from 1 to {most:,}"
            )
        return value

    def note(self) -> str | None:
        """Returns what was assumed about a model type that tunefa does not know; else None."""
        if self.model_type in _CAUSAL | _BIDIRECTIONAL:
            return None
        said = "has no model_type"
        if self.model_type is not None:
            said = f"has the model_type {shown(self.model_type)}, which tunefa does not know"
        return (
            f"{self._where} {said}: its attention is taken to be causal, and its keys to mean what "
            f"they mean for Llama"
        )

    @functools.cached_property
    def causal(self) -> bool:
        """Whether a query attends no later key."""
        if self._data.get("use_bidirectional_attention") is True:
            return False
        decoder = self._fields.take("is_decoder", bool, False)
        return decoder or self.model_type not in _BIDIRECTIONAL

    @functools.cached_property
    def softcap(self) -> bool:
        """Whether the scores are soft-capped."""
        cap = self._fields.take("attn_logit_softcapping", (int, float, NoneType), None)
        if cap is not None and cap <= 0:
            raise TunefaError(
                f"{self._where}: 'attn_logit_softcapping' is {shown(cap)}: it must be above 0"
            )
        return cap is not None

    @functools.cached_property
    def sparse(self) -> bool:
        """Whether an index, or a pattern of blocks, chooses the keys of a query."""
        found = ("index_topk", "compress_ratios", "blocksparse_block_size")
        return any(self._data.get(key) for key in found)

    @functools.cached_property
    def has_sinks(self) -> bool:
        """Whether the softmax has attention sinks: gpt-oss has no key that says so."""
        others = any("attention_sink" in key and self._data[key] for key in self._data)
        return self.model_type == "gpt_oss" or others

    @functools.cached_property
    def latent(self) -> Latent | None:
        """The dimensions of multi-head latent attention; None for other models."""
        if self._data.get("kv_lora_rank") is None:
            return None
        keys = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
        return Latent(*(self._count(key) for key in keys))

    @functools.cached_property
    def window_keys(self) -> int:
        """The keys up to the diagonal that a query sees in layers with a window."""
        return int(self._count("sliding_window"))

    @functools.cached_property
    def chunk(self) -> int:
        """The keys of one chunk, in layers with chunked attention (default of Llama 4)."""
        return int(self._count("attention_chunk_size", 8192))

    def shape(self, layer_type: str) -> dict[str, int]:
        """Returns the heads and the head dimension of one type of layers, by option names."""
        kv_default = 1 if self._fields.take("multi_query", bool, False) else self.heads
        kv_heads = self._count("num_key_value_heads", kv_default)
        head_dim = self._count("head_dim", None) or self._divided()
        if layer_type == "full_attention":  # Gemma 4
            kv_heads = self._count("num_global_key_value_heads", kv_heads)
            head_dim = self._count("global_head_dim", head_dim)
        return {"heads": self.heads, "kv_heads": kv_heads, "head_dim": head_dim}

    def _divided(self) -> int:
        """Returns hidden_size / heads. Raises TunefaError if that is not a whole number."""
        hidden: int = self._count("hidden_size")
        if hidden % self.heads:
            raise TunefaError(
                f"{self._where}: there is no 'head_dim', and 'hidden_size' {hidden} is not a "
                f"multiple of the {self.heads} heads: add 'head_dim'"
            )
        return int(hidden // self.heads)

    def layer_types(self) -> list[str]:
        """Returns the type of each layer, as transformers names them."""
        given = self._fields.take("layer_types", (list, NoneType), None)
        if given:
            return self._checked(given)
        if (self.model_type or "").startswith("llama4"):
            return self._in_chunks()
        if self._data.get("full_attention_interval") is not None:
            return self._every(self._count("full_attention_interval"), "linear_attention")
        return self._with_windows()

    def _checked(self, given: list[Any]) -> list[str]:
        """Returns `layer_types` of the file. Raises TunefaError if they are not one per layer."""
        if not all(isinstance(each, str) for each in given):
            raise TunefaError(f"{self._where}: 'layer_types' must be a list of texts")
        if len(given) != self.layers:
            raise TunefaError(
                f"{self._where}: 'layer_types' has {len(given)} entries for {self.layers} layers"
            )
        return given

    def _every(self, interval: int, others: str) -> list[str]:
        """Returns layers of which every `interval`-th is global."""
        numbers = range(1, self.layers + 1)
        return [others if number % interval else "full_attention" for number in numbers]

    def _in_chunks(self) -> list[str]:
        """Returns the layers of Llama 4: those without rotary embedding attend all keys."""
        if "attention_chunk_size" in self._data and self._data["attention_chunk_size"] is None:
            return ["full_attention"] * self.layers
        rotary = self._fields.take("no_rope_layers", (list, NoneType), None)
        if not rotary:  # 4 is the default of transformers
            interval = self._count("no_rope_layer_interval", 4)
            return self._every(interval, "chunked_attention")
        if len(rotary) != self.layers:
            raise TunefaError(
                f"{self._where}: 'no_rope_layers' has {len(rotary)} entries for {self.layers} "
                f"layers"
            )
        return ["chunked_attention" if each else "full_attention" for each in rotary]

    def _with_windows(self) -> list[str]:
        """Returns layers that are global or have a window, where the file has no list of them.

        Raises TunefaError if nothing says which layers have the window.
        """
        model_type = self.model_type or ""
        default = REQUIRED if model_type in _GLOBAL_EVERY else None
        window_keys = self._fields.take("sliding_window", (int, NoneType), default)
        if window_keys is None or not self._fields.take("use_sliding_window", bool, True):
            return ["full_attention"] * self.layers
        if "use_sliding_window" in self._data:  # Qwen
            first = self._fields.take("max_window_layers", int)
            return [
                "sliding_attention" if number >= first else "full_attention"
                for number in range(self.layers)
            ]
        interval = self._count("sliding_window_pattern", _GLOBAL_EVERY.get(model_type))
        if interval is not None:
            return self._every(interval, "sliding_attention")
        if model_type in _WINDOW_EVERYWHERE:
            return ["sliding_attention"] * self.layers
        raise TunefaError(
            f"{self._where}: nothing says which layers have the 'sliding_window' of "
            f"{shown(window_keys)}: add 'layer_types', or give the workloads with -w"
        )


def _text_part(data: Any, where: str) -> tuple[Mapping[str, Any], str]:
    """Returns the language model's part of a configuration, and the place of it."""
    for _ in _TEXT_PARTS:  # one may lie in another, but no deeper
        part = next((key for key in _TEXT_PARTS if isinstance(data.get(key), Mapping)), None)
        if part is None:
            break
        data, where = data[part], f"{where}: {part}"
    return data, where


def shown(value: object) -> str:
    """Returns a value for a message, escaped and not longer than about 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
