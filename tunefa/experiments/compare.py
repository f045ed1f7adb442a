"""The comparison of tunefa with its peers on one workload, in a process of its own.

Some libraries end the process that calls them, or leave its device unusable. So a contest runs in a
worker process. If a contestant takes the process with it, the contest is held again without that
contestant, whose row says what happened; the tensors come from the same seed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefa.compile.workers import ProcessLost, TaskRaised, Workers
from tunefa.experiments import ours
from tunefa.experiments.document import Row
from tunefa.measure import peers
from tunefa.measure.peer import Call, Peer, Tensors
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Maker, Settings, Step

NAME = "compare"
"""The name of the experiment in documents, and of the command."""
OURS = "tunefa"
STEP_LIMIT_S = 600.0
"""The time limit of one step of a contest: a peer may compile for minutes."""
_NO_LIMIT_S = 7 * 86400.0
_POLL_S = 0.2
Makers = Callable[[Sequence[str], "str | None"], "Mapping[str, Maker]"]
"""Returns contestants by their names; a function of a module, as another process calls it."""
Tell = Callable[["Step"], None]


def contestants(names: Sequence[str], kernel: str | None) -> Mapping[str, Maker]:
    """Returns tunefa and peers by their names; tunefa runs the default of `kernel` if it is given.

    Raises TunefaError for unknown names.
    """
    own = ours.maker() if kernel is None else ours.default_of(kernel)
    return {name: own if name == OURS else _of_peer(peers.load(name)) for name in names}


def _of_peer(peer: Peer) -> Maker:
    """Returns what makes a peer's call, of either pass."""

    def make(workload: Workload, tensors: Tensors) -> Call:
        if workload.op != "bwd":
            return peer.make(workload, tensors)
        from tunefa.measure import backward_contest

        return backward_contest.call_of(peer, workload, tensors)

    return make


def present(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the peers among `names` that are installed, and by name why the others are not.

    Raises TunefaError for unknown names.
    """
    absent = {name: why for name in names if (why := peers.load(name).why_absent()) is not None}
    return [name for name in names if name not in absent], absent


def versions(names: Sequence[str]) -> dict[str, str]:
    """Returns the versions of the peers' packages, by package, without PyTorch's."""
    found = {}
    for package in {peers.load(name).package for name in names} - {"torch"}:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return dict(sorted(found.items()))


class Comparisons:
    """Holds contests in a worker process, one after the other. A context manager."""

    def __init__(
        self, settings: Settings, kernel: str | None = None, makers: Makers = contestants
    ) -> None:
        """`kernel` is the name of the kernel whose default config tunefa runs; None stands for
        what the runtime chooses."""
        self._settings = settings
        self._kernel = kernel
        self._makers = makers
        self._workers = Workers(1)

    def __enter__(self) -> Comparisons:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.stop()

    def row(self, workload: Workload, names: Sequence[str], tell: Tell) -> Row:
        """Returns the results of tunefa and these peers: those of `Contest.to_data`, with what
        tunefa ran (`ran`) and the `ceilings` of the device.

        Raises TunefaError where nothing can be measured.
        """
        names = [OURS, *names]
        lost: dict[str, str] = {}
        while True:
            result, last = self._attempt(workload, names, tell)
            if not isinstance(result, str):
                result["left_out"] |= lost
                return result
            self._workers.renew()
            if last is None or not last.contestant or len(names) == 1:
                lost |= dict.fromkeys(names, f"the contest ended early: {result}")
                return self._empty(workload, lost)
            lost[last.contestant] = result
            names.remove(last.contestant)

    def _empty(self, workload: Workload, left_out: dict[str, str]) -> Row:
        from tunefa.measure.contest import Contest

        found = Contest(workload, self._settings.mode, {}, left_out)
        return {**found.to_data(), "ran": None, "ceilings": None}

    def _attempt(
        self, workload: Workload, names: Sequence[str], tell: Tell
    ) -> tuple[Row | str, Step | None]:
        """Returns the results, or how the process was lost; and the last step that was begun."""
        with tempfile.TemporaryDirectory(prefix="tunefa-") as folder:
            trail = _Trail(Path(folder) / "steps")
            arguments = (str(workload), names, self._kernel, self._settings, self._makers)
            future = self._workers.submit(_hold, (*arguments, str(trail.path)), _NO_LIMIT_S)
            while not wait([future], timeout=_POLL_S).done:
                trail.follow(tell)
                if trail.waited_s > STEP_LIMIT_S:
                    return f"it did not end within {STEP_LIMIT_S:.0f} s", trail.last
            trail.follow(tell)
            return _result(future), trail.last


class _Trail:
    """The steps of a contest, which its process writes to a file: the last one that was begun is
    known even if the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: Step | None = None
        self._read = 0
        self._since = time.monotonic()
        path.touch()

    @property
    def waited_s(self) -> float:
        """The time since the last step began, as far as it is known."""
        return time.monotonic() - self._since

    def follow(self, tell: Tell) -> None:
        """Tells the steps that were written since the last call."""
        from tunefa.measure.contest import Step

        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        for line in whole[self._read :]:
            self.last = Step(**json.loads(line))
            tell(self.last)
        if len(whole) > self._read:
            self._since = time.monotonic()
        self._read = len(whole)


def _result(future: Future[Any]) -> Row | str:
    """The results of a contest, or how its process was lost. Raises TunefaError."""
    try:
        result: Row | str = future.result()
    except ProcessLost as error:
        return f"its process {error}"
    except TaskRaised as error:
        raise error.__cause__ or error from None
    return result


def _hold(
    workload_text: str,
    names: Sequence[str],
    kernel: str | None,
    settings: Settings,
    *more: Any,
) -> Row | str:
    """Holds one contest in this process; returns why, in a sentence, if it came to no end."""
    import torch

    from tunefa.measure import ceilings, contest

    makers, trail = more
    workload = Workload.parse(workload_text)
    with open(trail, "a", encoding="utf-8") as file:

        def tell(step: Step) -> None:
            file.write(json.dumps(asdict(step)) + "\n")
            file.flush()

        try:
            found = contest.measured(workload, makers(names, kernel), settings, tell)
        except contest.ContextLost as lost:
            return lost.reason
        except torch.OutOfMemoryError:  # contestants that run out of memory are only left out
            why = "the inputs and the exact output do not fit into the device's memory"
            found = contest.Contest(workload, settings.mode, {}, dict.fromkeys(names, why))
        except RuntimeError as error:  # PyTorch's, of an uncaptured call in the rounds
            return f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
    row = {**found.to_data(), "ran": _ran(workload, kernel) if OURS in found.scores else None}
    if settings.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()  # the ceilings need 3 GB
    try:
        row["ceilings"] = asdict(ceilings.measured(workload.dtype, settings.device))
    except torch.OutOfMemoryError:  # other processes are on the device
        row["ceilings"] = None
    return row


def _ran(workload: Workload, kernel: str | None) -> dict[str, Any] | None:
    """The kernel and the config of tunefa's last call, and why it was chosen."""
    import torch

    if kernel is None and workload.op == "bwd":
        return ours.backward_ran(workload, torch.device("cuda"))
    if kernel is None:
        return ours.ran()
    config = ours.case_of(kernel, workload, torch.device("cuda")).default()
    return {"kernel": kernel, "config": config, "why": "the default, as a kernel was named"}
