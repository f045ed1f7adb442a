"""A program: vLLM's engine on the CPU generates with a tiny random model and prints what came out.

    python -m tests.support.vllm_engine Llama TUNEFA folder

vLLM takes its own backend on a CPU whatever it is asked for. So TUNEFA is put in that one's place,
beside being named.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 250,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 40},
    "Gemma2": {"sliding_window": 40, "attn_logit_softcapping": 2.0},
}
DTYPES = {"Llama": "float16", "Mistral": "float16", "Gemma2": "bfloat16"}
"""vLLM has no Gemma 2 in fp16; bf16 has more ties between tokens."""
PROMPTS, STEPS = (5, 100, 33, 1, 150), 16
"""Tokens of the prompts, some of more than a step of 64 tokens takes, and new tokens of each."""
OWN = "tunefa.integrations.vllm_backend.TunefaBackend"


def save(name: str, folder: Path) -> None:
    """Writes a model whose attention matters: its weights are large."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **MODELS[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.mul_(5)
    model.to(getattr(torch, DTYPES[name])).save_pretrained(folder)


def ranked(step: Any) -> list[float]:
    """The logprobs of the two likeliest tokens."""
    return sorted((each.logprob for each in step.values()), reverse=True)[:2]


def main(name: str, backend: str, folder: str) -> None:
    """Prints a line of JSON: the class that computed attention, tokens, and at each step the
    logprobs of the two likeliest."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    save(name, Path(folder))
    from vllm import LLM, SamplingParams
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    named: dict[str, Any] = {}
    if backend == "TUNEFA":
        register_backend(AttentionBackendEnum.CPU_ATTN, OWN)
        named["attention_backend"] = backend
    named |= {"block_size": 32, "max_model_len": 256, "max_num_batched_tokens": 64}
    llm = LLM(folder, dtype=DTYPES[name], skip_tokenizer_init=True, enforce_eager=True, **named)
    layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
    prompts: Any = [
        {"prompt_token_ids": [(row * 7 + token * 13) % 240 + 3 for token in range(length)]}
        for row, length in enumerate(PROMPTS)
    ]
    greedy = SamplingParams(max_tokens=STEPS, temperature=0, ignore_eos=True, logprobs=2)
    outputs = [each.outputs[0] for each in llm.generate(prompts, greedy)]
    found = {
        "classes": sorted({type(layer.impl).__name__ for layer in layers}),
        "tokens": [list(each.token_ids) for each in outputs],
        "logprobs": [[ranked(step) for step in each.logprobs] for each in outputs],
    }
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
