"""The versions of the models of time, by which predictions of different models are told apart.

A record keeps the version of the model that predicted its time, and the id of what that model had
learned from measurements. Times of two versions or ids are not compared: a prediction of today
stands, however fast an older model found another config. A change of what a model predicts, by its
constants, an arch's figures or a space's tiling, needs a new version;
tests/costmodel/test_version.py fails until then, and tests/costmodel/test_decode.py for attention
over a cache, which has a version of its own. What is learned has a hash for its id, so it needs
no version.
"""

from __future__ import annotations

import hashlib
from typing import Any

from tunefa.costmodel import decode, gpu
from tunefa.spec import kernel as kernels
from tunefa.store.record import ObjectiveKind

GPU_MODEL_VERSION = gpu.VERSION
"""The version of `tunefa.costmodel.gpu`."""
NPU_MODEL_VERSION = 1
"""The version of `tunefa.costmodel.npu`."""


def model_version(objective: ObjectiveKind, op: str = "fwd") -> int | None:
    """Returns the version of the model that gives this kind of time for an op; None where none
    does."""
    if objective == "predicted":
        return decode.VERSION if op == "decode" else GPU_MODEL_VERSION
    return NPU_MODEL_VERSION if objective in ("modelled", "estimated") else None


def learned_id(objective: ObjectiveKind, arch: str) -> str | None:
    """Returns the id of all that was learned of an arch's kernels; None if nothing was.

    It is one id for all kernels, because the predicted times of several kernels are compared.
    """
    if objective != "predicted":
        return None
    from tunefa.costmodel import learned  # it brings numpy

    found = [learned.load(name, arch) for name in kernels.names()]
    ids = [model.id for model in found if model is not None]
    return hashlib.sha256(" ".join(ids).encode()).hexdigest()[:8] if ids else None


def provenance(objective: ObjectiveKind, arch: str, op: str = "fwd") -> dict[str, Any]:
    """Returns `model` and `learned` of a record's or journal's provenance, where they apply."""
    found = {"model": model_version(objective, op), "learned": learned_id(objective, arch)}
    return {name: value for name, value in found.items() if value is not None}
