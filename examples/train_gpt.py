"""Trains a small GPT twice, with tunefa's attention and with PyTorch's, and compares the two.

    python examples/train_gpt.py --out train_gpt

The model has the size of GPT-2 small, 12 layers with 12 heads of 64, and a context of 8,192 tokens,
one sequence a step. Attention has half of the FLOPs then. Both models begin with the same weights
and see the same batches of random text, so their losses should agree but for rounding. They train
in turns, a block of steps each, so that both see the same clocks; times are the device's own, and
leave out the first quarter of the steps, in which kernels are chosen and compiled. With --compile
both have their layers compiled by torch.compile.

OUT gets `train_gpt.json` (losses, times, tokens/s and peak memory of each run) and, where
matplotlib is installed, `train_gpt.png`. On the CPU, where neither attention is fast, pass a small
model: --layers 2 --width 64 --heads 2 --seqlen 64 --steps 12.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import tunefa

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal self-attention of q, k and v, (batch, seqlen, heads, head_dim) each."""
BLOCKS = 6
"""Blocks of steps that are timed, of each run."""


def with_tunefa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by tunefa, whose gradients are tunefa's too."""
    out = tunefa.flash_attention(q, k, v, causal=True)
    assert isinstance(out, Tensor)
    return out


def with_pytorch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by PyTorch's scaled_dot_product_attention, which chooses a backend itself."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


ATTENTIONS: dict[str, Attend] = {"tunefa": with_tunefa, "pytorch": with_pytorch}


class Block(nn.Module):
    """One layer: attention and a feed-forward part, each behind a norm and around a residual."""

    def __init__(self, width: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Takes and returns (batch, seqlen, width)."""
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.out(self.attend(q, k, v).flatten(2))
        widened = functional.gelu(self.up(self.norm_2(x)))
        added: Tensor = x + self.down(widened)
        return added


class GPT(nn.Module):
    """A decoder with learned positions; returns logits, (batch, seqlen, vocabulary)."""

    def __init__(self, options: argparse.Namespace, attend: Attend) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.positions = nn.Embedding(options.seqlen, options.width)
        self.blocks = nn.Sequential(
            *(Block(options.width, options.heads, attend) for _ in range(options.layers))
        )
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Takes (batch, seqlen) token numbers."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(places))
        logits: Tensor = self.head(self.norm(x))
        return logits


def batches(options: argparse.Namespace) -> Tensor:
    """Random text: (steps, batch, seqlen + 1) tokens of a random walk over the vocabulary, so that
    there is something to learn: the next token is near the one before it."""
    generator = torch.Generator().manual_seed(0)
    shape = (options.steps, options.batch, options.seqlen + 1)
    strides = torch.randint(1, 9, shape, generator=generator)
    return strides.cumsum(-1).remainder(options.vocabulary)


@dataclass
class Run:
    """Training with one attention: what is trained, and what was found."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    block_ms: list[float] = field(default_factory=list)
    """Milliseconds a step, of each block that was timed."""
    peak_bytes: int = 0
    """Device memory at most, without what belongs to the other run."""

    @classmethod
    def begin(cls, options: argparse.Namespace, name: str, device: str) -> Run:
        """Makes a model, with the same weights in each run."""
        torch.manual_seed(0)
        model = GPT(options, ATTENTIONS[name]).to(device)
        if options.compile:
            for block in model.blocks:
                block.compile(fullgraph=True)
        fused = device == "cuda"
        return cls(name, model, torch.optim.AdamW(model.parameters(), options.rate, fused=fused))

    def train(self, text: Tensor, timed: bool) -> None:
        """Trains a step on each batch of `text`, (steps, batch, seqlen + 1)."""
        on_gpu = text.is_cuda
        others = torch.cuda.memory_allocated() - self._held() if on_gpu else 0
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        losses: list[Tensor] = []
        block_ms = elapsed_ms(lambda: losses.extend(map(self._step, text)), on_gpu) / len(text)
        self.optimizer.zero_grad(set_to_none=True)
        self.losses += torch.stack(losses).tolist()
        if timed:
            self.block_ms.append(block_ms)
        if on_gpu:
            self.peak_bytes = max(self.peak_bytes, torch.cuda.max_memory_allocated() - others)

    def _step(self, tokens: Tensor) -> Tensor:
        """Returns the loss, without waiting for the device."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(tokens.device.type, torch.bfloat16):
            logits = self.model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()

    def _held(self) -> int:
        """The bytes of weights and of the optimizer's state."""
        states = self.optimizer.state.values()
        moments = [x for state in states for x in state.values() if isinstance(x, Tensor)]
        return sum(x.nbytes for x in [*self.model.parameters(), *moments] if x.is_cuda)

    def found(self, tokens_per_step: int) -> dict[str, Any]:
        """The run's figures, for the JSON file."""
        step_ms = sum(self.block_ms) / len(self.block_ms)
        return {
            "losses": self.losses,
            "step_ms": step_ms,
            "block_ms": self.block_ms,
            "tokens_per_s": 1e3 * tokens_per_step / step_ms,
            "peak_gib": self.peak_bytes / 2**30 if self.peak_bytes else None,
        }


def elapsed_ms(work: Callable[[], object], on_gpu: bool) -> float:
    """Milliseconds that some work takes: by the device's events on a GPU, else by the clock."""
    if not on_gpu:
        start = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - start)
    make_event: Any = torch.cuda.Event  # it has no types
    first, last = make_event(enable_timing=True), make_event(enable_timing=True)
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


def train(options: argparse.Namespace, device: str) -> list[Run]:
    """Trains with each attention, in turns; the one that begins changes from block to block."""
    runs = [Run.begin(options, name, device) for name in ATTENTIONS]
    text = batches(options).to(device)
    warm_up = max(1, options.steps // 4)
    for number, block in enumerate([text[:warm_up], *text[warm_up:].chunk(BLOCKS)]):
        for run in runs if number % 2 else reversed(runs):
            run.train(block, timed=number > 0)
    return runs


def attention_share(options: argparse.Namespace) -> float:
    """The part of a step's FLOPs that attention has, of which a causal mask leaves a half.

    A token and weight take 2 FLOPs in the forward pass; each score that is seen takes 4 for an
    element of head_dim. The backward pass takes 2 and 2.5 times as much.
    """
    weights = options.layers * 12 * options.width**2 + options.width * options.vocabulary
    seen = options.seqlen * (options.seqlen + 1) / 2
    attention = 3.5 * 4 * options.layers * options.width * seen
    return float(attention / (attention + 3 * 2 * weights * options.seqlen))


def plot(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws the losses of all runs, and their difference to the last."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    last = next(reversed(runs.values()))["losses"]
    for name, run in runs.items():
        above.plot(run["losses"], label=f"{name}, {run['tokens_per_s']:,.0f} tokens/s", alpha=0.7)
        below.plot([a - b for a, b in zip(run["losses"], last, strict=True)])
    above.set_ylabel("loss")
    above.legend()
    below.set_ylabel("difference")
    below.set_xlabel("step")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {"layers": 12, "width": 768, "heads": 12, "batch": 1, "seqlen": 8192, "steps": 200}
    for name, size in {**sizes, "vocabulary": 512}.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"default: {size}")
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate; default: 3e-4")
    parser.add_argument("--compile", action="store_true", help="compile the layers of both models")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the results")
    options = parser.parse_args(arguments)
    if options.steps < BLOCKS + 2:
        parser.error(f"--steps is {options.steps}: give {BLOCKS + 2} or more")
    return options


def main() -> None:
    """Trains with each attention, and prints and writes what it found."""
    options = parsed()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    share = attention_share(options)
    print(f"attention has {share:.0%} of the FLOPs of a step", flush=True)
    trained = train(options, device)
    runs = {run.name: run.found(options.batch * options.seqlen) for run in trained}
    choices = [tunefa.last_choice(backward=backward) for backward in (False, True)]
    chosen = [choice.why for choice in choices if choice is not None]
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    found = {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        "settings": settings,
        "attention_share": share,
        "chosen": chosen,
        "runs": runs,
    }
    (options.out / "train_gpt.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    for name, run in runs.items():
        memory = "" if run["peak_gib"] is None else f", {run['peak_gib']:.2f} GiB at most"
        print(
            f"{name}: loss {run['losses'][0]:.3f} to {run['losses'][-1]:.3f}, "
            f"{run['step_ms']:.2f} ms a step, {run['tokens_per_s']:,.0f} tokens/s{memory}"
        )
    faster = runs["pytorch"]["step_ms"] / runs["tunefa"]["step_ms"] - 1
    print(f"tunefa against PyTorch: {faster:+.1%} tokens/s", *chosen, sep="\n")
    try:
        plot(runs, options.out / "train_gpt.png")
    except ImportError:
        print("there is no plot: pip install matplotlib")


if __name__ == "__main__":
    main()
