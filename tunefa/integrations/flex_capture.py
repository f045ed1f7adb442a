"""Takes the calls of FlexAttention's operators out of what PyTorch compiles, with their tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from tunefa.compile.contract import CompileError
from tunefa.errors import TunefaError
from tunefa.integrations import flex_calls
from tunefa.integrations.flex_calls import FlexCall
from tunefa.integrations.flex_traced import Outputs, run_of


def captured(given: Sequence[Any], backward: bool | None, **more: Any) -> list[FlexCall]:
    """Returns the calls of FlexAttention's operators that PyTorch compiles for q, k, v, score_mod
    and block_mask, on their tensors: the forward pass first, then, with `backward`, the gradients
    for a random gradient of the output. None: if q, k or v requires one.

    `more` are other arguments of `flex_attention`. Raises TunefaError for calls whose options
    cannot be searched, and where PyTorch's own do not compile.
    """
    from torch._inductor.compile_fx import compile_fx
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v, score_mod, block_mask = given
    if backward is None:
        backward = any(each.requires_grad for each in (q, k, v))
    tensors = [each.detach().requires_grad_(backward) for each in (q, k, v)]
    found: list[FlexCall] = []
    backend = functools.partial(compile_fx, inner_compile=functools.partial(_interpreted, found))
    torch.compiler.reset()  # Dynamo would take what it has compiled before
    compiled: Any = torch.compile(flex_attention, backend=backend, dynamic=False)
    out = compiled(*tensors, score_mod, block_mask, **more)
    if backward:
        torch.autograd.grad(out, tensors, torch.randn_like(out))
    torch.compiler.reset()
    if len(found) != 1 + backward:
        raise TunefaError(
            f"PyTorch compiled {len(found)} of the {1 + backward} operators of FlexAttention for "
            f"this call: does torch.compile(flex_attention, fullgraph=True) run it?"
        )
    return found


def _interpreted(found: list[FlexCall], module: fx.GraphModule, *_: Any, **__: Any) -> Any:
    """Takes Inductor's place: operators run one by one, and FlexAttention's are noted."""

    def run(tensors: Any) -> Any:
        return _Noting(module, found).run(*tensors)

    run._boxed_call = True  # type: ignore[attr-defined]  # PyTorch then passes a list
    return run


class _Noting(fx.Interpreter):
    """Runs a graph, and FlexAttention's operators in it as PyTorch compiles them by itself."""

    def __init__(self, module: fx.GraphModule, found: list[FlexCall]) -> None:
        super().__init__(module)
        self._found = found
        self.extra_traceback = False  # an error says what the user can do, and nothing of the graph

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Computes one operator."""
        call = FlexCall.of(target, args)
        if call is None:
            return super().call_function(target, args, kwargs)
        require(call)
        self._found.append(call)
        results = computed(call)
        if call.op == "bwd":  # gradients of what the score function captures are of no interest
            return *results, tuple(_zeros(each) for each in call.captured[0])
        return *results, *[None] * (3 - len(results))


def require(call: FlexCall) -> None:
    """Raises TunefaError for a call whose options cannot be searched."""
    if why := flex_calls.why_not(call):
        raise TunefaError(f"FlexAttention's options cannot be searched for this call: {why}")
    if chosen := call.chosen_by_user:
        raise TunefaError(
            f"kernel_options has {', '.join(chosen)}, which the search chooses: leave out what it "
            f"is to choose"
        )


def _zeros(value: Any) -> Tensor | None:
    return torch.zeros_like(value) if isinstance(value, Tensor) else None


def computed(call: FlexCall) -> Outputs:
    """Returns the results of PyTorch's own options."""
    try:
        return run_of(call, {})()
    except CompileError as error:
        raise TunefaError(f"PyTorch's own options do not compile for this call: {error}") from error
