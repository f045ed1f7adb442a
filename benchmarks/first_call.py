"""Measures the first call of a fresh process with a bundle, with what an earlier process compiled,
and with nothing: `python -m benchmarks.first_call [--json FILE] [--repeat N]`.

Each time is that of one process, which computes attention once: forward, backward, or over a cache.
`imports` is the time for importing tunefa and its functions, after PyTorch; `context` for PyTorch's
CUDA context and the tensors; `load` for `tunefa.load` of the bundle; `first` from the first call
until the device is done, and `second` the same of the next call. All are in ms. With a bundle,
Triton, NVRTC and Optuna cannot be imported.

Before the gradients of attention come those of a product: PyTorch imports SymPy for the first
gradients that it is given, for 2 s, whatever computes attention.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

BLOCKED = ("triton", "cuda", "optuna")
"""The modules that a process with a bundle cannot import; `cuda` has NVRTC's bindings."""
WORKLOADS = {
    "forward": "fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal",
    "backward": "bwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal",
    "decode": "decode_b8_h32_kv8_q1_k4096_d128_bf16_causal_page64",
}
MODES = ("bundle", "nothing", "warm")
"""`warm` comes after `nothing`, which leaves its caches."""
TIMES = ("imports", "context", "load", "first", "second")
_LIMIT_S = 300


def main() -> None:
    """Measures all kinds of calls in all modes, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also writes all times to this file")
    parser.add_argument("--repeat", type=int, default=1, help="processes for each time")
    parser.add_argument("--bundle", type=Path, help="a bundle that was made before")
    parser.add_argument("--process", nargs=2, metavar=("MODE", "KIND"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        print(json.dumps(measured(given.process[0], given.process[1], given.bundle)))
        return
    found = {}
    with tempfile.TemporaryDirectory(prefix="tunefa-first-call-") as folder:
        bundle = given.bundle or made(Path(folder) / "app.tunefa")
        for kind in WORKLOADS:
            for mode in MODES:
                runs = [started(mode, kind, bundle, Path(folder) / f"{kind}-{turn}")
                        for turn in range(given.repeat)]  # fmt: skip
                found[f"{kind} {mode}"] = runs
                print(row(kind, mode, runs), flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def made(path: Path) -> Path:
    """Makes a bundle of all workloads for this machine's device, and says what that took."""
    words = [word for workload in WORKLOADS.values() for word in ("-w", workload)]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tunefa", "bundle", str(path), *words],
                   check=True, stdout=sys.stderr, timeout=_LIMIT_S)  # fmt: skip
    print(f"bundle: {path.stat().st_size / 2**20:.2f} MiB, made in "
          f"{time.perf_counter() - start:.1f} s", flush=True)  # fmt: skip
    return path


def started(mode: str, kind: str, bundle: Path, home: Path) -> dict[str, Any]:
    """The times of a process of its own; its caches are in `home`."""
    own = home / "bundle" if mode == "bundle" else home
    environment = {**os.environ, "TUNEFA_HOME": str(own), "TRITON_CACHE_DIR": str(own / "triton")}
    module = ["-m", "benchmarks.first_call", "--bundle", str(bundle), "--process", mode, kind]
    done = subprocess.run([sys.executable, *module], env=environment, capture_output=True,
                          text=True, timeout=_LIMIT_S)  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{kind} with {mode}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(kind: str, mode: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """A line of the table: the medians of several processes."""
    times = (f"{name} {statistics.median(run[name] for run in runs):8.1f}" for name in TIMES)
    return f"{kind:8} {mode:8} {'  '.join(times)} ms  {runs[0]['kernel']} ({runs[0]['how']})"


def measured(mode: str, kind: str, bundle: Path | None) -> dict[str, Any]:
    """The times of this process, which has not imported PyTorch yet."""
    if mode == "bundle":
        modules: dict[str, Any] = sys.modules
        modules.update(dict.fromkeys(BLOCKED))  # their import fails
    import torch

    times: dict[str, Any] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        times[name] = 1e3 * (time.perf_counter() - start)
        return result

    timed("imports", _functions)
    call = timed("context", lambda: _calls(kind))
    import tunefa

    timed("load", lambda: tunefa.load(bundle) if mode == "bundle" and bundle else None)

    def done() -> None:
        call()
        torch.cuda.synchronize()

    if kind == "backward":  # the forward pass before it is not timed
        call = call()
    timed("first", done)
    timed("second", done)
    chosen = tunefa.last_choice(backward=kind == "backward")
    assert chosen is not None
    return {**times, "kernel": chosen.kernel, "how": chosen.how, "why": chosen.why}


def _functions() -> None:
    import tunefa

    for name in ("flash_attention", "decode_attention", "load"):
        getattr(tunefa, name)  # which imports it


def _calls(kind: str) -> Callable[[], Any]:
    """A call on tensors of WORKLOADS; for `backward`, what makes such a call."""
    import torch

    import tunefa
    from tunefa.spec.workload import Workload

    w = Workload.parse(WORKLOADS[kind])

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, w.head_dim, device="cuda", dtype=torch.bfloat16)

    if kind == "decode":
        assert w.page_size is not None
        pages = w.seqlen_k // w.page_size
        q = tensor(w.batch, w.seqlen_q, w.heads)
        k, v = (tensor(w.batch * pages, w.page_size, w.heads_kv) for _ in range(2))
        table = torch.arange(w.batch * pages, device="cuda", dtype=torch.int32).view(w.batch, -1)
        lengths = torch.full((w.batch,), w.seqlen_k, device="cuda", dtype=torch.int32)
        torch.cuda.synchronize()
        return lambda: tunefa.decode_attention(q, k, v, lengths, table)
    q = tensor(w.batch, w.seqlen_q, w.heads)
    k, v = (tensor(w.batch, w.seqlen_k, w.heads_kv) for _ in range(2))
    torch.cuda.synchronize()
    if kind == "forward":
        return lambda: tunefa.flash_attention(q, k, v, causal=True)

    def forward() -> Callable[[], Any]:
        given = [x.requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(q * 2, q, q.detach())
        out = tunefa.flash_attention(*given, causal=True)
        grad = torch.ones_like(out)
        torch.cuda.synchronize()
        return lambda: torch.autograd.grad(out, given, grad, retain_graph=True)

    return forward


if __name__ == "__main__":
    main()
