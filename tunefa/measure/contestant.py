"""A contestant that was checked, ready to be timed: its call, or the replay of a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tunefa.measure.backward_contest import TrueGradients
from tunefa.measure.peer import Call
from tunefa.measure.score import Score
from tunefa.measure.timing import HostStopwatch, Stopwatch
from tunefa.measure.verdict import Truth, Verdict

AnyTruth = Truth | TrueGradients


@dataclass
class Contestant:
    """One contestant of a contest, and its samples so far."""

    call: Call
    """It owns the tensors that a CUDA graph reads."""
    timed: Call
    """The call, or the replay of its graph."""
    captured: bool
    verdict: Verdict
    samples_us: list[float] = field(default_factory=list)

    def score(self) -> Score:
        """The times and errors, once it was timed."""
        samples = tuple(round(sample, 4) for sample in self.samples_us)
        return Score(samples, self.verdict.error, self.verdict.worst_row, self.captured)


def checked(call: Call, truth: AnyTruth, stopwatch: Stopwatch | HostStopwatch) -> Contestant | str:
    """Returns the contestant, or the reason why its output is wrong. Raises what the call raises.

    In modes graph and step its call is captured if that is possible.
    """
    truth.spoil()
    verdict = truth.verdict(call())
    if verdict.why_wrong is not None:
        return verdict.why_wrong
    if isinstance(stopwatch, Stopwatch) and stopwatch.mode != "eager":
        replay = _captured(call, truth, stopwatch)
        if replay is not None:
            return Contestant(call, replay, True, verdict)
        call()
        torch.cuda.synchronize()
        return Contestant(call, call, False, verdict)
    return Contestant(call, stopwatch.prepared(call), False, verdict)


def _captured(call: Call, truth: AnyTruth, stopwatch: Stopwatch) -> Call | None:
    """Returns the replay of a graph of the call; None if the call cannot be captured, or if the
    replay does not write the output, as the graph of a call with a stream of its own."""
    outputs: list[Any] = []

    def kept() -> None:
        outputs[:] = [call()]

    try:
        # A capture that fails leaves its own stream behind as the current one.
        with torch.cuda.stream(torch.cuda.current_stream()):
            replay = stopwatch.prepared(kept)
            for each in outputs[0] if isinstance(outputs[0], tuple) else outputs:
                each.fill_(float("nan"))
            replay()
            return replay if truth.verdict(outputs[0]).why_wrong is None else None
    except Exception:  # the call waits for the device, for example
        torch.cuda.synchronize()
        _renew_generator()
        return None


def _renew_generator() -> None:
    """Gives PyTorch's generator a new state. A capture that failed may leave the old one as if it
    went on: every draw then raises "Offset increment outside graph capture", in Inductor too."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(torch.Generator("cuda").graphsafe_get_state())
