"""A learned model for tests, by hand: configs of 64 rows take longer than the cost model says."""

from __future__ import annotations

import math

import numpy as np

from tests.support.fake_objective import KERNEL as _KERNEL
from tests.support.fake_objective import TARGET, WORKLOAD
from tunefa.costmodel import learned
from tunefa.costmodel.features import features
from tunefa.costmodel.learned import HeldOut, LearnedModel, Trees
from tunefa.spec.target import Case

CASE = Case(_KERNEL, WORKLOAD, TARGET)
KERNEL, ARCH = _KERNEL.name, CASE.arch.name
SLOWER = 1.5
"""The factor for tiles of at most 64 rows."""
FIGURES = HeldOut(3, 0.08, 0.04, 0.2, 0.15)

_NAMES = features(CASE, [CASE.default()]).names
_STUMP = Trees(
    count=1,
    depth=1,
    feature=np.array([_NAMES.index("BLOCK_M"), 0, 0], np.int16),
    threshold=np.array([64.0, np.inf, np.inf], np.float32),
    child=np.array([[1, 2], [1, 1], [2, 2]], np.int32),
    value=np.array([0.0, math.log(SLOWER), 0.0], np.float32),
)
MODEL = LearnedModel(
    KERNEL, ARCH, _NAMES, 0.0, _STUMP, learned.place(CASE)[None], 1.0, FIGURES,
    {"devices": ["NVIDIA H200"], "workloads": [str(WORKLOAD)], "trials": 7},
)  # fmt: skip
