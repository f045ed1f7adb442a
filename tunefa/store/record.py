"""A result worth keeping: which config of which kernel won, where, and how well that is known."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, Literal, get_args

from tunefa.errors import TunefaError
from tunefa.spec.strict_yaml import Fields
from tunefa.spec.trial import MODES, Mode, Resources
from tunefa.spec.workload import Workload
from tunefa.store.source_hashes import same_code

SCHEMA = 2
"""Version of the documents that hold records; raised when older readers would misread them."""

ObjectiveKind = Literal["measured", "predicted", "modelled", "estimated", "replayed"]
"""Where a time comes from: measured on a device; predicted by the cost model of GPUs; from the
latency model of NPUs, `modelled` where the compiler says that the config fits and `estimated` where
formulas do; replayed from a journal, which is shown and not kept."""

# Both become part of a file's path and of generated source, and may come from an imported file:
# no separators, no leading dot, nothing a shell or a comment would read as more than a word.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


_OF_NPUS = ("ub_bytes", "l1_bytes", "l0c_bytes", "workspace_bytes")


@dataclass(frozen=True)
class Record:
    """One winner of one search.

    Holds plain data only (numbers, strings, lists, dicts with string keys), deep-copied on
    construction, so every record can be written as YAML or JSON and read back equal.

    Raises `TunefaError` for a name that is not one word, a measured record without its device or a
    predicted one with, a time that is not positive, a config value that is not a number, string or
    boolean, or a provenance without `source_hash` and an ISO-8601 `date`.
    """

    kernel: str
    arch: str
    device: str | None
    """As the driver names it, `NVIDIA H200`; None where nothing was measured."""
    workload: Workload
    config: dict[str, Any]
    objective: ObjectiveKind
    median_us: float
    """Median latency of one launch; the model's estimate in a predicted record."""
    tflops: float
    resources: Resources | None
    certificate: dict[str, Any] | None
    """What bounds the claim that no other config of the space is faster; None when nothing does."""
    provenance: dict[str, Any]
    """tunefa, triton, torch, compiler, driver, source_hash, date (ISO-8601 UTC), trials, check."""
    mode: Mode | None = None
    """How launches were timed, see `tunefa.measure.timing`; None for a predicted
    record. A measured one without a mode is from before there were modes, when only the device's
    time counted."""

    def __post_init__(self) -> None:
        self._check_identity()
        for field in ("median_us", "tflops"):
            value = float(getattr(self, field))
            if not (math.isfinite(value) and value > 0):
                raise TunefaError(f"{field} {value} of a record must be a positive number")
            object.__setattr__(self, field, value)
        if self.mode is None and self.objective == "measured":
            object.__setattr__(self, "mode", "graph")
        for field in ("config", "certificate", "provenance"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, _plain_mapping(getattr(self, field), field))
        for name, value in self.config.items():
            if not isinstance(value, (bool, int, float, str)):
                raise TunefaError(f"config.{name} must be a number, a string or a boolean")
        if not isinstance(self.provenance.get("source_hash"), str):
            raise TunefaError("provenance.source_hash, the hash of the kernel's source, is missing")
        _timestamp(self.provenance.get("date"))

    def _check_identity(self) -> None:
        for field in ("kernel", "arch"):
            if not _NAME.fullmatch(getattr(self, field)):
                raise TunefaError(
                    f"{field} {getattr(self, field)!r} of a record must be one word of letters, "
                    "digits, '_', '-' and '.'"
                )
        if self.objective not in get_args(ObjectiveKind):
            known = ", ".join(each for each in get_args(ObjectiveKind) if each != "replayed")
            raise TunefaError(f"objective {self.objective!r} must be one of {known}")
        kept = self.objective != "replayed"
        if kept and (self.device is None) == (self.objective == "measured"):
            raise TunefaError(
                f"device {self.device!r} of a {self.objective} record: a measured record names its "
                "device, another has none"
            )
        timed = self.objective in ("measured", "replayed")
        if self.mode not in (None, *MODES) or (self.mode and not timed):
            raise TunefaError(
                f"mode {self.mode!r} of a {self.objective} record: a measured one has "
                f"{' or '.join(MODES)}, another none"
            )
        if self.device is not None and not (self.device.strip() and self.device.isprintable()):
            raise TunefaError(f"device {self.device!r} of a record must be printable text")

    @property
    def timestamp(self) -> float:
        """When it was made, in seconds since 1970."""
        return _timestamp(self.provenance["date"])

    @property
    def source_hash(self) -> str:
        """The hash of the kernel's source, or a later one of the same machine code."""
        return same_code(self.kernel, self.provenance["source_hash"])

    @property
    def rank(self) -> tuple[bool, bool, bool, float, float]:
        """Sort key, best first: measured, compiled, eager (as a program calls it), lowest median,
        newest."""
        measured, estimated = self.objective == "measured", self.objective == "estimated"
        return not measured, estimated, self.mode == "graph", self.median_us, -self.timestamp

    @property
    def summary(self) -> str:
        """One line for people and for comments in generated files."""
        where = f"{self.arch}, no device" if self.device is None else f"{self.device} ({self.arch})"
        return (
            f"{self.kernel} on {where}, {self.objective}, "
            f"{self.median_us:.1f} us, {self.tflops:.1f} TFLOP/s"
        )

    @property
    def not_certified(self) -> str | None:
        """Why no race bounds a measured time; None where one does, and where nothing is claimed."""
        if self.objective != "measured":
            return None
        return "no race" if self.certificate is None else self.certificate.get("refused")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the order of the fields; what is None is left out."""
        data = {
            "kernel": self.kernel,
            "arch": self.arch,
            "device": self.device,
            "workload": str(self.workload),
            "config": dict(self.config),
            "objective": self.objective,
            "mode": self.mode,
            "median_us": self.median_us,
            "tflops": self.tflops,
            "resources": None if self.resources is None else _said(self.resources),
            "certificate": self.certificate,
            "provenance": self.provenance,
        }
        return {key: value for key, value in data.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Any, where: str = "record") -> Record:
        """The record that `to_dict` wrote; `where` (file and line) begins every error.

        Raises `TunefaError` for a missing or unknown field, a wrong type and all that the class
        itself refuses.
        """
        fields = Fields(data, where)
        values = {
            "kernel": fields.take("kernel", str),
            "arch": fields.take("arch", str),
            "device": fields.take("device", (str, type(None)), None),
            "config": fields.take("config", dict),
            "objective": fields.take("objective", str),
            "mode": fields.take("mode", (str, type(None)), None),
            "median_us": fields.take("median_us", float),
            "tflops": fields.take("tflops", float),
            "certificate": fields.take("certificate", (dict, type(None)), None),
            "provenance": fields.take("provenance", dict),
        }
        if values["objective"] == "replayed":
            raise TunefaError(f"{fields.at('objective')}: a replayed result is no record to keep")
        workload = fields.take("workload", str)
        resources = fields.take("resources", (dict, type(None)), None)
        fields.done()
        if resources is not None:
            resources = _resources(resources, where)
        place = fields.at("workload")
        try:
            problem = Workload.parse(workload)
            place = where  # from here on it may be any field
            return cls(workload=problem, resources=resources, **values)
        except TunefaError as error:
            raise TunefaError(f"{place}: {error}") from None


def _resources(data: Any, where: str) -> Resources:
    fields = Fields(data, where)
    optional_int = (int, type(None))
    resources = Resources(
        smem_bytes=fields.take("smem_bytes", optional_int, None),
        registers=fields.take("registers", optional_int, None),
        spill_bytes=fields.take("spill_bytes", optional_int, None),
        stack_bytes=fields.take("stack_bytes", optional_int, None),
        **{name: fields.take(name, optional_int, None) for name in _OF_NPUS},
    )
    fields.done()
    return resources


def _said(resources: Resources) -> dict[str, int | None]:
    """Without what only other kinds of chips have."""
    of_npus = (*_OF_NPUS, "planned")
    return {k: v for k, v in asdict(resources).items() if v is not None or k not in of_npus}


def _timestamp(date: Any) -> float:
    """Seconds since 1970 of an ISO-8601 date; without an offset it is taken as UTC."""
    if not isinstance(date, str):
        raise TunefaError(f"provenance.date {date!r} must be an ISO-8601 date in quotes")
    try:
        # Python 3.10's fromisoformat does not know the "Z" that 3.11's does.
        moment = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", date))
    except ValueError:
        raise TunefaError(
            f"provenance.date {date!r} is not an ISO-8601 date such as 2025-01-31T12:00:00+00:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds()


def _plain_mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TunefaError(f"{where} of a record must be a mapping, not {value!r}")
    if not all(isinstance(key, str) for key in value):
        raise TunefaError(f"{where} of a record must have strings as keys: {list(value)!r}")
    return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}


def _plain(value: Any, where: str) -> Any:
    """A deep copy made of builtin types only: a numpy float or a tuple would not survive YAML."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return _plain_mapping(value, where)
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    for builtin in (str, int, float):
        if isinstance(value, builtin):
            if isinstance(value, float) and not math.isfinite(value):
                raise TunefaError(f"{where} of a record is {value}; JSON has no such number")
            return builtin(value)
    raise TunefaError(f"{where} of a record is a {type(value).__name__}, not plain data")
