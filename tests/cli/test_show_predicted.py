"""A predicted record is found again under every name of its chip, by every command."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG
from tests.support.made_here import CUDA, made_here
from tests.support.sample_records import predicted
from tunefa.compile import provenance
from tunefa.costmodel.version import GPU_MODEL_VERSION, learned_id
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload
from tunefa.store import results as store
from tunefa.store.record import Record

W = "fwd_b1_h32_kv8_q8192_k8192_d128_bf16_causal"


@pytest.fixture
def found() -> Record:
    """The record of a search without a device, in the store."""
    record = predicted(W, config=CONFIG, provenance=made_here().provenance)
    store.default_store().add(record)
    return record


@pytest.fixture
def compared() -> Record:
    """One that was compared with a measured default, which it names."""
    config = kernels.load(CUDA).default(Workload.parse(W), archs.load("sm90"))
    record = predicted(
        W, kernel=CUDA, config=config, certificate={"known": {"kernel": CUDA}},
        provenance={**provenance.of(kernels.load(CUDA)), "model": GPU_MODEL_VERSION,
                    "learned": learned_id("predicted", "sm90")},
    )  # fmt: skip
    store.default_store().add(record)
    return record


@pytest.mark.parametrize("chip", ["--arch h100", "--arch sm90", "--device h100", "--arch h200"])
def test_a_predicted_record_is_found_under_each_name(run: Run, compared: Record, chip: str) -> None:
    found = compared
    words = [*chip.split(), "-w", W]
    assert json.loads(run("show", *words, "--json").stdout)["records"] == [found.to_dict()]
    exported = run("export", "-", "--format", "json", *words).stdout
    assert json.loads(exported)["records"] == [found.to_dict()]
    explained = json.loads(run("explain", *words, "--no-compile", "--json").stdout)
    assert explained["config"] == found.config
    assert explained["origin"].startswith("predicted: ")


@pytest.mark.parametrize("chip", ["--arch a100", "--device l4", "--arch sm80"])
def test_it_is_not_that_of_another_family(run: Run, found: Record, chip: str) -> None:
    assert json.loads(run("show", *chip.split(), "--json").stdout)["records"] == []


def test_explain_names_it_where_a_measured_record_comes_first(run: Run, found: Record) -> None:
    store.default_store().add(made_here(W, config={**CONFIG, "BLOCK_N": 128}))
    words = ("explain", "--arch", "h100", "-w", W, "--no-compile")
    explained = json.loads(run(*words, "--json").stdout)
    assert explained["config"]["BLOCK_N"] == 128
    origin = explained["origin"]
    assert "measured on NVIDIA H200" in origin
    assert "a measured record comes before the one predicted for this workload" in origin
    assert "attention_fwd_triton BLOCK_M=128 BLOCK_N=64 num_warps=8" in origin
    assert "predicted for this" in " ".join(run(*words).stdout.split())


def test_it_says_that_the_model_has_learned_something_else_since(
    run: Run, found: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is from before versions; then it is of today's, by a model that was forgotten."""
    assert "model of time without a version -> " in " ".join(run("show").stdout.split())
    made = {**found.provenance, "model": GPU_MODEL_VERSION, "learned": "0123abcd"}
    store.default_store().add(replace(found, provenance=made))
    for now, word in ((None, "nothing"), ("beef", "beef")):
        monkeypatch.setattr(provenance, "learned_id", lambda objective, arch, now=now: now)
        told = " ".join(run("show").stdout.split())
        assert f"since then: what the model had learned 0123abcd -> {word}" in told
    monkeypatch.setattr(provenance, "learned_id", lambda objective, arch: "0123abcd")
    assert "since then" not in run("show").stdout
