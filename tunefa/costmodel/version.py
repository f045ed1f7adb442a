"""The versions of the models of time, by which predictions of different models are told apart.

A record keeps the version of the model that predicted its time. Times of two versions are not
compared: a prediction of today stands, however fast an older model found another config. A change
of what a model predicts, by its constants, an arch's figures or a space's tiling, needs a new
version; tests/costmodel/test_version.py fails until then.
"""

from __future__ import annotations

from tunefa.store.record import ObjectiveKind

GPU_MODEL_VERSION = 1
"""The version of `tunefa.costmodel.gpu`."""
NPU_MODEL_VERSION = 1
"""The version of `tunefa.costmodel.npu`."""


def model_version(objective: ObjectiveKind) -> int | None:
    """Returns the version of the model that gives this kind of time; None where none does."""
    if objective == "predicted":
        return GPU_MODEL_VERSION
    return NPU_MODEL_VERSION if objective in ("modelled", "estimated") else None
