"""Generates text with a paged cache under one CUDA graph, and compares each token with PyTorch's.

    python examples/generate.py

A GPT with random weights serves REQUESTS prompts of different lengths in ROWS rows, as a server
does: a row whose text is complete takes the next prompt, and its pages go back to the others. All
steps are replays of one CUDA graph, in which `tunefa.decode_attention` appends the new keys and
values to the cache and attends to it. Lengths and pages change between replays. Prompts go through
the same call, with all their queries at once.

Then PyTorch's scaled_dot_product_attention computes the logits of each whole text. The token that
was generated should have the greatest one. With random weights the two greatest are often close, so
tokens may differ by rounding; what is printed is how many are equal, and how far below the greatest
logit the others are, in units of its rounding. On the CPU there is no graph, and all is in fp32.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from train_gpt import GPT, with_pytorch  # type: ignore[import-not-found]

import tunefa

PAGE = 16
"""Keys of a page."""
IDLE = 0
"""The page of rows without a request; no text is in it."""


class Cache:
    """Keys and values of all layers in pages, with the pages and the length of each row."""

    def __init__(self, options: argparse.Namespace, like: Tensor) -> None:
        each = -(-options.seqlen // PAGE)
        pages = 1 + options.rows * each
        head_dim = options.width // options.heads
        shape = (2, options.layers, pages, PAGE, options.heads, head_dim)
        self.keys, self.values = like.new_zeros(shape)
        numbers: dict[str, Any] = {"dtype": torch.int32, "device": like.device}
        self.table = torch.full((options.rows, each), IDLE, **numbers)
        self.seqlens = torch.zeros(options.rows, **numbers)
        self.free = deque(range(1, pages))
        self._taken: dict[int, list[int]] = {}

    def take(self, row: int, keys: int) -> None:
        """Gives a row the pages for so many keys, and no keys yet."""
        taken = [self.free.popleft() for _ in range(-(-keys // PAGE))]
        self._taken[row] = taken
        self.table[row, : len(taken)] = torch.tensor(taken, dtype=torch.int32)
        self.seqlens[row] = 0

    def give_back(self, row: int) -> None:
        """Takes the pages of a row whose text is complete."""
        self.free.extend(self._taken.pop(row))
        self.table[row] = IDLE
        self.seqlens[row] = 0


@dataclass
class Request:
    """A prompt, and the text that begins with it."""

    prompt: list[int]
    length: int
    """Tokens of the text in the end."""
    text: list[int] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.text) == self.length


class Server:
    """Generates the texts of requests with one model, a row for each request at a time."""

    def __init__(self, options: argparse.Namespace, model: GPT) -> None:
        self.model = model
        like = model.head.weight
        self.cache = Cache(options, like)
        self.tokens = torch.zeros(options.rows, dtype=torch.long, device=like.device)
        self.active = torch.zeros(options.rows, dtype=torch.int32, device=like.device)
        self.rows: list[Request | None] = [None] * options.rows
        self._replay: Callable[[], None] | None = None
        for layer, block in enumerate(model.blocks):
            block.attend = self._attention(layer)

    def _attention(self, layer: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache, chosen = self.cache, self._chosen
            keys, values = cache.keys[layer], cache.values[layer]
            lengths, table = cache.seqlens[chosen], cache.table[chosen]
            out: Tensor = tunefa.decode_attention(q, keys, values, lengths, table, k=k, v=v)
            return out

        return attend

    @torch.inference_mode()
    def run(self, requests: Sequence[Request]) -> None:
        """Completes the text of each request."""
        waiting = deque(requests)
        while waiting or any(self.rows):
            for row, request in enumerate(self.rows):
                if request is None and waiting:
                    self._begin(row, waiting.popleft())
            self._step()

    def _begin(self, row: int, request: Request) -> None:
        """Computes the keys and values of a prompt, and the first token after it."""
        self.cache.take(row, request.length)
        prompt = torch.tensor([request.prompt], device=self.tokens.device)
        self._chosen = slice(row, row + 1)
        self.tokens[row] = self._logits(prompt, torch.arange(prompt.shape[1]))[0, -1].argmax()
        self.cache.seqlens[row] = prompt.shape[1]
        self.active[row] = 1
        request.text = [*request.prompt, int(self.tokens[row])]
        self.rows[row] = request
        self._end_complete()

    def _step(self) -> None:
        """Generates a token in each row."""
        if not any(self.rows):
            return
        self._chosen = slice(None)
        if self._replay is None:
            self._replay = self._captured()
        self._replay()
        for request, token in zip(self.rows, self.tokens.tolist(), strict=True):
            if request is not None:
                request.text.append(token)
        self._end_complete()

    def _end_complete(self) -> None:
        for row, request in enumerate(self.rows):
            if request is not None and request.is_complete:
                self.cache.give_back(row)
                self.active[row] = 0
                self.rows[row] = None

    def _captured(self) -> Callable[[], None]:
        """A step as the replay of a CUDA graph; on the CPU as it is."""
        if not self.tokens.is_cuda:
            return self._compute
        before = self.tokens.clone(), self.cache.seqlens.clone()
        self._compute()  # chooses and compiles what is captured then
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        for mine, was in zip((self.tokens, self.cache.seqlens), before, strict=True):
            mine.copy_(was)  # the step has run once; the first replay writes its keys again
        return graph.replay

    def _compute(self) -> None:
        logits = self._logits(self.tokens[:, None], self.cache.seqlens[:, None])
        self.cache.seqlens.add_(self.active)
        self.tokens.copy_(logits[:, -1].argmax(-1))

    def _logits(self, tokens: Tensor, places: Tensor) -> Tensor:
        """(batch, seqlen, vocabulary) of tokens at these places of their texts."""
        model = self.model
        x = model.tokens(tokens) + model.positions(places.to(tokens.device))
        logits: Tensor = model.head(model.norm(model.blocks(x)))
        return logits


def made_model(options: argparse.Namespace, device: str) -> GPT:
    """A model with random weights, the same each time."""
    torch.manual_seed(0)
    dtype = torch.float16 if device == "cuda" else torch.float32
    return GPT(options, with_pytorch).to(device, dtype).requires_grad_(False)


def made_requests(options: argparse.Namespace) -> list[Request]:
    """Prompts of 1 token to half a context, each to be completed to another length."""
    chance = torch.Generator().manual_seed(1)
    found = []
    for _ in range(options.requests):
        half = options.seqlen // 2
        size = int(torch.randint(1, half, (), generator=chance))
        more = int(torch.randint(1, half, (), generator=chance))
        prompt = torch.randint(options.vocabulary, (size,), generator=chance).tolist()
        found.append(Request(prompt, size + more))
    return found


@torch.inference_mode()
def compared(model: GPT, requests: Sequence[Request]) -> tuple[int, int, float]:
    """(tokens, those that PyTorch would have chosen, how far below the greatest logit the worst of
    the others is, in units of the rounding of the greatest)."""
    generated, equal, worst = 0, 0, 0.0
    for request in requests:
        text = torch.tensor([request.text], device=model.head.weight.device)
        begin = len(request.prompt)
        logits = model(text[:, :-1])[0, begin - 1 :].float()
        own = logits.gather(1, text[0, begin:, None])[:, 0]
        greatest = logits.max(-1).values
        rounding = greatest.abs() * torch.finfo(model.head.weight.dtype).eps
        generated += len(own)
        equal += int((own == greatest).sum())
        worst = max(worst, float(((greatest - own) / rounding).max()))
    return generated, equal, worst


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {"layers": 4, "width": 512, "heads": 8, "seqlen": 512, "vocabulary": 512}
    for name, size in {**sizes, "rows": 8, "requests": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"default: {size}")
    options = parser.parse_args(arguments)
    for name in ("layers", "width", "heads", "vocabulary", "rows"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}: give 1 or more")
    if options.seqlen < 4:
        parser.error(f"--seqlen is {options.seqlen}: give 4 or more")
    return options


def main() -> None:
    """Generates, compares, and prints what it found."""
    options = parsed()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    requests = made_requests(options)
    start = time.perf_counter()
    Server(options, made_model(options, device)).run(requests)
    seconds = time.perf_counter() - start
    generated, equal, worst = compared(made_model(options, device), requests)
    print(
        f"{generated} tokens of {len(requests)} requests in {options.rows} rows, {seconds:.1f} s "
        f"with compiling",
        f"{equal} are those of PyTorch; the worst of the others is {worst:.1f} roundings below",
        sep="\n",
    )
    choice = tunefa.last_choice()
    if choice is not None:
        print(choice.why)


if __name__ == "__main__":
    main()
