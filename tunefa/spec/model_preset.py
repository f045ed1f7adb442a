"""Model presets: attention shapes of well-known language models, such as `--model llama3-8b`.

To add one, add `model_presets/<name>.yaml` with the figures of the published configuration.
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
    """The attention layer of one language model, without batch size and sequence lengths."""

    name: str
    heads: int
    heads_kv: int
    head_dim: int
    source: str
    """The publication of the figures."""


def names() -> list[str]:
    """Returns the names of all model presets, sorted."""
    return sorted(path.name.removesuffix(".yaml") for path in _FOLDER.glob("*.yaml"))


def load(name: str) -> ModelPreset:
    """Returns the model preset with that name, in upper or lower case.

    Raises TunefaError if there is none.
    """
    stem = name.strip().lower()
    if stem not in names():
        raise unknown("model", name, names())
    return read(_FOLDER / f"{stem}.yaml")


def read(path: Path) -> ModelPreset:
    """Returns the model preset in the file at `path`.

    Raises TunefaError, with the file and if possible the line, if the file is not valid.
    """
    fields = Fields(strict_yaml.load_file(path), str(path))
    preset = ModelPreset(
        name=path.name.removesuffix(".yaml"),
        heads=fields.take("heads", int),
        heads_kv=fields.take("heads_kv", int),
        head_dim=fields.take("head_dim", int),
        source=fields.take("source", str),
    )
    fields.done()
    try:
        Workload.of(
            heads=preset.heads, heads_kv=preset.heads_kv, head_dim=preset.head_dim, seqlen_q=1
        )
    except TunefaError as error:
        raise TunefaError(f"{path}: {error}") from None
    return preset
