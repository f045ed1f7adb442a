"""benchmarks/decode_configs.py: configs by their changes, and what a race with them prints."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from benchmarks import compiled_ahead, decode, decode_configs
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("decode_b16_h32_kv8_k1024_d128_bf16")


def test_a_config_is_the_default_with_changes() -> None:
    for text, changes in (
        ("TREE_DEPTH=3,SPLIT_COST=16", {"TREE_DEPTH": 3, "SPLIT_COST": 16}),
        ("attention_decode_triton:MAX_SPLITS=16", {"MAX_SPLITS": 16}),
        ("attention_decode_triton:", {}),
        ("attention_decode_cuda_sm90:", {}),
    ):
        config = decode_configs.parsed(text)
        assert str(config) == text
        case, found = config.at(WORKLOAD, Target.named("sm90"))
        assert found == {**case.default(), **changes}
        assert case.kernel.name == (text.rpartition(":")[0] or decode_configs.KERNEL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("WAVES=1", "has no 'WAVES'"),
        ("SPLIT_COST", "not ''"),
        ("SPLIT_COST=12", "must be one of"),
        ("attention_decode_triton:SPLIT_COST=16", "attention_decode_triton has no 'SPLIT_COST'"),
        ("no_kernel:SPLIT_COST=16", "no kernel 'no_kernel'"),
    ],
)
def test_what_the_kernel_does_not_have_is_refused(text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        decode_configs.parsed(text)


def test_a_config_that_a_rule_refuses_is_not_raced() -> None:
    with pytest.raises(ValueError, match="a leaf must have whole blocks"):
        decode_configs.parsed("LEAF_KEYS=32").at(WORKLOAD, Target.named("sm90"))


def test_a_config_is_no_peer_of_the_default() -> None:
    us = {"tunefa": 10.0, "cudnn": 12.0, "SPLIT_COST=16": 8.0}
    found: dict[str, Any] = {"workload": str(WORKLOAD), "us": us}
    assert decode.lead(found) == 1.2 and decode.lead(found, "SPLIT_COST=16") == 1.5
    assert decode.lead(found, "SPLIT_COST=8") is None
    *_, default, _, config = decode.tables([found]).splitlines()
    assert default == "tunefa: 1 points, ahead at 1, mean 1.200, least 1.200"
    assert config == "SPLIT_COST=16: 1 points, ahead at 1, mean 1.500, least 1.500"


def test_configs_are_compiled_once_for_all_batches_and_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[compiled_ahead.Task] = []
    monkeypatch.setattr(compiled_ahead, "compile_all", compiled.extend)
    texts = ("TREE_DEPTH=3", "TREE_DEPTH=3,SPLIT_COST=16", "LEAF_KEYS=32")
    configs = [decode_configs.parsed(text) for text in texts]  # a rule refuses the last one
    words = ("b16_h32_kv8_k1024", "b1_h32_kv8_k4096", "b1_h32_kv4_k4096")
    workloads = [Workload.parse(f"decode_{each}") for each in words]
    decode_configs.compile_all(configs, workloads, Target.named("sm90"))
    assert [names[1] for names, _ in compiled] == [str(workloads[0]), str(workloads[2])]
