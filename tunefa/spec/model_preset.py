"""The language models that `--model` names: a table of well-known ones, and `config.json` files.

To add a model to the table, copy the keys of its published `config.json` that concern attention to
`models.yaml`, with the address of that file.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec import model_layers, strict_yaml
from tunefa.spec.model_layers import Model
from tunefa.spec.strict_yaml import Fields

_TABLE = Path(__file__).parent / "models.yaml"
_FILE = "config.json"
_LARGEST_BYTES = 16 << 20
"""More than any `config.json` has: the largest list the labels of a classifier."""


def names() -> list[str]:
    """Returns the names of all models in the table, in its order."""
    return list(table())


@functools.cache  # the table does not change while tunefa runs
def table(path: Path = _TABLE) -> dict[str, Mapping[str, Any]]:
    """Returns the table at `path`: for each model the keys of its `config.json`, and `source`.

    Raises TunefaError, with the file and if possible the line, if the table is not valid.
    """
    data = strict_yaml.load_file(path)
    fields = Fields(data, str(path))
    return {name: fields.take(name, dict) for name in data}


def load(name: str) -> Model:
    """Returns the model that `name` means: a name in the table in upper or lower case, the model's
    repository on Hugging Face, the path of a `config.json`, or that of a folder with one.

    Raises TunefaError if there is none, and where `read_file` and `model_layers.read` raise it.
    """
    models, wanted = table(), name.strip().lower()
    if wanted not in models:
        address = f"/{wanted}/blob/"
        hosted = (each for each, keys in models.items() if address in str(keys["source"]).lower())
        wanted = next(hosted, wanted)
    if wanted in models:
        return model_layers.read(wanted, models[wanted], f"{_TABLE}: {wanted}")
    path = Path(name)
    if wanted and _is_file(path):
        file = path / _FILE if path.is_dir() else path
        return model_layers.read(name, read_file(file), str(file))
    raise _unknown(name, list(models))


def _is_file(path: Path) -> bool:
    """Whether a name means a file or folder and not a model of the table."""
    try:
        return path.exists() or path.suffix == ".json"
    except (OSError, ValueError):  # the name is too long, or has a character no path can have
        return False


def read_file(path: Path) -> Mapping[str, Any]:
    """Returns the mapping in a `config.json`.

    Raises TunefaError if there is no such file, or it is too large or no mapping in JSON.
    """
    try:
        if not path.is_file():
            what = "is not a file" if path.exists() else "there is no such file"
            raise TunefaError(f"{path}: {what}: name a model's {_FILE}, or the folder that has it")
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise TunefaError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > _LARGEST_BYTES:
        raise TunefaError(
            f"{path} has more than {_LARGEST_BYTES >> 20} MiB: it is not a model's {_FILE}"
        )
    try:
        data = json.loads(content)
    except RecursionError:
        raise TunefaError(f"{path} is nested too deeply for a model's {_FILE}") from None
    except ValueError as error:
        raise TunefaError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise TunefaError(f"{path} holds no mapping: it is not a model's {_FILE}")
    return data


def _unknown(name: str, known: list[str]) -> TunefaError:
    """Returns the error for a name that means no model: the nearest names, else a line a family."""
    start = f"unknown model {name!r}"
    if "/" in name.strip("/"):
        return TunefaError(
            f"{start}: there is no such file or folder, and the table has no such repository"
        )
    nearest = get_close_matches(name.strip().lower(), known, n=3, cutoff=0.7)
    if nearest:
        which = " or ".join(nearest)
        return TunefaError(f"{start}: did you mean {which}? The path of a config.json is taken too")
    families = groupby(known, key=lambda each: re.split(r"[^a-z]", each)[0])
    lines = [f"  {', '.join(family)}" for _, family in families]
    return TunefaError("\n".join([f"{start}: name a config.json, or one of these", *lines]))
