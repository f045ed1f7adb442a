"""A contest between backward passes: the peers' calls, and the verdict on gradients.

A peer's backward pass is that of its differentiable forward pass, through torch.autograd.grad. The
forward pass runs once, before anything is timed, on the stream on which PyTorch captures CUDA
graphs: autograd launches the gradients on the stream of the forward pass, and a capture may contain
no other stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tunefa.measure import ops, reference
from tunefa.measure.comparison import ACCURACY_MARGIN, TOLERANCE
from tunefa.measure.gradients import Gradients, gradients
from tunefa.measure.peer import Call, Peer, Tensors, Unserved
from tunefa.measure.verdict import FACTOR, Verdict
from tunefa.spec.workload import Workload

_FIRST_OF_PACKED = 10
"""The place of cu_seqlens_q in the tensors of the op `bwd`."""


def call_of(peer: Peer, workload: Workload, tensors: Tensors) -> Call:
    """Returns a peer's backward pass on the tensors of the op `bwd`, which returns (dq, dk, dv).

    Raises Unserved where the peer has none for the workload, or whatever the library raises.
    """
    if peer.backward is None:
        raise Unserved("its backward pass is not called")
    if workload.deterministic and peer.backward != "ordered":
        raise Unserved("it has no deterministic backward pass here")
    q, k, v, _, _, dout = tensors[:6]
    leaves = tuple(each.detach().requires_grad_() for each in (q, k, v))
    with torch.enable_grad(), _on_capture_stream(q), _reusable_graphs():
        out = peer.make(workload, (*leaves, *tensors[_FIRST_OF_PACKED:]))()
    given = torch.empty_like(out)  # in the order of memory that the library chose
    given.copy_(dout)

    def call() -> tuple[Tensor, ...]:
        with _in_fixed_order(workload.deterministic):
            return torch.autograd.grad(out, leaves, given, retain_graph=True)

    return call


@contextlib.contextmanager
def _on_capture_stream(tensor: Tensor) -> Iterator[None]:
    """Runs on the stream on which torch.cuda.graph captures."""
    if not tensor.is_cuda:
        yield
        return
    graph = torch.cuda.graph
    if graph.default_capture_stream is None:
        graph.default_capture_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream, current = graph.default_capture_stream, torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


@contextlib.contextmanager
def _reusable_graphs() -> Iterator[None]:
    """Lets compiled functions keep what their backward pass reads, as it runs more than once."""
    import torch._functorch.config as settings

    with settings.patch(donated_buffer=False):
        yield


@contextlib.contextmanager
def _in_fixed_order(asked: bool) -> Iterator[None]:
    """Lets PyTorch add in a fixed order, if that is asked for."""
    before = torch.are_deterministic_algorithms_enabled()
    if not asked or before:
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@dataclass(frozen=True)
class TrueGradients:
    """The exact gradients of some heads: of the first sequence, or of all packed ones."""

    exact: tuple[Tensor, ...]
    """dq, dk and dv in fp64, of the shapes of `parts` of the outputs."""
    parts: tuple[tuple[slice, slice], ...]
    shapes: tuple[tuple[int, ...], ...]
    """The shapes of whole outputs."""
    dtype: torch.dtype
    limit: float

    @classmethod
    def of(cls, workload: Workload, tensors: Tensors) -> TrueGradients:
        """Computes the gradients for two groups of query heads, or for the only one."""
        heads = min(workload.heads, 2 * workload.group)
        first = slice(None) if workload.varlen else slice(1)
        part, part_kv = (first, slice(heads)), (first, slice(heads // workload.group))
        q, k, v, _, _, dout, dlse = tensors[:7]
        asked = ops.of(workload).attention_inputs(workload, tensors)
        asked = replace(asked, q=q[part].double(), k=k[part_kv].double(), v=v[part_kv].double())
        exact_out, exact_lse = reference.attention(asked, torch.float64)
        of_heads = (slice(heads),) if workload.varlen else part
        given = Gradients(exact_out, exact_lse, dout[part].double(), dlse[of_heads].double())
        exact = gradients(asked, given.out, given.lse, given.grad_out, given.grad_lse)
        limit = FACTOR * TOLERANCE[workload.dtype] * ACCURACY_MARGIN[workload.accuracy]
        shapes = tuple(tuple(each.shape) for each in (q, k, v))
        return cls(exact, (part, part_kv, part_kv), shapes, q.dtype, limit)

    def spoil(self) -> None:
        """Leaves NaN in the memory that the next outputs are likely to get."""
        device = self.exact[0].device
        for shape in self.shapes:
            torch.full(shape, float("nan"), dtype=self.dtype, device=device)

    def verdict(self, outputs: tuple[Tensor, ...]) -> Verdict:
        """Compares whole gradients: the largest error of the three, and of one row of them.

        A row's error is relative to its own norm, or to that of an average row if this is larger: a
        query that sees one key has a gradient of 0. Raises ValueError for wrong shapes.
        """
        errors, rows = [], []
        for out, exact, part, shape in zip(
            outputs, self.exact, self.parts, self.shapes, strict=True
        ):
            if tuple(out.shape) != shape:
                raise ValueError(f"a gradient has the shape {tuple(out.shape)}, not {shape}")
            off = (out[part].double() - exact).norm(dim=-1)
            sizes = exact.norm(dim=-1)
            average = sizes.square().mean().sqrt()
            errors.append(off.norm() / sizes.norm())
            rows.append((off / sizes.maximum(average)).max())
        error, worst = (float(torch.stack(each).max()) for each in (errors, rows))
        return Verdict(error, worst, self.limit)
