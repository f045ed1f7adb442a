"""Pictures that tests compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefa.experiments import figure
from tunefa.experiments.document import Document
from tunefa.experiments.experiment import Experiment


def pixels(path: Path) -> NDArray[np.float64]:
    """The pixels of a PNG: (height, width, channels), from 0 to 1."""
    from matplotlib import image

    found: NDArray[np.float64] = np.asarray(image.imread(path), dtype=float)
    return found


def drawn(experiment: Experiment, document: Document, path: Path) -> NDArray[np.float64]:
    """The pixels of an experiment's plot, written to `path`."""
    figure.save_png(experiment.plot(document), path)
    return pixels(path)


def empty(_: Any) -> None:
    """Draws nothing."""
