"""The kinds of attention layers in a language model, read from its Hugging Face `config.json`.

A model has one kind of layers or several: Gemma 2 has a sliding window in every other layer. A kind
that a `Workload` cannot express is left out, with a reason. The meaning of the keys is that of the
transformers library, `src/transformers/models/*/configuration_*.py` and `masking_utils.py`
(https://github.com/huggingface/transformers).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec.model_keys import ModelKeys, shown
from tunefa.spec.workload import Workload
from tunefa.spec.workload_parts import CACHE_OPS, MAX_HEAD_DIM, MAX_MLA_DIMS

_OF_MODELS = (
    "heads", "heads_kv", "head_dim", "head_dim_v", "window_left", "softcap", "mla", "sinks",
)  # fmt: skip
"""The fields of `Workload` that a model determines; `--full` is for its shape without the mask."""
_SINKS = "tunefa's kernels of the forward pass cannot add attention sinks to the softmax yet"
_LEAST = {"seqlen_q": 1}
_LEAST_OVER_CACHE = {"op": "decode", "seqlen_q": 1, "seqlen_k": 1}
"""The fields that a workload of a kind of layers lacks."""
_ABSORBED = "latent attention, decode with absorbed weights"
_NO_SOFTMAX = "it has no softmax"


@dataclass(frozen=True)
class LayerKind:
    """The layers of a model whose attention is the same, without batch size and lengths."""

    name: str
    count: int
    """The number of these layers."""
    fields: Mapping[str, Any] = field(hash=False)
    """The fields of `Workload` that the model determines."""

    def workload(self, given: Mapping[str, Any]) -> Workload:
        """Returns the workload of these layers for the other fields, such as `seqlen_q`.

        Raises TunefaError if a given field is not valid.
        """
        return Workload.of(**{**self.fields, **given})

    def has(self, workload: Workload) -> bool:
        """Whether a workload is one of these layers, whatever its batch, lengths and dtype."""
        given = {name: value for name, value in vars(workload).items() if name not in _OF_MODELS}
        try:
            return self.workload(given) == workload
        except TunefaError:
            return False


@dataclass(frozen=True)
class LeftOut:
    """A kind of layers that a `Workload` cannot express, and why."""

    name: str
    count: int
    why: str


@dataclass(frozen=True)
class Model:
    """The attention layers of one language model."""

    name: str
    layers: int
    kinds: tuple[LayerKind, ...]
    left_out: tuple[LeftOut, ...] = ()
    note: str | None = None
    """The assumptions made because the configuration does not say it."""
    over_cache: Model | None = None
    """The same layers over a cache, where a decoder's differ from those of the forward pass."""

    def of_op(self, op: str) -> Model:
        """Returns the model with the kinds of layers that an op computes."""
        return self.over_cache if op in CACHE_OPS and self.over_cache is not None else self

    def share(self, part: LayerKind | LeftOut) -> str:
        """Returns the name of a kind with its share of the layers, for messages."""
        return f"{part.name} ({part.count} of {self.layers} layers)"


def read(name: str, data: Mapping[str, Any], where: str) -> Model:
    """Returns the model with the configuration `data`. `where` begins each message.

    Raises TunefaError if a key that is needed is missing, or has a value that makes no sense.
    """
    keys = ModelKeys(data, where)
    forward, over_cache = (
        Model(name, keys.layers, *_kinds(keys, where, is_cached), keys.note())
        for is_cached in (False, True)
    )
    return replace(forward, over_cache=over_cache)


def _kinds(
    keys: ModelKeys, where: str, is_cached: bool
) -> tuple[tuple[LayerKind, ...], tuple[LeftOut, ...]]:
    """Returns the kinds of layers, of the forward pass or over a cache, and those left out."""
    parts = [
        _checked(part, where, is_cached) if isinstance(part, LayerKind) else part
        for layer_type, count in Counter(keys.layer_types()).items()
        for part in _parts(keys, layer_type, count, is_cached)
    ]
    kinds = tuple(part for part in parts if isinstance(part, LayerKind))
    return kinds, tuple(part for part in parts if isinstance(part, LeftOut))


def _checked(kind: LayerKind, where: str, is_cached: bool) -> LayerKind | LeftOut:
    """Returns a kind of layers, or why it has no cache, as in an encoder. Raises TunefaError, with
    the place, if no workload of a forward pass can have its fields."""
    try:
        kind.workload(_LEAST_OVER_CACHE if is_cached else _LEAST)
    except TunefaError as error:
        if not is_cached:
            raise TunefaError(f"{where}: {error}") from None
        return LeftOut(kind.name, kind.count, str(error))
    return kind


def _parts(
    keys: ModelKeys, layer_type: str, count: int, is_cached: bool
) -> Iterator[LayerKind | LeftOut]:
    """Yields the kinds of attention in the layers of one type."""
    softcap = " with soft-capped scores" if keys.softcap else ""
    if layer_type == "full_attention":
        name, window_keys = f"global attention{softcap}", None
    elif layer_type == "sliding_attention":
        window_keys = keys.window_keys
        name = f"sliding window of {window_keys:,} keys{softcap}"
    else:
        yield LeftOut(*_foreign(keys, layer_type, count))
        return
    if keys.sparse:
        why = "tunefa's kernels attend every key that the mask leaves"
        yield LeftOut(f"{name}, of which an index chooses the keys", count, why)
        return
    if window_keys and not keys.causal:
        why = "the file does not say how far it reaches on each side of a query"
        yield LeftOut(name, count, why)
        return
    if keys.has_sinks and not is_cached:
        same = keys.shape(layer_type) | ({"window": window_keys} if window_keys else {})
        options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in same.items())
        why = f"{_SINKS}; over a cache they can: --decode (the same without them: {options})"
        yield LeftOut(f"{name} with attention sinks", count, why)
        return
    if keys.latent is not None and is_cached:
        yield _absorbed(keys, name, count)
        return
    if keys.latent is not None:
        yield from _latent(keys, name, count, window_keys)
        return
    fields = _fields(keys, keys.shape(layer_type), window_keys)
    yield _fitting(name, count, fields | ({"sinks": True} if keys.has_sinks else {}))


def _latent(
    keys: ModelKeys, name: str, count: int, window_keys: int | None
) -> Iterator[LayerKind | LeftOut]:
    """Yields multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) of a forward pass, and
    what is left out of it."""
    assert keys.latent is not None
    heads, latent = keys.heads, keys.latent
    shape = {"heads": heads, "kv_heads": heads, "head_dim": latent.nope + latent.rope}
    fields = _fields(keys, shape, window_keys) | {"head_dim_v": latent.value}
    yield _fitting(f"latent attention, prefill: {name}", count, fields)
    why = "it is another op, decode: add --decode --page-size 64 and --seqlen-k"
    yield LeftOut(_ABSORBED, count, why)


def _absorbed(keys: ModelKeys, name: str, count: int) -> LayerKind | LeftOut:
    """Returns multi-head latent attention over a cache, whose weights are absorbed: all heads share
    the latent and the rotated columns, and values are the latent."""
    assert keys.latent is not None
    latent, most = keys.latent, MAX_MLA_DIMS
    dims = {"head_dim": latent.rank + latent.rope, "head_dim_v": latent.rank}
    for key, size in dims.items():
        if size > most[key]:
            return LeftOut(_ABSORBED, count, f"its {key} is {size}, and at most {most[key]} serves")
    fields = {"heads": keys.heads, "heads_kv": 1, **dims, "mla": True, "softcap": keys.softcap}
    return LayerKind(f"{_ABSORBED}: {name}", count, fields)


def _fields(keys: ModelKeys, shape: Mapping[str, int], window_keys: int | None) -> dict[str, Any]:
    """Returns the fields of `Workload` for one kind of layers."""
    fields: dict[str, Any] = {
        "heads": shape["heads"],
        "heads_kv": shape["kv_heads"],
        "head_dim": shape["head_dim"],
        "softcap": keys.softcap,
    }
    if window_keys is not None:  # it counts the query's own key, and the field does not
        fields["window_left"] = window_keys - 1
    return fields if keys.causal else {**fields, "causal": False}


def _fitting(name: str, count: int, fields: dict[str, Any]) -> LayerKind | LeftOut:
    """Returns a kind of layers, or why its head dimension is too large."""
    for key in ("head_dim", "head_dim_v"):
        if fields.get(key, 0) > MAX_HEAD_DIM:
            why = f"its {key} is {fields[key]}, and tunefa's kernels serve up to {MAX_HEAD_DIM}"
            return LeftOut(name, count, why)
    return LayerKind(name, count, fields)


def _foreign(keys: ModelKeys, layer_type: str, count: int) -> tuple[str, int, str]:
    """Returns the name, the number and the reason of layers that are no attention tunefa has."""
    if layer_type == "chunked_attention":
        name = f"attention in chunks of {keys.chunk:,} keys"
        return name, count, "tunefa's kernels have no mask of chunks yet"
    if layer_type == "linear_attention":
        return "linear attention", count, _NO_SOFTMAX
    return f"layers of type {shown(layer_type)}", count, "tunefa does not know this type"
