"""A call of FlexAttention, or of its gradients, as Inductor meets it: its tensors, the graphs of
the user's score and mask functions, and its options.

PyTorch traces both functions to graphs of pointwise operators, so equal functions have equal graphs
wherever they are defined. Numbers that a function captures stand in its graph; tensors that it
captures are arguments. Source of the arguments' places: torch/_higher_order_ops/flex_attention.py
of PyTorch 2.11 and 2.13.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tunefa.errors import TunefaError
from tunefa.runtime.argument_checks import DTYPES
from tunefa.spec.workload import Workload

OPERATORS: Mapping[str, Any] = {
    "fwd": torch.ops.higher_order.flex_attention,
    "bwd": torch.ops.higher_order.flex_attention_backward,
}
"""PyTorch's operators by op."""
_SCORE: Mapping[str, int] = {"fwd": 3, "bwd": 7}
_MASK: Mapping[str, int] = {"fwd": 4, "bwd": 9}
"""The place of the block mask, which scale, options, and the captured tensors of the score and of
the mask function follow."""
JOINT = 8
"""The place of the graph of the score function's gradients, for the op `bwd`."""
CHOSEN = (
    *("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2"),
    *("num_warps", "num_stages", "USE_TMA"),
)
"""The options that a user who chooses them has chosen by hand: PyTorch gives them no default."""
_DECODED_BELOW = 128
"""PyTorch computes fewer query rows with a kernel for decoding, which has other options."""


@dataclass(frozen=True)
class FlexCall:
    """One call: an op and its arguments, which are tensors, or nodes of a graph."""

    op: str
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, target: Any, arguments: tuple[Any, ...]) -> FlexCall | None:
        """Returns the call of an operator; None if it is another operator than FlexAttention's."""
        op = next((op for op, operator in OPERATORS.items() if target is operator), None)
        return None if op is None else cls(op, tuple(arguments))

    @property
    def qkv(self) -> tuple[Any, Any, Any]:
        """q, k and v, (batch, heads, seqlen, head_dim) each."""
        return self.arguments[0], self.arguments[1], self.arguments[2]

    @property
    def score(self) -> Any:
        """The graph of the score function: score, batch, head, row, key, captured tensors."""
        return self.arguments[_SCORE[self.op]]

    @property
    def block_mask(self) -> tuple[Any, ...]:
        """The block mask's tensors; behind them rows and keys of a block, and the mask function."""
        return tuple(self.arguments[_MASK[self.op]])

    @property
    def mask(self) -> Any:
        """The graph of the mask function: batch, head, row, key, captured tensors."""
        return self.block_mask[-1]

    @property
    def block_size(self) -> tuple[int, int]:
        """Query rows and keys of a block of the mask."""
        return self.block_mask[-3], self.block_mask[-2]

    @property
    def scale(self) -> float:
        """The factor of q @ k^T."""
        return float(self.arguments[_MASK[self.op] + 1])

    @property
    def options(self) -> dict[str, Any]:
        """The kernel options."""
        return dict(self.arguments[self.options_place])

    @property
    def options_place(self) -> int:
        """The place of the kernel options among the arguments."""
        return _MASK[self.op] + 2

    @property
    def results(self) -> tuple[str, ...]:
        """The results that are taken; the operators return others behind them."""
        if self.op == "bwd":
            return "dq", "dk", "dv"
        return ("out", "lse") if self.options.get("OUTPUT_LOGSUMEXP") else ("out",)

    @property
    def captured(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The tensors that the score function and the mask function capture."""
        first = self.options_place + 1
        return tuple(self.arguments[first]), tuple(self.arguments[first + 1])

    @property
    def chosen_by_user(self) -> list[str]:
        """The options that the user has chosen, for this op."""
        prefix = f"{self.op}_"
        named = [name.removeprefix(prefix) for name in self.options]
        return [name for name in named if name in CHOSEN]

    def with_options(self, options: Mapping[str, Any]) -> FlexCall:
        """Returns the call with these kernel options beside its own."""
        place, own = self.options_place, dict(self.options)
        changed = {**own, **options}
        return FlexCall(self.op, (*self.arguments[:place], changed, *self.arguments[place + 1 :]))


def workload_of(call: FlexCall) -> Workload | None:
    """Returns the lengths of a call as a workload that attends all keys; None where tunefa has no
    such workload: another dtype, a batch of keys that is broadcast, or too large a head dimension.

    Lengths that change from call to call count as those of the first one.
    """
    q, k, v = (_example(each) for each in call.qkv)
    if q is None or k is None or v is None or q.dtype not in DTYPES or q.dtype != k.dtype:
        return None
    (batch, heads, seqlen_q, head_dim), (batch_k, heads_kv, seqlen_k, _) = (
        tuple(_hint(size) for size in each.shape) for each in (q, k)
    )
    if batch_k != batch:
        return None
    sizes: dict[str, Any] = {
        "batch": batch,
        "heads": heads,
        "heads_kv": heads_kv,
        "seqlen_q": seqlen_q,
    }
    sizes |= {"seqlen_k": seqlen_k, "head_dim": head_dim, "head_dim_v": _hint(v.shape[-1])}
    try:
        return Workload(op=call.op, dtype=DTYPES[q.dtype], causal=False, **sizes)
    except TunefaError:
        return None


def why_not(call: FlexCall) -> str | None:
    """Returns why the options of a call cannot be tuned; None if they can."""
    workload = workload_of(call)
    if workload is None:
        return "its tensors are of no workload that tunefa knows"
    if call.options.get("BACKEND", "AUTO") not in ("AUTO", "TRITON"):
        return f"its BACKEND is {call.options['BACKEND']}"
    if workload.seqlen_q < _DECODED_BELOW and not call.options.get("FORCE_USE_FLEX_ATTENTION"):
        return (
            f"PyTorch computes fewer than {_DECODED_BELOW} query rows with another kernel, for "
            f"decoding"
        )
    return None


def function_hash(score: fx.GraphModule, mask: fx.GraphModule) -> str:
    """Returns 12 hex digits of a SHA-256 of the graphs of a score and a mask function."""
    said = "\n".join([*_operations(score.graph), "mask", *_operations(mask.graph)])
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def is_identity(score: fx.GraphModule) -> bool:
    """Whether a score function returns the score as it is."""
    nodes = [node for node in score.graph.nodes if node.op != "placeholder"]
    first = next(iter(score.graph.nodes))
    return len(nodes) == 1 and nodes[0].args[0] in (first, (first,), [first])


def calls_in(graph: fx.Graph) -> Iterator[tuple[fx.Node, FlexCall]]:
    """Yields the calls of FlexAttention in a graph, with their nodes; the graphs of functions stand
    in the place of the nodes that name them."""
    module = graph.owning_module
    for node in graph.nodes:
        call = FlexCall.of(node.target, node.args) if node.op == "call_function" else None
        if call is not None:
            yield node, FlexCall(call.op, _with_modules(call.arguments, module))


def _with_modules(value: Any, module: Any) -> Any:
    """The value with modules in place of nodes that get them."""
    if isinstance(value, (tuple, list)):
        return tuple(_with_modules(each, module) for each in value)
    if isinstance(value, fx.Node) and value.op == "get_attr":
        return getattr(module, str(value.target))
    return value


def _operations(graph: fx.Graph) -> Iterator[str]:
    """Yields a line for each operation that the output depends on, without the nodes' names."""
    needed, left = set[fx.Node](), [node for node in graph.nodes if node.op == "output"]
    while left:
        node = left.pop()
        if node not in needed:
            needed.add(node)
            left += node.all_input_nodes
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    names = {node: f"input{place}" for place, node in enumerate(inputs)}
    for node in graph.nodes:
        if node in needed and node.op != "placeholder":
            names[node] = f"v{len(names)}"
            arguments = _said(node.args, names), _said(dict(node.kwargs), names)
            yield f"{names[node]} {node.op} {node.target} {arguments}"


def _said(value: Any, names: Mapping[fx.Node, str]) -> str:
    """The arguments of an operation as text, the same on each device of a kind."""
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_said(each, names) for each in value)}]"
    if isinstance(value, dict):
        return str({name: _said(each, names) for name, each in sorted(value.items())})
    return value.type if isinstance(value, torch.device) else repr(value)


def _example(value: Any) -> torch.Tensor | None:
    """The tensor itself, or that which PyTorch notes for a node."""
    found = value.meta.get("val") if isinstance(value, fx.Node) else value
    return found if isinstance(found, torch.Tensor) else None


def _hint(size: Any) -> int:
    """A size as a number; for one that is symbolic, that of the first call."""
    return size if type(size) is int else int(size.node.hint)


def visible(call: FlexCall) -> float:
    """Returns the share of all pairs of query rows and keys whose block the mask leaves, 0 to 1."""
    q, k, _ = call.qkv
    counts = [each for each in (call.block_mask[2], call.block_mask[4]) if each is not None]
    blocks = sum(float(each.double().sum() / (each.shape[0] * each.shape[1])) for each in counts)
    pairs = q.shape[-2] * k.shape[-2]
    block_pairs = min(call.block_size[0], q.shape[-2]) * min(call.block_size[1], k.shape[-2])
    return min(1.0, float(blocks * block_pairs / pairs))
