"""Trains a small GPT twice, with tunefa's attention and with PyTorch's, and compares the two.

    python examples/train_gpt.py --out train_gpt

Both runs begin with the same weights and see the same batches of random text, so their losses
should agree but for rounding. OUT gets `train_gpt.json` (losses, tokens/s and peak memory of each
run) and, where matplotlib is installed, `train_gpt.png`. On a GPU the model has 12 layers; on the
CPU, where neither attention is fast, pass a small one: --layers 2 --width 64 --heads 2 --seqlen 64
--steps 5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import tunefa

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal self-attention of q, k and v, (batch, seqlen, heads, head_dim) each."""
WARM_UP = 20
"""Steps before times are taken: kernels are compiled and chosen in the first ones."""


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


def train(options: argparse.Namespace, name: str, device: str) -> dict[str, Any]:
    """Trains with one attention; returns the loss of each step, and what it cost."""
    torch.manual_seed(0)
    on_gpu = device == "cuda"
    model = GPT(options, ATTENTIONS[name]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, fused=on_gpu)
    text = batches(options).to(device)
    losses, seconds = [], []
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for tokens in text:
        start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())  # waits for the device, so that the step is timed whole
        seconds.append(time.perf_counter() - start)
    step_s = statistics.median(seconds[min(WARM_UP, len(seconds) - 1) :])
    return {
        "losses": losses,
        "step_ms": 1e3 * step_s,
        "tokens_per_s": options.batch * options.seqlen / step_s,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
    }


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


def main() -> None:
    """Trains with each attention, and prints and writes what it found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {"layers": 12, "width": 1024, "heads": 16, "batch": 1, "seqlen": 8192, "steps": 200}
    for name, size in {**sizes, "vocabulary": 512}.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"default: {size}")
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate; default: 3e-4")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the results")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    runs = {name: train(options, name, device) for name in ATTENTIONS}
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    found = {"device": device, "torch": torch.__version__, "settings": settings, "runs": runs}
    (options.out / "train_gpt.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    for name, run in runs.items():
        memory = "" if run["peak_gib"] is None else f", {run['peak_gib']:.2f} GiB at most"
        print(
            f"{name}: loss {run['losses'][0]:.3f} to {run['losses'][-1]:.3f}, "
            f"{run['step_ms']:.1f} ms a step, {run['tokens_per_s']:,.0f} tokens/s{memory}"
        )
    try:
        plot(runs, options.out / "train_gpt.png")
    except ImportError:
        print("there is no plot: pip install matplotlib")


if __name__ == "__main__":
    main()
