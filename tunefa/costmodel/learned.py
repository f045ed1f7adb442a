"""Learned models: what the cost model of GPUs misses about one kernel on one arch.

    log(measured time / time of the cost model) = a sum of regression trees over `features`

The trees were fitted to measured trials by `tunefa.costmodel.learning`, and numpy alone evaluates
them. A sum of trees never leaves the range of what was measured, but far from the workloads that it
was learned from it says nothing. So the correction shrinks there, and the error grows to that of
the cost model alone. Far means farther than the workloads were from their neighbours when they were
held out, to find the error: see `LearnedModel.trust`.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import math
import os
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tunefa import assets
from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel.features import Features
from tunefa.errors import TunefaError
from tunefa.spec.target import Case
from tunefa.spec.workload import DTYPES
from tunefa.store import added_parameters

Array = npt.NDArray[Any]
SCHEMA = 1
"""The version of the files."""
_CHUNK = 1024
"""So many configs are evaluated at once: the work on them fits a core's cache."""
_MOST_BYTES = 32 * 2**20
_DTYPES = {"feature": "int16", "threshold": "float32", "child": "int32", "value": "float32"}


@dataclass(frozen=True)
class Trees:
    """Regression trees, node by node. The first nodes are the roots."""

    count: int
    depth: int
    """The most splits between a root and a leaf."""
    feature: Array
    """By node, the place of the feature that is compared; any at a leaf."""
    threshold: Array
    """By node, the largest value that goes left; infinite at a leaf."""
    child: Array
    """(nodes, 2): the node on the left and on the right; a leaf is its own child."""
    value: Array
    """By node, what a leaf adds."""

    def total(self, rows: Array) -> Array:
        """Returns the sum of the trees for each row of features."""
        width, sums = rows.shape[1], np.empty(len(rows))
        feature, children = self.feature.astype(np.intp), self.child.ravel().astype(np.intp)
        for start in range(0, len(rows), _CHUNK):
            flat = np.ascontiguousarray(rows[start : start + _CHUNK]).ravel()
            first = np.arange(0, len(flat), width)[:, None]
            node = np.tile(np.arange(self.count), (len(first), 1))
            for _ in range(self.depth):
                right = flat.take(first + feature.take(node)) > self.threshold.take(node)
                node = children.take(2 * node + right)
            sums[start : start + _CHUNK] = self.value.take(node).sum(axis=1, dtype=float)
        return sums


@dataclass(frozen=True)
class HeldOut:
    """Errors on workloads that a model was not learned from; the root mean square over these.

    Errors are logarithms of measured over predicted time, of configs near the best.
    """

    workloads: int
    sd: float
    """The error of one config's time."""
    comparison_sd: float
    """The error of the ratio of two configs' times on one workload."""
    analytic_sd: float
    """`sd` of the cost model alone; `analytic_comparison_sd` likewise."""
    analytic_comparison_sd: float


@dataclass(frozen=True)
class LearnedModel:
    """A model that was learned from the times of one kernel on one arch."""

    kernel: str
    arch: str
    names: tuple[str, ...]
    """The names of the features."""
    bias: float
    trees: Trees
    places: Array = field(repr=False)
    """(workloads and devices that it was learned from, coordinates): see `place`."""
    reach: float
    """The distance of a workload from the nearest place up to which `figures` hold."""
    figures: HeldOut | None = None
    """None where no workload was held out."""
    provenance: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The origin of the trials: devices, number of workloads and trials, dates, versions."""

    @functools.cached_property
    def id(self) -> str:
        """The first 8 hex digits of a SHA-256 of what decides its predictions."""
        digest = hashlib.sha256(repr((self.names, self.bias, self.reach, self.figures)).encode())
        for array in (*(getattr(self.trees, name) for name in _DTYPES), self.places):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:8]

    def columns(self, names: Sequence[str]) -> list[int] | None:
        """Returns the columns of its features among these; None if it was learned from others, as
        a changed space may have. It may lack parameters that were added since, of which it then
        says nothing."""
        added = set(added_parameters.ADDED.get(self.kernel, ())).difference(self.names)
        own = [place for place, name in enumerate(names) if name not in added]
        return own if self.names == tuple(names[place] for place in own) else None

    def fits(self, found: Features) -> bool:
        """Whether it was learned from these features."""
        return self.columns(found.names) is not None

    def correction(self, found: Features) -> Array:
        """Returns log(measured / cost model's time) of each config, as far as it is known."""
        lacks = len(self.names) < len(found.names)
        values = found.values[:, self.columns(found.names)] if lacks else found.values
        return self.bias + self.trees.total(values)

    def trust(self, case: Case) -> float:
        """The part of its correction that holds for a workload: 1 within reach of what it was
        learned from, half at twice the reach, and less beyond."""
        distance = float(np.abs(self.places - place(case)).sum(axis=1).min(initial=math.inf))
        beyond = max(0.0, distance / self.reach - 1.0)
        return 1.0 / (1.0 + beyond**2)

    def save(self, path: Path) -> None:
        """Writes the file in one step. Raises TunefaError if that fails."""
        data = self.to_bytes()
        try:
            assets.make_folder(path.parent)
            aside = path.with_name(f".{path.name}.{os.getpid()}")
            aside.write_bytes(data)
            os.replace(aside, path)
        except OSError as error:
            raise TunefaError(f"cannot write {path}: {error.strerror}") from error

    def to_bytes(self) -> bytes:
        """Returns the content of its file: arrays of numpy, and a text in JSON."""
        header = {
            "tunefa_learned": SCHEMA,
            "model": gpu_model.VERSION,
            **{name: getattr(self, name) for name in ("kernel", "arch", "bias", "reach")},
            "names": list(self.names),
            "trees": {"count": self.trees.count, "depth": self.trees.depth},
            "figures": vars(self.figures) if self.figures else None,
            "provenance": dict(self.provenance),
        }
        text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        arrays = {name: getattr(self.trees, name) for name in _DTYPES}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, header=text, places=self.places, **arrays)
        return buffer.getvalue()


def place(case: Case) -> Array:
    """Returns the coordinates of a case: in each, a step of 1 is a change that matters.

    Such as another dtype, a mask, twice the head dimension, or a length four times as large.
    """
    workload, device = case.workload.dense_equivalent, case.device
    peak = device.sms * device.boost_mhz * device.tensor_flops_per_clock_per_sm.get("bf16", 1.0)
    flags = (
        workload.causal,
        2 * (workload.window_left is not None or workload.window_right is not None),
        2 * workload.softcap,
        case.workload.varlen,
    )
    return np.array(
        [
            *map(float, flags),
            math.log2(DTYPES[workload.dtype]),
            math.log2(workload.head_dim),
            2 * math.log2(workload.head_dim / workload.head_dim_v),
            math.log2(workload.seqlen_q) / 2,
            math.log2(workload.seqlen_k) / 2,
            math.log2(workload.batch * workload.heads / device.sms) / 4,
            math.log2(workload.group) / 4,
            math.log2(peak / device.hbm_bytes_per_s),
        ]
    )


def user_folder() -> Path:
    """Returns the folder of the models that this user's `tunefa learn` has written."""
    return assets.home() / "learned"


def path(kernel: str, arch: str, folder: Path | None = None) -> Path:
    """Returns the file of a model in a folder, the user's by default."""
    return (folder or user_folder()) / f"{kernel}--{arch}.npz"


def load(kernel: str, arch: str) -> LearnedModel | None:
    """Returns the user's model, else the shipped one; None where there is neither.

    A user's file that cannot be read is left out, with a warning.
    """
    own = path(kernel, arch)
    try:
        facts = own.stat()
    except OSError:
        return shipped(kernel, arch)
    return _own(own, kernel, arch, (facts.st_mtime_ns, facts.st_size)) or shipped(kernel, arch)


@functools.lru_cache(maxsize=64)
def _own(own: Path, kernel: str, arch: str, _: tuple[int, int]) -> LearnedModel | None:
    """Returns the model in a user's file, read once for each state of the file."""
    try:
        return read(own, kernel, arch)
    except TunefaError as error:
        warnings.warn(f"{error}; the model that tunefa ships is used", stacklevel=3)
        return None


@functools.lru_cache(maxsize=64)
def shipped(kernel: str, arch: str) -> LearnedModel | None:
    """Returns the model that tunefa ships; None if it ships none."""
    file = path(kernel, arch, Path(__file__).with_name("learned"))
    return read(file, kernel, arch) if file.exists() else None


def read(file: Path, kernel: str, arch: str) -> LearnedModel:
    """Returns the model in a file.

    Raises TunefaError if the file cannot be read or is damaged, if it is of another kernel or arch,
    or if it was learned for another version of the cost model.
    """
    again = "learn again (`tunefa learn`), or remove it (`tunefa learn --forget`)"
    damage = (ValueError, KeyError, TypeError, OSError, EOFError, MemoryError, AttributeError)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES / 2**20:.0f} MiB")
        with np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in ("header", "places", *_DTYPES)}
        header = json.loads(arrays.pop("header").tobytes())
        if (header["tunefa_learned"], header["model"]) != (SCHEMA, gpu_model.VERSION):
            raise TunefaError(f"{file} belongs to another version of the model of time: {again}")
        if (header["kernel"], header["arch"]) != (kernel, arch):
            raise TunefaError(f"{file} is not a model of {kernel} on {arch}: {again}")
        return _checked(header, arrays)
    except (*damage, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise TunefaError(
            f"{file} is no learned model that can be read ({error}): {again}"
        ) from error


def _checked(header: Mapping[str, Any], arrays: dict[str, Array]) -> LearnedModel:
    """Returns the model; raises ValueError where an index or a number cannot be right."""
    places = arrays.pop("places")
    count, depth = (int(header["trees"][name]) for name in ("count", "depth"))
    trees = Trees(count, depth, *(arrays[name] for name in _DTYPES))
    nodes, names = len(trees.feature), tuple(map(str, header["names"]))
    shapes = {"feature": (nodes,), "threshold": (nodes,), "child": (nodes, 2), "value": (nodes,)}
    for name, kind in _DTYPES.items():
        array = getattr(trees, name)
        if array.dtype != np.dtype(kind) or array.shape != shapes[name]:
            raise ValueError(f"{name} has the wrong shape")
    _require(0 < trees.count <= nodes and 0 <= trees.depth <= 64, "trees")
    _require(trees.feature.min() >= 0 and trees.feature.max() < len(names), "feature")
    _require(trees.child.min() >= 0 and trees.child.max() < nodes, "child")
    _require(bool(np.isfinite(trees.value).all()), "value")
    _require(places.ndim == 2 and bool(np.isfinite(places).all()), "places")
    figures = header["figures"]
    if figures is not None:
        figures = HeldOut(**{each.name: figures[each.name] for each in fields(HeldOut)})
    bias, reach = float(header["bias"]), float(header["reach"])
    _require(math.isfinite(bias) and 0 < reach < math.inf, "bias")
    kernel, arch = str(header["kernel"]), str(header["arch"])
    return LearnedModel(
        kernel, arch, names, bias, trees, places, reach, figures, dict(header["provenance"])
    )


def _require(holds: bool, name: str) -> None:
    if not holds:
        raise ValueError(f"{name} cannot be right")
