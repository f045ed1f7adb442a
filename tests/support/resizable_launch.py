"""Launches for all lengths, started as plans start them."""

from __future__ import annotations

from collections.abc import Sequence

from tunefa.compile.launch.resizable import ResizableLaunch, Resizing


def start(launch: ResizableLaunch, resizing: Resizing, addresses: Sequence[int]) -> None:
    """Starts a launch on tensors at these addresses, on the current stream of its device."""
    stream = launch.driver.current_stream(launch.entry.device)
    launch.start(stream, launch.written(*resizing), (*addresses,))
