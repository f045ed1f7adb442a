"""FlexAttention on a CUDA device with options from tunefa's records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._inductor.virtualized import V
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from tests.support.sample_records import CONFIG, measured
from tunefa.integrations import flex
from tunefa.runtime.chip import Chip
from tunefa.store.results import write

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(
        not hasattr(config, "inductor_choices_class"), reason="needs PyTorch 2.10 or newer"
    ),
]
ATTEND: Any = scaled_dot_product_attention
TILES = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
BACKWARD_TILES = {
    **{"BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32},
    **{"num_warps": 4, "num_stages": 2},
}


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    torch.compiler.reset()
    yield
    flex.use_defaults()
    torch.compiler.reset()


def causal(batch: Any, head: Any, i: Any, j: Any) -> Any:
    return i >= j


def step(compiled: Any, given: list[torch.Tensor], mask: Any) -> tuple[torch.Tensor, ...]:
    out = compiled(*given, block_mask=mask)
    return out, *torch.autograd.grad(out.float().cos().sum(), given)


@pytest.mark.parametrize("alone", [False, True], ids=["timed", "recorded options only"])
def test_a_training_step_with_recorded_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """`alone` leaves out Inductor's own options, so that the recorded ones run."""
    chip = Chip.of(torch.device("cuda"))
    assert chip.target is not None
    place: Any = {"arch": chip.target.arch.name, "device": chip.target.device.name}
    records = [
        measured("fwd_q2048_d64", config={**CONFIG, **TILES}, **place),
        measured("bwd_q2048_d64", kernel="attention_bwd_triton", config=BACKWARD_TILES, **place),
    ]
    write(tmp_path / "own.yaml", records)
    assert flex.use_records(tmp_path / "own.yaml") == 2
    sizes = 64, torch.bfloat16, "cuda"
    own = V.choices.get_flex_attention_fwd_configs(*sizes)
    assert (own[-1].block_m, own[-1].block_n) == (64, 32) and len(own) > 1
    if alone:
        forward, backward = own[-1:], V.choices.get_flex_attention_bwd_configs(*sizes)[-1:]
        kind = flex.RecordedChoices
        monkeypatch.setattr(kind, "get_flex_attention_fwd_configs", lambda *_: forward)
        monkeypatch.setattr(kind, "get_flex_attention_bwd_configs", lambda *_: backward)
    given = [
        torch.randn(1, 4, 2048, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    mask = create_block_mask(causal, None, None, 2048, 2048, device="cuda")
    with config.patch(force_disable_caches=True):
        found = step(torch.compile(flex_attention), given, mask)
    exact = [x.detach().double().requires_grad_() for x in given]
    right = ATTEND(*exact, is_causal=True)
    grads = torch.autograd.grad(right.cos().sum(), exact)
    for mine, theirs in zip(found, (right, *grads), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=3e-2, atol=3e-2)
