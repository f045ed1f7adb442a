"""benchmarks/decode_configs.py: configs by their changes, and what a race with them prints."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from benchmarks import decode, decode_configs
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("decode_b16_h32_kv8_k1024_d128_bf16")


def test_a_config_is_the_default_with_changes() -> None:
    changes = decode_configs.parsed("TREE_DEPTH=3,SPLIT_COST=16")
    assert decode_configs.name(changes) == "TREE_DEPTH=3,SPLIT_COST=16"
    case, config = decode_configs.changed(changes, WORKLOAD, Target.named("sm90"))
    assert config == {**case.default(), "TREE_DEPTH": 3, "SPLIT_COST": 16}


def test_latent_attention_has_a_kernel_of_its_own() -> None:
    workload = Workload.parse("decode_b64_h128_k8192_page64_mla")
    case, config = decode_configs.changed({"CLUSTER_SIZE": 2}, workload, Target.named("sm90"))
    assert case.kernel.name == "attention_decode_mla_cuda_sm90" and config["CLUSTER_SIZE"] == 2


@pytest.mark.parametrize("text", ["SPLIT_COST", "SPLIT_COST=few"])
def test_values_are_numbers(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a whole number"):
        decode_configs.parsed(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"WAVES": 1}, "has no 'WAVES'"), ({"SPLIT_COST": 12}, "SPLIT_COST must be one of")],
)
def test_what_the_kernel_does_not_have_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_configs.changed(changes, WORKLOAD, Target.named("sm90"))


def test_a_config_that_a_rule_refuses_is_not_raced() -> None:
    with pytest.raises(ValueError, match="a leaf must have whole blocks"):
        decode_configs.changed({"LEAF_KEYS": 32}, WORKLOAD, Target.named("sm90"))


def test_a_config_is_no_peer_of_the_default() -> None:
    us = {"tunefa": 10.0, "cudnn": 12.0, "SPLIT_COST=16": 8.0}
    found: dict[str, Any] = {"workload": str(WORKLOAD), "us": us}
    assert decode.lead(found) == 1.2 and decode.lead(found, "SPLIT_COST=16") == 1.5
    assert decode.lead(found, "SPLIT_COST=8") is None
    *_, default, _, config = decode.tables([found]).splitlines()
    assert default == "tunefa: 1 points, ahead at 1, mean 1.200, least 1.200"
    assert config == "SPLIT_COST=16: 1 points, ahead at 1, mean 1.500, least 1.500"
