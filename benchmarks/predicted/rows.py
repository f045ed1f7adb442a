"""The rows that predictions and measurements are written as: JSON lines, one for each workload."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tunefa.spec.trial import identity

Key = tuple[str, tuple[object, ...]]
"""A kernel's name, and the identity of a config."""


@dataclass(frozen=True)
class Answer:
    """A config of a kernel, and the time that the cost model expects on the device."""

    kernel: str
    config: dict[str, Any]
    expected_us: float
    low_us: float
    """The lower end of the 90 % interval."""
    high_us: float
    why: str = ""

    @property
    def key(self) -> Key:
        """Equal for equal configs of one kernel."""
        return self.kernel, identity(self.config)


@dataclass(frozen=True)
class Prediction:
    """The configs that can be named for a workload without the device."""

    workload: str
    device: str
    """The driver's name, such as `NVIDIA H200`."""
    winner: Answer
    """The winner of a predicted search."""
    defaults: list[Answer]
    """The default of each kernel, that of the kernel which runs without any record first."""
    runtime: Answer
    """The config that the runtime chooses from the records."""
    made: dict[str, Any]
    """The options of the search, and the versions."""

    @property
    def answers(self) -> dict[str, Answer]:
        """All answers by their roles in a race."""
        first, *others = self.defaults
        found = {"predicted": self.winner, "runtime": self.runtime, "default": first}
        return found | {f"default of {each.kernel}": each for each in others}

    def __str__(self) -> str:
        """One line, for the progress of a run."""
        return f"{self.workload}: {self.winner.kernel}, expected {self.winner.expected_us:.1f} us"

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Prediction:
        """Reads the plain data of a prediction."""
        parts = {name: Answer(**data[name]) for name in ("winner", "runtime")}
        defaults = [Answer(**each) for each in data["defaults"]]
        return cls(**{**data, **parts, "defaults": defaults})


@dataclass(frozen=True)
class Racer:
    """A config in the race, and how slow it was."""

    roles: list[str]
    """`search` for the winner of the measured search, and the roles of `Prediction.answers`."""
    kernel: str
    config: dict[str, Any]
    median_us: float
    spread: float
    """The interquartile range of its times, relative to the median."""
    excess: float
    """The relative excess time over the best of the race, in the median over the rounds; 0.02 is
    2 %."""
    low: float
    """The lower end of the 95 % interval of the excess."""
    high: float


@dataclass(frozen=True)
class Measurement:
    """The race of one workload on the device."""

    prediction: Prediction
    racers: list[Racer]
    left_out: dict[str, str]
    """The reasons that roles are not in the race."""
    search: dict[str, Any]
    """The budget of the measured search, and what it used."""
    race: dict[str, Any]
    """Rounds, noise floor, and the state of the device."""
    made_with: dict[str, Any]

    @property
    def workload(self) -> str:
        """The workload's name."""
        return self.prediction.workload

    def __str__(self) -> str:
        """One line, for the progress of a run."""
        said = [f"{' and '.join(each.roles)} {each.excess:+.1%}" for each in self.racers]
        missing = [f"{role} left out ({why})" for role, why in self.left_out.items()]
        return f"{self.workload}: {', '.join(said + missing)}"

    def racer(self, role: str) -> Racer | None:
        """The racer with that role; None if it was left out."""
        return next((each for each in self.racers if role in each.roles), None)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Measurement:
        """Reads the plain data of a measurement."""
        racers = [Racer(**each) for each in data["racers"]]
        return cls(**{**data, "prediction": Prediction.of(data["prediction"]), "racers": racers})


def append(path: Path, row: Prediction | Measurement) -> None:
    """Writes a row at the end of a file, as one line of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def predictions(path: Path) -> list[Prediction]:
    """The predictions in a file, in its order; none if there is no file."""
    return [Prediction.of(each) for each in _lines(path)]


def measurements(path: Path) -> list[Measurement]:
    """The measurements in a file, in its order; none if there is no file."""
    return [Measurement.of(each) for each in _lines(path)]


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
