"""The kinds of attention layers in a language model, read from its Hugging Face `config.json`.

A model has one kind of layers or several: Gemma 2 has a sliding window in every other layer. A kind
that a `Workload` cannot express is left out, with a reason. The meaning of the keys is that of the
transformers library, `src/transformers/models/*/configuration_*.py` and `masking_utils.py`
(https://github.com/huggingface/transformers).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec.model_keys import ModelKeys, shown
from tunefa.spec.workload import Workload
from tunefa.spec.workload_parts import MAX_HEAD_DIM

_OF_MODELS = ("heads", "heads_kv", "head_dim", "head_dim_v", "window_left", "softcap")
"""The fields of `Workload` that a model determines; `--full` is for its shape without the mask."""
_SINKS = "tunefa's kernels cannot add attention sinks to the softmax yet"
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

    def share(self, part: LayerKind | LeftOut) -> str:
        """Returns the name of a kind with its share of the layers, for messages."""
        return f"{part.name} ({part.count} of {self.layers} layers)"


def read(name: str, data: Mapping[str, Any], where: str) -> Model:
    """Returns the model with the configuration `data`. `where` begins each message.

    Raises TunefaError if a key that is needed is missing, or has a value that makes no sense.
    """
    keys = ModelKeys(data, where)
    kinds: list[LayerKind] = []
    left_out: list[LeftOut] = []
    for layer_type, count in Counter(keys.layer_types()).items():
        for part in _parts(keys, layer_type, count):
            if isinstance(part, LeftOut):
                left_out.append(part)
            else:
                _check(part, where)
                kinds.append(part)
    return Model(name, keys.layers, tuple(kinds), tuple(left_out), keys.note())


def _parts(keys: ModelKeys, layer_type: str, count: int) -> Iterator[LayerKind | LeftOut]:
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
    if keys.has_sinks:
        same = keys.shape(layer_type) | ({"window": window_keys} if window_keys else {})
        options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in same.items())
        why = f"{_SINKS} (the same without them: {options})"
        yield LeftOut(f"{name} with attention sinks", count, why)
        return
    if keys.latent is not None:
        yield from _latent(keys, name, count, window_keys)
        return
    yield _fitting(name, count, _fields(keys, keys.shape(layer_type), window_keys))


def _latent(
    keys: ModelKeys, name: str, count: int, window_keys: int | None
) -> Iterator[LayerKind | LeftOut]:
    """Yields multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) as prefill and decode."""
    assert keys.latent is not None
    heads, latent = keys.heads, keys.latent
    shape = {"heads": heads, "kv_heads": heads, "head_dim": latent.nope + latent.rope}
    fields = _fields(keys, shape, window_keys) | {"head_dim_v": latent.value}
    yield _fitting(f"latent attention, prefill: {name}", count, fields)
    dims = f"d{latent.rank + latent.rope}_dv{latent.rank}"
    why = (
        f"it is another op, decode: search it by itself, with -w decode_b16_h{heads}_k8192_{dims}"
        f"_page64_mla for 16 sequences of 8,192 keys in pages of 64"
    )
    yield LeftOut("latent attention, decode with absorbed weights", count, why)


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


def _check(kind: LayerKind, where: str) -> None:
    """Raises TunefaError, with the place, if no workload can have the fields of a kind."""
    try:
        kind.workload({"seqlen_q": 1})
    except TunefaError as error:
        raise TunefaError(f"{where}: {error}") from None
