"""The peers that tunefa is compared with.

A peer is a `Peer` in the tuple `PEERS` of a module in this folder, found by listing it. No module
imports its library, nor PyTorch, before a call is made.
"""

from __future__ import annotations

import importlib
import pkgutil

from tunefa.errors import unknown
from tunefa.measure.peer import Call, Make, Peer, Tensors, Unserved

__all__ = ["Call", "Make", "Peer", "Tensors", "Unserved", "load", "names"]


def names() -> list[str]:
    """Returns the names of all peers. PyTorch's own come last, as two of them hold the scores of
    all heads in memory, which others would lack."""
    return list(_all())


def load(name: str) -> Peer:
    """Returns a peer. Raises TunefaError, which lists the known ones, for other names."""
    found = _all()
    if name not in found:
        raise unknown("peer", name, found)
    return found[name]


def _all() -> dict[str, Peer]:
    modules = (
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    )
    peers: list[Peer] = [peer for module in modules for peer in module.PEERS]
    return {peer.name: peer for peer in sorted(peers, key=lambda peer: peer.needs == "torch")}
