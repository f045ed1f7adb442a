"""tunefa's forward beside its peers, on one GPU, on the same tensors, in one run.

    python benchmarks/forward.py fwd_b2_h16_kv16_q8192_d128_bf16_full [WORKLOAD ...]

Every figure comes from interleaved rounds of rotated order with a cold L2 (tunefa.timing); the
median of 21 is printed. Peers that are not installed are left out by name. Each peer gets the
layout it likes best; tunefa runs the config that `import tunefa` finds, through the same call a
user makes, so its figure includes whatever its host side costs the device.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tunefa
from tunefa import check
from tunefa.timing import Stopwatch
from tunefa.workload import Workload

ROUNDS = 21


def sdpa(backend: SDPBackend, tensors: tuple[Any, ...], causal: bool) -> Callable[[], Any]:
    """PyTorch's scaled_dot_product_attention through one backend; tensors are BHSD."""
    q, k, v = (tensor.contiguous() for tensor in tensors)

    def call() -> Any:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
            )

    return call


def flex(tensors: tuple[Any, ...], causal: bool) -> Callable[[], Any]:
    """FlexAttention, autotuned by Inductor."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (tensor.contiguous() for tensor in tensors)
    compiled = torch.compile(flex_attention, dynamic=False, mode="max-autotune-no-cudagraphs")
    lengths = q.shape[2], k.shape[2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, *lengths) if causal else None
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def fa4(tensors: tuple[Any, ...], causal: bool) -> Callable[[], Any]:
    """flash-attn-4 (CuTe)."""
    from flash_attn.cute import flash_attn_func  # type: ignore[import-not-found]

    q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in tensors)
    return lambda: flash_attn_func(q, k, v, causal=causal)


def contestants(workload: Workload) -> dict[str, Callable[[], Any]]:
    """Everything that runs here, by name; what does not is said on stderr."""
    torch.manual_seed(0)
    q, k, v, _, _ = check.tensors(workload, "cuda")
    causal = workload.causal
    qs, ks, vs = (tensor.transpose(1, 2) for tensor in (q, k, v))
    found: dict[str, Callable[[], Any]] = {
        "tunefa": lambda: tunefa.flash_attention(qs, ks, vs, causal=causal)
    }
    peers: dict[str, Callable[[], Callable[[], Any]]] = {
        "sdpa-cudnn": lambda: sdpa(SDPBackend.CUDNN_ATTENTION, (q, k, v), causal),
        "sdpa-fa2": lambda: sdpa(SDPBackend.FLASH_ATTENTION, (q, k, v), causal),
        "flex": lambda: flex((q, k, v), causal),
        "fa4": lambda: fa4((q, k, v), causal),
    }
    for name, make in peers.items():
        try:
            call = make()
            call()
        except (ImportError, RuntimeError) as error:
            print(f"{name} is left out: {str(error).splitlines()[0]}", file=sys.stderr)
        else:
            found[name] = call
    return found


def main() -> None:
    """Prints one JSON line per workload: TFLOP/s by name, and tunefa's choice."""
    stopwatch = Stopwatch("eager")
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    for text in sys.argv[1:]:
        workload = Workload.parse(text)
        found = contestants(workload)
        samples = stopwatch.rounds_us(list(found.values()), ROUNDS)
        medians = [statistics.median(each) for each in samples]
        figures = {
            name: round(workload.flops / median / 1e6, 1)
            for name, median in zip(found, medians, strict=True)
        }
        chosen = tunefa.last_choice()
        print(json.dumps({"workload": str(workload), **figures, "why": chosen and chosen.why}))


if __name__ == "__main__":
    main()
