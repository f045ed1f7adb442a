"""Compiled configs as plain data and cubins, and back again without a compiler."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from tunefa.compile import languages
from tunefa.compile.contract import Compiled, CompileError
from tunefa.errors import TunefaError
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.store import bundle_file, trial_data

_STEPS = ("binary", "preprocess", "postprocess")
"""The fields of Compiled that hold binaries."""


def digest(case: Case, config: Config, aligned: bool) -> str:
    """Returns a name for all inputs of the compiler: equal where the binaries are equal.

    The kernel's source is not among them; whoever keeps binaries compares its hash.
    """
    key = languages.load(case.kernel.language).binary_key(case, config, aligned)
    return hashlib.sha256(repr((case.arch.name, key)).encode()).hexdigest()[:32]


def stored(case: Case, compiled: Compiled) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Returns a compiled config as plain data, and its cubins by the names in that data.

    Raises CompileError for a binary that a bundle cannot hold.
    """
    language = languages.load(case.kernel.language)
    images: dict[str, bytes] = {}
    steps: dict[str, Any] = {}
    for step in _STEPS:
        binary = getattr(compiled, step)
        if binary is not None:
            image, data = language.stored(binary)
            name = bundle_file.name_of(image)
            images[name], steps[step] = image, {**data, "image": name}
    used = {key: value for key, value in asdict(compiled.resources).items() if value is not None}
    return {"kernel": case.kernel.name, "resources": used, "steps": steps}, images


def why_not(language_name: str) -> str | None:
    """Returns why a bundle holds no kernel of a language; None if it does."""
    language = languages.load(language_name)
    if hasattr(language, "stored"):
        return None
    return f"a kernel of the language {language_name} has no binary that a bundle can hold"


def warm_up(language_name: str) -> None:
    """Imports what launches of a language's stored binaries need, which takes tens of ms: a process
    does it when it loads a bundle, and not in its first call."""
    languages.load(language_name)
    for name in ("host_side", "cuda_abi", "triton_abi", "triton_launch", "triton_stored"):
        importlib.import_module(f"tunefa.compile.launch.{name}")


def restored(
    language_name: str, data: Mapping[str, Any], image: Callable[[str], bytes]
) -> Compiled:
    """Returns the compiled config of which `stored` returned the data; `image` returns a cubin.

    Raises CompileError for data that `stored` did not return.
    """
    language = languages.load(language_name)
    try:
        steps = {
            step: language.restored(
                image(parts["image"]), {key: parts[key] for key in parts if key != "image"}
            )
            for step, parts in data["steps"].items()
        }
        resources = trial_data.resources(data["resources"])
        return Compiled(inspect=lambda: resources, seconds=0.0, **steps)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CompileError(f"its stored binary cannot be read: {error!r}") from error
    except TunefaError as error:
        raise CompileError(str(error)) from error
