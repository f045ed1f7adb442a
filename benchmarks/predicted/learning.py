"""Chooses the learned models that predictions use."""

from __future__ import annotations

import shutil
from pathlib import Path

from tunefa.costmodel import learned
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels


def install(models: Path | None, arch: str, without: str | None) -> None:
    """Copies models to where predictions read the user's, instead of those that are shipped.

    Raises TunefaError if `models` holds none of the arch, or if a model has learned from the device
    `without`.
    """
    if models is not None:
        files = [learned.path(name, arch, models) for name in kernels.names()]
        found = [file for file in files if file.exists()]
        if not found:
            raise TunefaError(f"{models} holds no learned model of {arch}")
        learned.user_folder().mkdir(parents=True)
        for file in found:
            shutil.copy(file, learned.user_folder())
    for name in kernels.names():
        model = learned.load(name, arch)
        if model is not None and without in model.provenance.get("devices", ()):
            raise TunefaError(
                f"the model of {name} has learned from an {without}: write models without it with "
                "`python -m benchmarks.model --without DEVICE --models FOLDER`, and name the folder"
            )
