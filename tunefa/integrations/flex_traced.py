"""One call of FlexAttention, compiled alone by Inductor for a choice of kernel options.

A `TracedCall` is plain data, so that other processes can compile it: they leave the binaries in
PyTorch's caches, where the process that runs them finds them. The source may be generated twice:
PyTorch's key of a whole graph depends on the modules that a process has imported.
"""

from __future__ import annotations

import operator
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tunefa.compile.contract import CompileError
from tunefa.integrations.flex_calls import JOINT, OPERATORS, FlexCall

Outputs = tuple[torch.Tensor, ...]
Run = Callable[[], Outputs]
"""Computes a call on its tensors, and returns its `FlexCall.results`."""
_INDEX = torch.int32
"""The dtype of the batch, head, row and key that a function is given."""


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor, in its place among the arguments."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """Returns the layout of a tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    def empty(self) -> torch.Tensor:
        """Returns a tensor with this layout; in a fake mode one without memory."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class TracedCall:
    """A call without the values of its tensors."""

    op: str
    arguments: bytes
    """The arguments of a `FlexCall`, with layouts in place of tensors, pickled."""

    @classmethod
    def of(cls, call: FlexCall) -> TracedCall:
        """Returns a call on tensors without their values."""
        return cls(call.op, pickle.dumps(replaced(call.arguments, torch.Tensor, Layout.of)))

    def compile(self, options: Mapping[str, Any]) -> Callable[[list[torch.Tensor]], Outputs]:
        """Compiles the call with these options beside its own, and returns a function of its
        tensors, whose list it empties.

        Raises CompileError, with the compiler's message.
        """
        from torch._guards import TracingContext, tracing
        from torch._inductor import config
        from torch._inductor.choices import InductorChoices
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.virtualized import V
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        mode = FakeTensorMode(shape_env=ShapeEnv())
        hooks = "post_grad_custom_pre_pass", "inductor_choices_class"
        own: dict[str, Any] = {name: None for name in hooks if hasattr(config, name)}
        own["compile_threads"] = 1  # processes of Inductor's would only compete with those of ours
        try:
            module, examples = self.graph(mode, options)
            choices = V.set_choices_handler(InductorChoices())
            with tracing(TracingContext(mode)), config.patch(own), choices:
                compiled: Any = compile_fx_inner(module, examples)
        except Exception as error:  # a compiler may raise anything
            raise CompileError(first_words(error)) from error
        return lambda tensors: tuple(compiled(tensors))

    def graph(
        self, mode: Any, options: Mapping[str, Any]
    ) -> tuple[fx.GraphModule, list[torch.Tensor]]:
        """Returns a graph of the call alone, with these options, and its inputs in a fake mode."""
        graph, modules, examples = fx.Graph(), dict[str, Any](), list[torch.Tensor]()
        with mode:
            arguments = replaced(pickle.loads(self.arguments), Layout, Layout.empty)
            call = FlexCall(self.op, arguments).with_options(options)
            _note_examples(call)

        def given(tensor: torch.Tensor) -> fx.Node:
            examples.append(tensor)
            node = graph.placeholder(f"input{len(examples)}")
            node.meta["val"] = tensor
            return node

        def named(module: fx.GraphModule) -> fx.Node:
            modules[name := f"function{len(modules)}"] = module
            return graph.get_attr(name)

        nodes = replaced(call.arguments, torch.Tensor, given)
        results = graph.call_function(OPERATORS[self.op], replaced(nodes, fx.GraphModule, named))
        places = range(len(call.results))
        graph.output(tuple(graph.call_function(operator.getitem, (results, i)) for i in places))
        return fx.GraphModule(modules, graph), examples


def run_of(call: FlexCall, options: Mapping[str, Any], traced: TracedCall | None = None) -> Run:
    """Compiles a call on tensors with these options, and returns what computes it.

    Raises CompileError, with the compiler's message.
    """
    compiled, tensors = (traced or TracedCall.of(call)).compile(options), tensors_of(call)
    return lambda: compiled(list(tensors))


def caches() -> str:
    """Returns the folder of this process in which PyTorch keeps what it compiled."""
    from torch._inductor import codecache

    folder: str = codecache.cache_dir()  # type: ignore[attr-defined]  # of another module of it
    return folder


def compile_here(traced: TracedCall, options: Mapping[str, Any], folder: str) -> str | None:
    """Compiles a call, in a process that does nothing else, and leaves the result in `folder`,
    see `caches`. Returns why it does not compile; None if it does."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # read when something is compiled
    try:
        traced.compile(options)
    except CompileError as error:
        return str(error)
    return None


def tensors_of(call: FlexCall) -> list[torch.Tensor]:
    """Returns the tensors among the arguments, in their order."""
    found = list[torch.Tensor]()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor.detach())
        return tensor

    replaced(call.arguments, torch.Tensor, note)
    return found


def replaced(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """Returns the arguments with each one of a kind changed, in their order, also those in tuples
    and lists, which become tuples."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):
        return tuple(replaced(each, kind, change) for each in value)
    return value


def first_words(error: BaseException) -> str:
    """Returns the first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:1])}"[:300]


def _note_examples(call: FlexCall) -> None:
    """Notes in the graphs of the functions what each value is, as PyTorch's passes want it."""
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    q = call.qkv[0]
    score, index = q.new_empty(()), [q.new_empty((), dtype=_INDEX) for _ in range(4)]
    of_score, of_mask = call.captured
    inputs: list[tuple[Any, list[Any]]] = [
        (call.score, [score, *index, *of_score]),
        (call.mask, [*index, *of_mask]),
    ]
    if call.op == "bwd":
        inputs.append((call.arguments[JOINT], [score, *index, score, *of_score]))
    for module, values in inputs:
        FakeTensorProp(module, q.fake_mode).propagate_dont_convert_inputs(*values)
