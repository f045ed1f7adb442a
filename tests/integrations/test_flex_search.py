"""A search of FlexAttention's options, whole, on the CPU: its kernels there have no such options,
so that what is tested is all but the times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.flex_on_cpu import H200, Here, Unwatched, given
from tunefa.compile.contract import CompileError
from tunefa.errors import TunefaError
from tunefa.integrations import flex, flex_search, flex_traced
from tunefa.integrations.flex_search import Asked
from tunefa.measure import racing
from tunefa.measure.timing import HostStopwatch
from tunefa.store import journal
from tunefa.store.record import Record
from tunefa.store.results import Store, read


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(racing, "Monitor", Unwatched)
    monkeypatch.setattr(flex_search, "Workers", Here)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", flex_traced.caches())
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))


def searched(tmp_path: Path, *arguments: Any, **how: Any) -> list[Record]:
    store = Store([tmp_path / "results"])
    asked = Asked.of({"enable_gqa": True, "store": store, "budget_s": 4.0, **how})
    return flex_search._search(arguments or given(), asked, H200, HostStopwatch())


def test_a_search_leaves_a_record_and_a_journal(tmp_path: Path) -> None:
    (record,) = searched(tmp_path)
    assert record.kernel.startswith("flex_attention_fwd.") and record.functions in record.kernel
    assert str(record.workload) == "fwd_b2_h4_kv2_q256_k256_d64_fp32_full"
    assert (record.arch, record.device, record.mode) == ("sm90", "NVIDIA H200", "eager")
    assert record.provenance["torch"] == torch.__version__.partition("+")[0] or torch.__version__
    assert "against fp64 on the device" in record.provenance["check"]
    assert record.certificate is not None and record.certificate["racers"] >= 1
    (path,) = (tmp_path / "results").rglob("*.yaml")
    assert read(path) == [record]
    (kept,) = journal.paths()
    trials = list(journal.read(kept))
    assert {kernel for kernel, _ in trials} == {record.kernel}
    assert len({str(trial.config) for _, trial in trials}) == record.provenance["trials"] >= 2
    assert journal.header(kept)["workload"] == str(record.workload)
    dense = record.workload.flops / record.median_us / 1e6
    assert 0 < record.tflops < dense, "blocks that the mask leaves out are not counted"


def test_pytorch_s_own_options_are_tried_first(tmp_path: Path) -> None:
    (record,) = searched(tmp_path, budget_s=0.001)
    first = next(iter(journal.read(journal.paths()[0])))[1]
    own = {"BLOCK_M": 128, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3}
    assert {name: first.config[name] for name in own} == own
    assert record.config in (first.config, record.config)


def test_a_search_needs_a_device() -> None:
    with pytest.raises(TunefaError, match=r"searched on a device, and q is on cpu.*NVIDIA GPU"):
        flex.search(*given())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"budget": 3}, "unknown argument 'budget': known are scale, enable_gqa"),
        ({"budget_s": 0}, "budget_s is 0: give a positive number"),
        ({"budget_s": "40s"}, "budget_s is '40s': give a positive number"),
        (
            {"kernel_options": {"BLOCK_M": 64}},
            "kernel_options has BLOCK_M, which the search chooses",
        ),
        ({"kernel_options": {"fwd_num_warps": 4}}, "kernel_options has num_warps"),
    ],
)
def test_mistakes(tmp_path: Path, how: dict[str, Any], said: str) -> None:
    with pytest.raises(TunefaError, match=said):
        searched(tmp_path, **how)
    assert not list(tmp_path.rglob("*.yaml"))


def test_few_rows_are_pytorch_s_kernel_for_decoding(tmp_path: Path) -> None:
    q, k, v, score_mod, _ = given()
    with pytest.raises(TunefaError, match="fewer than 128 query rows with another kernel"):
        searched(tmp_path, q[:, :, :16].contiguous(), k, v, score_mod, None)


def test_own_options_that_do_not_compile_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise CompileError("InductorError: no")

    monkeypatch.setattr(flex_search, "run_of", fails)  # the capture has compiled them
    with pytest.raises(TunefaError, match=r"own options do not compile .*InductorError: no"):
        searched(tmp_path)
