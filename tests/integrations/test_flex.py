"""FlexAttention's options from tunefa's records: Inductor's choices, asked directly."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

import tunefa
from tests.support.sample_records import CONFIG, measured, predicted
from tunefa.integrations import flex
from tunefa.runtime.chip import Chip
from tunefa.spec.target import Target
from tunefa.store.record import Record
from tunefa.store.results import Store, default_store, write

BACKWARD = {
    "BLOCK_M1": 32,
    "BLOCK_N1": 64,
    "BLOCK_M2": 128,
    "BLOCK_N2": 64,
    "num_warps": 4,
    "num_stages": 2,
}
BF16 = torch.bfloat16


def forward(block_m: int, block_n: int, workload: str = "fwd_q4096", **changes: Any) -> Record:
    return measured(workload, config={**CONFIG, "BLOCK_M": block_m, "BLOCK_N": block_n}, **changes)


def backward(workload: str = "bwd_q4096", **options: int) -> Record:
    return measured(workload, kernel="attention_bwd_triton", config={**BACKWARD, **options})


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor and tunefa take this machine for one with an H200."""
    chip = Chip("NVIDIA H200", Target.seen("NVIDIA H200", (9, 0), 132))
    monkeypatch.setattr(Chip, "of", lambda device: chip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    yield
    flex.use_defaults()


def used(path: Path, *records: Record) -> int:
    write(path / "own.yaml", records)
    return flex.use_records(path / "own.yaml")


def tiles(configs: list[Any]) -> list[tuple[int, int]]:
    return [(each.block_m, each.block_n) for each in configs]


def test_recorded_options_stand_behind_inductor_s_own(tmp_path: Path) -> None:
    own = V.choices.get_flex_attention_fwd_configs(128, BF16, "cuda")
    (first,) = own
    used(tmp_path, forward(128, 32))
    found = V.choices.get_flex_attention_fwd_configs(128, BF16, "cuda")
    assert found[:1] == own and type(found[1]) is type(first)
    assert dataclasses.asdict(found[1]) == {
        **dataclasses.asdict(first),
        **{"block_m": 128, "block_n": 32, "num_warps": 8, "num_stages": 3},
    }
    flex.use_defaults()
    assert V.choices.get_flex_attention_fwd_configs(128, BF16, "cuda") == own
    assert config.inductor_choices_class is None
    flex.use_defaults()


def test_the_backward_pass_has_records_of_its_own(tmp_path: Path) -> None:
    assert used(tmp_path, backward(), backward("bwd_q8192", BLOCK_N1=16), forward(128, 32)) == 2
    own, found = InductorChoices().get_flex_attention_bwd_configs(128, BF16), V.choices
    made = found.get_flex_attention_bwd_configs(128, BF16, "cuda")
    assert made[:-1] == own, "a step of 32 rows does not divide 16 keys"
    last = dataclasses.asdict(made[-1])
    assert last == {name.lower(): value for name, value in BACKWARD.items()}


def test_options_are_those_of_the_head_dim_dtype_and_arch(tmp_path: Path) -> None:
    used(
        tmp_path,
        forward(64, 32, "fwd_q4096_d64"),
        forward(64, 128, "fwd_q4096_fp16"),
        forward(32, 32, arch="sm80", device="NVIDIA A100-SXM4-80GB"),
        measured(kernel="attention_fwd_cuda_sm90", config={"TILE_M": 128}),
    )
    questions: list[tuple[int, torch.dtype, list[tuple[int, int]]]] = [
        (64, BF16, [(64, 32)]),
        (128, torch.float16, [(64, 128)]),
        (128, BF16, []),
        (96, torch.float32, []),
        (96, torch.complex64, []),
    ]
    for head_dim, dtype, right in questions:
        own = InductorChoices().get_flex_attention_fwd_configs(head_dim, dtype, "cuda")
        found = V.choices.get_flex_attention_fwd_configs(head_dim, dtype, "cuda")
        assert found[: len(own)] == own and tiles(found[len(own) :]) == right
    assert V.choices.get_flex_attention_fwd_configs(64, BF16, "cpu") == (
        InductorChoices().get_flex_attention_fwd_configs(64, BF16, "cpu")
    )


def test_the_most_trusted_come_first_and_none_twice() -> None:
    target = Target.seen("NVIDIA H200", (9, 0), 132)
    records = [
        predicted("fwd_q16384", config={**CONFIG, "BLOCK_M": 16}),
        forward(32, 32, "fwd_q16384", device="NVIDIA H100 80GB HBM3"),
        forward(64, 32, "fwd_q1024"),
        forward(64, 64, "fwd_q2048"),
        forward(64, 64, "fwd_q8192"),
    ]
    found = flex.recorded(records, "fwd", (128, "bf16"), target)
    assert [(x["block_m"], x["block_n"]) for x in found] == [(64, 64), (64, 32), (32, 32)]
    assert len(found) == flex.MOST


def test_a_chip_without_records_has_inductor_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(tmp_path, forward(128, 32))
    monkeypatch.setattr(Chip, "of", lambda device: Chip("GPU", None, "unknown"))
    assert len(V.choices.get_flex_attention_fwd_configs(128, BF16, "cuda")) == 1


def test_caches_know_which_options_there_are(tmp_path: Path) -> None:
    keys = []
    for record in (forward(128, 32), forward(128, 16), forward(128, 32), backward()):
        used(tmp_path, record)
        portable: Any = config.save_config_portable()
        keys.append(portable["inductor_choices_class"])
    assert keys[0] == keys[2] and len(set(keys)) == 3 and keys[0].startswith("tunefa-")


def test_the_user_s_records_are_read_without_a_path(tmp_path: Path) -> None:
    count = flex.use_records()
    choices: Any = V.choices
    assert choices.records == flex.RecordedChoices(default_store()).records
    assert len(choices.records) == count
    assert flex.RecordedChoices(Store([tmp_path])).records == []


def test_other_threads_are_left_alone(tmp_path: Path) -> None:
    used(tmp_path, forward(128, 32))
    counts = []

    def count() -> None:
        counts.append(len(V.choices.get_flex_attention_fwd_configs(128, BF16, "cuda")))

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    assert counts == [1]


def test_compiling_goes_on(tmp_path: Path) -> None:
    used(tmp_path, forward(128, 32))
    x = torch.arange(5.0)
    compiled: Any = torch.compile(torch.sin)
    torch.testing.assert_close(compiled(x), x.sin())


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tunefa.TunefaError, match="missing"):
        flex.use_records(tmp_path / "missing.yaml")
    assert config.inductor_choices_class is None
    with config.patch(inductor_choices_class=InductorChoices):
        with pytest.raises(tunefa.TunefaError, match=r"is <class .*InductorChoices'> already"):
            flex.use_records()
        flex.use_defaults()
        assert config.inductor_choices_class is InductorChoices
    monkeypatch.setattr(flex, "config", object())
    with pytest.raises(tunefa.TunefaError, match="has no inductor_choices_class"):
        flex.use_records()
