"""The peer: another library's attention, which is timed beside tunefa's.

A peer is asked only for what its library documents. What it does not serve it says beforehand, in
one sentence, so that no row of a comparison depends on how a library fails.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Literal

from tunefa.spec.workload import Workload

Call = Callable[[], Any]
"""Computes the attention once, on tensors that it holds, and returns the output."""
Tensors = tuple[Any, ...]
"""(q, k, v) as (batch, heads, seqlen, head_dim) views, with (descale_q, descale_k, descale_v) at
the end for e4m3, (batch, heads_kv) each and equal in all elements. Of a varlen workload (q, k, v,
cu_seqlens_q, cu_seqlens_k), with (rows, heads, head_dim) tensors."""
Make = Callable[[Workload, Tensors], Call]
"""Returns the call for a workload and its tensors. The call returns a view of q's shape, with
head_dim_v. Raises `Unserved`, or whatever the library raises."""


class Unserved(Exception):
    """A peer does not serve the workload; the message is the reason, in one sentence."""


@dataclass(frozen=True)
class Peer:
    """One way of another library to compute attention."""

    name: str
    """The name on the command line and in documents."""
    title: str
    """The name in tables."""
    make: Make
    needs: str
    """The module that it imports, such as `flash_attn.cute`."""
    package: str = "torch"
    """The package that has the module, as pip knows it."""
    backward: Literal["ordered", "unordered"] | None = None
    """The way its backward pass adds: `ordered` where it can be deterministic, that is equal to the
    last bit in every run. None where it has no backward pass, or none that is called here."""

    def why_absent(self) -> str | None:
        """Says that the library is not installed, and how it would be; None if it is.

        Nothing but the outermost package of `needs` is looked up by its name, and nothing is
        imported, which could take seconds.
        """
        if _is_installed(self.needs):
            return None
        return f"{self.package} is not installed: pip install {self.package}"


def _is_installed(module: str) -> bool:
    """Whether a module can be found, without an import of the packages around it."""
    outer, *inner = module.split(".")
    spec: ModuleSpec | None = importlib.util.find_spec(outer)
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return False
        # A finder of paths takes the last part of a dotted name.
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec is not None


_REASONS: Mapping[str, str] = {
    "varlen": "it is not called for packed sequences",
    "softcap": "it has no soft-cap",
    "window": "it has no sliding windows",
    "window on both sides": "its windows have no keys beyond the diagonal",
    "lower right": "its causal mask is aligned to the top left, so seqlen_q must equal seqlen_k",
    "unequal head dims": "its heads of Q and of V must be equally wide",
    "grouped heads": "it has no grouped heads",
}
"""The features that not every peer has, and what is said of one without."""


def features(workload: Workload) -> list[str]:
    """Returns the features among those that `require` knows which a workload asks for."""
    left, right = workload.band
    is_windowed = left is not None or (right is not None and not workload.causal)
    asked = {
        "varlen": workload.varlen,
        "softcap": workload.softcap,
        "window": is_windowed,
        "window on both sides": is_windowed and not workload.causal,
        "lower right": workload.causal and workload.seqlen_q != workload.seqlen_k,
        "unequal head dims": workload.head_dim != workload.head_dim_v,
        "grouped heads": workload.group > 1,
    }
    return [name for name, is_asked in asked.items() if is_asked]


def require(workload: Workload, has: Collection[str], dtypes: Collection[str]) -> None:
    """Raises Unserved for the first thing that a workload asks for and a peer does not have.

    `has` are the features of the peer: some of "varlen", "softcap", "window", "window on both
    sides", "lower right", "unequal head dims" and "grouped heads".
    """
    unknown = set(has) - _REASONS.keys()
    assert not unknown, f"no feature {unknown}"
    if workload.dtype not in dtypes:
        raise Unserved(f"it has no {workload.dtype}")
    for name in features(workload):
        if name not in has:
            raise Unserved(_REASONS[name])


def sequences_first(tensors: Tensors) -> Tensors:
    """Returns q, k and v as contiguous (batch, seqlen, heads, head_dim) tensors."""
    return tuple(tensor.transpose(1, 2).contiguous() for tensor in tensors[:3])


def heads_first(tensors: Tensors) -> Tensors:
    """Returns q, k and v as contiguous (batch, heads, seqlen, head_dim) tensors."""
    return tuple(tensor.contiguous() for tensor in tensors[:3])
