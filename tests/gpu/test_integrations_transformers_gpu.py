"""Hugging Face Transformers and flash-attn's functions on a CUDA device, computed by tunefa."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.sdpa_on_cuda import attend, choice, inputs, near, poison_memory
from tests.support.tree import TREE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 999,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("sdpa", {}),
    "Mistral": ("sdpa", {"sliding_window": 500}),
    "Gemma2": ("eager", {"head_dim": 64, "sliding_window": 500, "attn_logit_softcapping": 20.0}),
    "GptOss": ("eager", {"head_dim": 64, "sliding_window": 500, "num_local_experts": 4}),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    """A small random model on the device, in bf16, and the implementation to compare with."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tunefa.integrations import transformers as integration

    integration.register()
    theirs, more = MODELS[request.param]
    if request.param == "GptOss":
        more = {**more, "num_experts_per_tok": 2}
    torch.manual_seed(0)
    config = getattr(transformers, f"{request.param}Config")(**SIZES, **more)
    made = getattr(transformers, f"{request.param}ForCausalLM")(config)
    return made.to("cuda", torch.bfloat16).eval(), theirs


@pytest.mark.parametrize("padding", [0, 700])
def test_models_of_transformers(model: Any, padding: int) -> None:
    """A step of training in bf16 is as near to fp32 as Transformers' own."""
    made, theirs = model
    ids = torch.randint(2, 900, (2, 1500), device="cuda")
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    labels = torch.where((mask & mask.roll(1, 1)).bool(), ids, -100)

    def run(name: str) -> tuple[Tensor, ...]:
        made.set_attn_implementation(name)
        made.zero_grad()
        poison_memory()  # what is not written must not reach any gradient
        out = made(ids, attention_mask=mask, labels=labels)
        out.loss.backward()
        for weights, parameter in made.named_parameters():
            finite = parameter.grad is None or bool(parameter.grad.isfinite().all())
            assert finite or name != "tunefa", weights
        first = made.model.layers[0].self_attn.q_proj.weight.grad
        return out.logits[mask.bool()].detach().double(), first.double().clone()

    made.float()
    exact = run("eager")
    made.to(torch.bfloat16)
    right, found = run(theirs), run("tunefa")
    assert choice().startswith("attention_fwd_")
    for one, other, truth in zip(found, right, exact, strict=True):
        error, usual = float((one - truth).norm()), float((other - truth).norm())
        assert error <= 1.5 * usual, (error / float(truth.norm()), usual / float(truth.norm()))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", [0, 300])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_generation_by_transformers(model: Any, cache: str, padding: int, compiled: bool) -> None:
    """The logits of each step, given the same tokens before it, are those of Transformers' own."""
    made, theirs = model
    if compiled and cache == "dynamic":
        pytest.skip("Transformers compiles a step with a static cache only")
    ids = torch.randint(2, 900, (2, 1500), device="cuda")
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    named = {
        "attention_mask": mask,
        "max_new_tokens": 12,
        "do_sample": False,
        "cache_implementation": cache,
        "output_logits": True,
        "return_dict_in_generate": True,
        "disable_compile": not compiled,
    }
    made.set_attn_implementation(theirs)
    right = made.generate(ids, **named)
    made.set_attn_implementation("tunefa")
    found = made.generate(ids, **named)
    same = (right.sequences == found.sequences).all(0)
    steps = int(same.cumprod(0).sum()) - ids.shape[1]
    assert steps >= 1
    for one, other in list(zip(found.logits, right.logits, strict=True))[:steps]:
        assert float((one - other).norm() / other.norm()) < 5e-2


@pytest.mark.parametrize("padding", [0, 40])
def test_a_model_of_diffusers(padding: int) -> None:
    """A step of training in bf16 is as near to fp32 as with Diffusers' native backend."""
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    from tunefa.integrations import diffusers as integration

    integration.register()
    torch.manual_seed(0)
    made = diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=64,
        num_attention_heads=8, joint_attention_dim=64, axes_dims_rope=(16, 24, 24),
    ).cuda()  # fmt: skip
    mask = torch.arange(100, device="cuda") < torch.tensor([[100], [100 - padding]], device="cuda")
    x, text = torch.randn(2, 32 * 32, 16).cuda(), torch.randn(2, 100, 64).cuda()
    time = torch.tensor([0.5, 0.7]).cuda()

    def run(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        made.to(dtype).set_attention_backend(name)
        made.zero_grad()
        poison_memory()
        named = {"encoder_hidden_states_mask": mask, "img_shapes": [[(1, 32, 32)]] * 2}
        out = made(x.to(dtype), text.to(dtype), timestep=time.to(dtype), **named).sample
        out.float().square().mean().backward()
        grad = made.transformer_blocks[0].attn.to_q.weight.grad
        return out.detach().double(), grad.double().clone()

    exact = run("native", torch.float32)
    right, found = (run(name, torch.bfloat16) for name in ("native", "tunefa"))
    assert choice().startswith("attention_fwd_")
    for one, other, truth in zip(found, right, exact, strict=True):
        error, usual = float((one - truth).norm()), float((other - truth).norm())
        assert error <= 1.5 * usual, (error / float(truth.norm()), usual / float(truth.norm()))


def test_flash_attn_s_functions_on_the_device() -> None:
    from tunefa.integrations.compat import flash_attn2

    q, k, v = (x.transpose(1, 2) for x in inputs(2048, 2048))
    out = flash_attn2.flash_attn_func(q, k, v, causal=True)
    assert isinstance(out, Tensor) and choice().startswith("attention_fwd_")
    near((out,), (attend(*inputs(2048, 2048)).transpose(1, 2),))
    counts = torch.full((2,), 2047, dtype=torch.int32, device="cuda")
    with torch.no_grad():
        last = flash_attn2.flash_attn_with_kvcache(
            q[:, -1:], k.clone(), v.clone(), k[:, -1:], v[:, -1:], cache_seqlens=counts
        )
    assert isinstance(last, Tensor) and choice().startswith("attention_decode_")
    error = float((last.double() - out[:, -1:].double()).norm() / out[:, -1:].double().norm())
    assert error < 1e-2


def test_an_unchanged_program_with_flash_attention_2(tmp_path: Any) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.utils import import_utils

    from tunefa.integrations import local_kernels

    if not import_utils.is_kernels_available():
        pytest.skip("the version of kernels that transformers needs is not installed")
    name, _, value = local_kernels.write(tmp_path / "new").partition("=")
    env = {**os.environ, name: value, "PYTHONPATH": str(TREE), "HF_HUB_OFFLINE": "1"}
    code = (
        "import torch, transformers, tunefa\n"
        f"config = transformers.LlamaConfig(**{SIZES}, attn_implementation='flash_attention_2')\n"
        "config.dtype = torch.bfloat16\n"
        "model = transformers.LlamaForCausalLM(config).to('cuda', torch.bfloat16)\n"
        "model(torch.randint(2, 900, (1, 4096), device='cuda')).logits\n"
        "print(tunefa.last_choice().kernel)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("attention_fwd_")
