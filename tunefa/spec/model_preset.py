"""Attention shapes of well-known models, one file each: `--model llama3-8b`.

To add a model is to add `<name>.yaml` here, with the figures of its published configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tunefa.errors import TunefaError, unknown
from tunefa.spec import strict_yaml
from tunefa.spec.strict_yaml import Fields
from tunefa.spec.workload import Workload

_FOLDER = Path(__file__).parent / "model_presets"


@dataclass(frozen=True)
class ModelPreset:
    """The attention layer of one model: what does not depend on the batch or the length."""

    name: str
    heads: int
    heads_kv: int
    head_dim: int
    source: str
    """Where the figures are published."""


def names() -> list[str]:
    """All models, sorted."""
    return sorted(path.name.removesuffix(".yaml") for path in _FOLDER.glob("*.yaml"))


def load(name: str) -> ModelPreset:
    """The model of that name, in any case.

    Raises TunefaError for an unknown one, suggesting the nearest.
    """
    stem = name.strip().lower()
    if stem not in names():
        raise unknown("model", name, names())
    return read(_FOLDER / f"{stem}.yaml")


def read(path: Path) -> ModelPreset:
    """The model in one file; raises TunefaError with file and line for one that does not hold."""
    fields = Fields(strict_yaml.load_file(path), str(path))
    model = ModelPreset(
        name=path.name.removesuffix(".yaml"),
        heads=fields.take("heads", int),
        heads_kv=fields.take("heads_kv", int),
        head_dim=fields.take("head_dim", int),
        source=fields.take("source", str),
    )
    fields.done()
    try:
        Workload.of(heads=model.heads, heads_kv=model.heads_kv, head_dim=model.head_dim, seqlen_q=1)
    except TunefaError as error:
        raise TunefaError(f"{path}: {error}") from None
    return model
