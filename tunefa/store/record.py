"""A record: the config that won a search, its time, and how it was found."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Literal, get_args

from tunefa.errors import TunefaError
from tunefa.spec.strict_yaml import Fields
from tunefa.spec.trial import MODES, Mode, Resources
from tunefa.spec.workload import Workload
from tunefa.store import added_parameters
from tunefa.store.source_hashes import same_code

_MODES: tuple[Mode, ...] = ("eager", "step", "graph")
"""The modes, the best first: the runtime calls from Python, and a program that captures a call does
so between others."""
SCHEMA = 2
"""The version of documents with records. It changes when older readers would misread them."""

ObjectiveKind = Literal["measured", "predicted", "modelled", "estimated", "replayed"]
"""The source of a time. `measured`: on a device. `predicted`: by the cost model of GPUs.
`modelled`: by the latency model of NPUs, for a config that fits according to the compiler.
`estimated`: the same, for a config that fits according to formulas. `replayed`: from a journal;
such a record is shown, but not kept."""

# Names of kernels and archs become parts of paths and of generated source, and may come from an
# imported file. So they have no separators, no leading dot, and nothing special to a shell.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

_NPU_FIELDS = ("ub_bytes", "l1_bytes", "l0c_bytes", "workspace_bytes")


@dataclass(frozen=True)
class Record:
    """The winner of one search.

    A record has plain data only (numbers, strings, lists, dicts with string keys), which are copied
    when it is made. So every record can be written as YAML or JSON, and is equal when read back.

    Raises TunefaError if a name is not one word, if a measured record has no device or another
    record has one, if a time is not positive, if a config value is not a number, string or boolean,
    or if the provenance has no `source_hash` or no ISO-8601 `date`.
    """

    kernel: str
    arch: str
    device: str | None
    """The driver's name, such as `NVIDIA H200`; None if nothing was measured."""
    workload: Workload
    config: dict[str, Any]
    objective: ObjectiveKind
    median_us: float
    """Median latency of one launch; the cost model's, if nothing was measured."""
    tflops: float
    resources: Resources | None
    certificate: dict[str, Any] | None
    """The distance of the config from the best of its space, by the race; None without a race."""
    provenance: dict[str, Any]
    """tunefa, triton, torch, compiler, driver, source_hash, date (ISO-8601 UTC), trials, check. If
    nothing was measured, also model, the version of the model that predicted the time, and learned,
    the id of what it had learned from measurements, if it had."""
    mode: Mode | None = None
    """The way launches were timed, see `tunefa.spec.trial.Mode`; None if nothing was measured.
    Older measured records have no mode: they were timed as graphs."""

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
        """The time when it was made, in seconds since 1970."""
        return _timestamp(self.provenance["date"])

    @property
    def source_hash(self) -> str:
        """The hash of the kernel's source; of hashes with equal machine code, the newest."""
        return same_code(self.kernel, self.provenance["source_hash"])

    @cached_property
    def origin(self) -> tuple[object, ...]:
        """The key of all copies of one record, whatever was noted in their provenance since."""
        made = (self.provenance["source_hash"], self.provenance["date"])
        what = (self.kernel, self.arch, self.device, self.workload, self.objective, self.mode)
        return *what, *made, *sorted(self.config.items())

    @property
    def model_version(self) -> int:
        """The version of the model that predicted its time; 0 for one from before versions, and for
        a time that was measured."""
        version = None if self.objective == "measured" else self.provenance.get("model")
        return version if type(version) is int else 0

    @property
    def model(self) -> tuple[int, str | None]:
        """The model that predicted its time: `model_version`, and the id of what it had learned
        from measurements, None if nothing. Times of different models are not comparable."""
        learned = None if self.objective == "measured" else self.provenance.get("learned")
        return self.model_version, learned if isinstance(learned, str) else None

    @property
    def is_anchored(self) -> bool:
        """Whether it was predicted, and compared with a config that is known to be good."""
        return self.objective == "predicted" and "known" in (self.certificate or {})

    @property
    def rank(self) -> tuple[bool, bool, int, int, float, float]:
        """The sort key, the best first.

        Measured before others, compiled before estimated, eager before step and that before graph,
        the newest model of time first, then the lowest median, then the newest. Of one version,
        only times of models that had learned the same are comparable: `results.current` leaves out
        all others.
        """
        measured, estimated = self.objective == "measured", self.objective == "estimated"
        mode, model = _MODES.index(self.mode or "eager"), -self.model_version
        return not measured, estimated, mode, model, self.median_us, -self.timestamp

    @property
    def functions(self) -> str:
        """The hash of the user's functions that its kernel computes beside the workload, as
        FlexAttention's does; "" for kernels of tunefa. It ends the kernel's name, behind a dot."""
        return self.kernel.partition(".")[2]

    @property
    def summary(self) -> str:
        """One line for reports, and for comments in generated files."""
        where = f"{self.arch}, no device" if self.device is None else f"{self.device} ({self.arch})"
        return (
            f"{self.kernel} on {where}, {self.objective}, "
            f"{self.median_us:.1f} us, {self.tflops:.1f} TFLOP/s"
        )

    @property
    def not_certified(self) -> str | None:
        """The reason that a record has no certificate; None if it has one, or was not measured."""
        if self.objective != "measured":
            return None
        return "no race" if self.certificate is None else self.certificate.get("refused")

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data in the order of the fields, without those that are None."""
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
            "resources": None if self.resources is None else _resources_data(self.resources),
            "certificate": self.certificate,
            "provenance": self.provenance,
        }
        return {key: value for key, value in data.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Any, where: str = "record") -> Record:
        """Returns the record that `to_dict` wrote. `where` (file and line) begins each message.

        Raises TunefaError if a field is missing, unknown or has the wrong type, and where the class
        itself raises it.
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
            raise TunefaError(f"{fields.at('objective')}: a replayed result cannot be a record")
        values |= added_parameters.of_record(**values)
        workload = fields.take("workload", str)
        resources = fields.take("resources", (dict, type(None)), None)
        fields.done()
        if resources is not None:
            resources = _resources(resources, where)
        place = fields.at("workload")
        try:
            parsed = Workload.parse(workload)
            place = where  # the next error may be in any field
            return cls(workload=parsed, resources=resources, **values)
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
        **{name: fields.take(name, optional_int, None) for name in _NPU_FIELDS},
    )
    fields.done()
    return resources


def _resources_data(resources: Resources) -> dict[str, int | None]:
    """Returns plain data, without fields that are None and that not every record has."""
    optional = (*_NPU_FIELDS, "planned", "code")
    return {k: v for k, v in asdict(resources).items() if v is not None or k not in optional}


def _timestamp(date: Any) -> float:
    """Returns the seconds since 1970 of an ISO-8601 date, which is in UTC if it has no offset."""
    if not isinstance(date, str):
        raise TunefaError(f"provenance.date {date!r} must be an ISO-8601 date in quotes")
    try:
        # Python 3.10's fromisoformat does not accept "Z".
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
    """Returns a deep copy of builtin types only: YAML cannot keep a numpy float or a tuple."""
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
