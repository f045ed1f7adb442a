"""Tasks of `benchmarks.llama` with a Llama of Transformers, and variants of them."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import tunefa

CUDA: Any = torch.cuda  # parts of it have no types
HEADS, HEADS_KV, VOCABULARY = 32, 8, 32_000
VARIANTS = ("sdpa", "cudnn", "activated", "tunefa")


def model_of(given: argparse.Namespace) -> Any:
    """The model on its device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tunefa.integrations import transformers as integration

    integration.register()
    config = LlamaConfig(
        hidden_size=given.hidden,
        intermediate_size=given.hidden * 7 // 2,
        num_hidden_layers=given.layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS_KV,
        vocab_size=VOCABULARY,
        max_position_embeddings=given.tokens + given.new,
    )
    torch.manual_seed(0)
    with torch.device(given.device):
        return LlamaForCausalLM(config).to(torch.bfloat16)


@contextlib.contextmanager
def variant(name: str, model: Any) -> Iterator[None]:
    """Lets the model compute attention in one of `VARIANTS`."""
    model.set_attn_implementation("tunefa" if name == "tunefa" else "sdpa")
    if name == "activated":
        tunefa.activate()
    only = sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if name == "cudnn" else contextlib.nullcontext()
    try:
        with only:
            yield
    finally:
        if name == "activated":
            tunefa.deactivate()


class Prefill:
    """A forward pass without gradients."""

    def __init__(self, model: Any, given: argparse.Namespace) -> None:
        self.model, self.tokens = model, given.tokens
        self.ids = tokens(given.tokens, given.device)

    def begin(self) -> None:
        """Does what comes before the part that is timed."""

    @torch.no_grad()
    def run(self) -> Tensor:
        """Returns the logits of the last token."""
        logits: Tensor = self.model(self.ids, use_cache=False, logits_to_keep=1).logits
        return logits


class Train(Prefill):
    """Forward and backward of the loss."""

    def run(self) -> Tensor:
        """Returns the gradient of the first layer's projection of queries."""
        self.model.zero_grad(set_to_none=True)
        self.model(self.ids, labels=self.ids, use_cache=False).loss.backward()
        grad: Tensor = self.model.model.layers[0].self_attn.q_proj.weight.grad
        self.model.zero_grad(set_to_none=True)
        return grad


class Generate:
    """Tokens after a prompt, with a static cache.

    The likeliest token of each step is looked for, but the next step reads a given one, so that all
    variants compute the same.
    """

    def __init__(self, model: Any, given: argparse.Namespace) -> None:
        from transformers import StaticCache

        self.model, self.tokens, self.prompt = model, given.new, given.tokens
        self.ids = tokens(given.tokens + given.new, given.device)
        self.cache = StaticCache(config=model.config, max_cache_len=self.ids.shape[1])
        self.position = torch.zeros(1, dtype=torch.long, device=self.ids.device)
        self.likeliest = torch.zeros_like(self.ids[:, :1])
        self.logits: Any = None
        self.remark = "steps are called one by one"
        self._replay: Callable[[], Any] = self._step
        self.begin()
        for _ in range(min(2, given.new)):
            self._step()
        if given.device == "cuda" and not given.no_graphs:
            self._capture()

    @torch.no_grad()
    def begin(self) -> None:
        """Reads the prompt."""
        self.cache.reset()
        self._forward(self.ids[:, : self.prompt], torch.arange(self.prompt, device=self.ids.device))
        self.position.fill_(self.prompt)

    def run(self) -> Tensor:
        """Generates the tokens, and returns the logits of the last one."""
        for _ in range(self.tokens):
            self._replay()
        logits: Tensor = self.logits
        return logits

    @torch.no_grad()
    def _step(self) -> None:
        self._forward(self.ids.index_select(1, self.position), self.position)
        self.position += 1

    def _forward(self, ids: Tensor, positions: Tensor) -> None:
        # Transformers 4 needs cache_position; 5 does not use it.
        named = {"position_ids": positions[None], "cache_position": positions}
        out = self.model(ids, past_key_values=self.cache, logits_to_keep=1, **named)
        self.logits = out.logits
        self.likeliest.copy_(self.logits[:, -1:].argmax(-1))

    def _capture(self) -> None:
        """Makes a step a CUDA graph, if nothing in it waits for the device."""
        CUDA.synchronize()
        graph = CUDA.CUDAGraph()
        try:
            with CUDA.graph(graph):
                self._step()
        except RuntimeError as error:
            self.remark += f", not as a CUDA graph: {str(error).splitlines()[0]}"
            return
        self._replay, self.remark = graph.replay, "steps run as a CUDA graph"


TASKS: dict[str, Any] = {"prefill": Prefill, "train": Train, "generate": Generate}


def tokens(count: int, device: str) -> Tensor:
    """Random tokens, (1, count)."""
    ids = torch.randint(0, VOCABULARY, (1, count), generator=torch.Generator().manual_seed(1))
    return ids.to(device)
