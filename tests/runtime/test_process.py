"""tunefa/runtime/process.py: last_choice, load, and the plans that calls share."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.dense_calls import heads_first, sdpa, tensors
from tests.support.fake_kernel import DEFAULT, FakeLanguage
from tests.support.sample_records import measured
from tunefa.errors import TunefaError
from tunefa.runtime import choose
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.choice import Chosen
from tunefa.runtime.plan import Plan
from tunefa.runtime.process import Runtime
from tunefa.spec.workload import Workload
from tunefa.store import results as store
from tunefa.store.results import Store

pytestmark = pytest.mark.usefixtures("fresh")


TMA = {"BLOCK_M": 128, "USE_TMA": 1}


def test_last_choice_says_why_pytorch_ran() -> None:
    assert tunefa.last_choice() is None
    tunefa.flash_attention(*tensors())
    chosen = tunefa.last_choice()
    assert chosen is not None
    assert (chosen.kernel, chosen.how, chosen.config) == ("pytorch", "pytorch", {})
    assert chosen.why == "pytorch: q is on cpu, and kernels run on CUDA devices"


def test_last_choice_is_the_thread_s_own() -> None:
    tunefa.flash_attention(*tensors())
    seen: list[Chosen | None] = []
    thread = threading.Thread(target=lambda: seen.append(tunefa.last_choice()))
    thread.start()
    thread.join()
    assert seen == [None] and tunefa.last_choice() is not None


def test_the_config_that_last_choice_shows_is_a_copy(fresh: Runtime) -> None:
    chosen = Chosen("kernel", dict(TMA), "exact", "exact: it is", None)
    fresh._last.plan = SimpleNamespace(chosen=chosen)
    shown = tunefa.last_choice()
    assert shown is not None and shown.config == TMA
    shown.config["BLOCK_M"] = 1
    assert tunefa.last_choice() == Chosen("kernel", TMA, "exact", "exact: it is", None)


def test_load_reads_the_file_at_once(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match=r"gone\.yaml"):
        tunefa.load(tmp_path / "gone.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("tunefa_schema: 1\nrecords: [\n", encoding="utf-8")
    with pytest.raises(TunefaError, match=r"broken\.yaml:"):
        tunefa.load(str(broken))


def test_descales_that_are_given_or_not_make_plans_of_their_own(
    fresh: Runtime, language: FakeLanguage
) -> None:
    q, k, v = (x.to(torch.float8_e4m3fn) for x in tensors())
    some = torch.ones(k.shape[0], k.shape[2])
    options, given = Options(True), [(), (some, None, None), (None, some, None), (some,) * 3]
    plans = [fresh.plan(Tensors(q, k, v, None, descales), options) for descales in given]
    assert len(set(map(id, plans))) == 4
    assert fresh.plan(Tensors(q, k, v, None, (2 * some, None, None)), options) is plans[1]


def plan_for(
    fresh: Runtime, q: Tensor, k: Tensor, v: Tensor, causal: bool = True, layout: str = "bshd"
) -> Plan:
    return fresh.plan(Tensors(q, k, v), Options(causal, layout=layout))


def test_a_known_shape_is_not_decided_again(
    fresh: Runtime, language: FakeLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plan_for(fresh, *tensors())

    def never(*arguments: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(choose, "choose", never)
    monkeypatch.setattr(store, "read", never)
    monkeypatch.setattr(language, "compile", never)
    assert plan_for(fresh, *tensors()) is first
    out, _ = first.run(Tensors(*tensors()), None)
    torch.testing.assert_close(out, sdpa(*tensors(), True))


@pytest.mark.parametrize("seqlen_k", [24, 48])
def test_what_a_plan_depends_on(fresh: Runtime, language: FakeLanguage, seqlen_k: int) -> None:
    q, k, v = tensors(seqlen_k=seqlen_k)
    wide = torch.cat([v, v], -1)
    plans = [
        plan_for(fresh, q, k, v),
        plan_for(fresh, q, k, v, causal=False),
        plan_for(fresh, q, k, v, layout="bshd"),
        fresh.plan(Tensors(q, k, v), Options(True, 5)),
        fresh.plan(Tensors(q, k, v), Options(True, 6)),
        plan_for(fresh, *heads_first(q, k, v), layout="bhsd"),
        plan_for(fresh, q.bfloat16(), k.bfloat16(), v.bfloat16()),
        plan_for(fresh, q, k, wide),
        plan_for(fresh, q, k, wide[..., :32]),
        plan_for(fresh, torch.ones(q.numel() + 1)[1:].view(q.shape), k, v),
    ]
    assert plans[2] is plans[0]
    assert len({id(each) for each in plans}) == len(plans) - 1


def test_another_length_or_batch_does_not_compile_again(
    fresh: Runtime, language: FakeLanguage
) -> None:
    plan_for(fresh, *tensors())
    plan_for(fresh, *tensors(seqlen_k=80))
    q, k, v = tensors(seqlen_q=3)
    plan_for(fresh, q[:1], k[:1], v[:1])
    assert language.compiled == [(DEFAULT, True)]
    plan_for(fresh, *tensors(heads=8))  # another group is another kernel
    plan_for(fresh, *tensors(head_dim=40))  # not aligned
    assert language.compiled[1:] == [(DEFAULT, True), (DEFAULT, False)]


def test_plans_run_their_window(fresh: Runtime, language: FakeLanguage) -> None:
    for window in (3, 30):
        made = fresh.plan(Tensors(*tensors()), Options.of(True, window))
        out, _ = made.run(Tensors(*tensors()), None)
        torch.testing.assert_close(out, sdpa(*tensors(), True, None, window))
        assert made.chosen.workload == Workload.parse(f"{WORKLOAD}_w{window}")


def test_plans_are_bounded(
    fresh: Runtime, language: FakeLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh._plans, "_size", 2)
    first = plan_for(fresh, *tensors(seqlen_q=1))
    second = plan_for(fresh, *tensors(seqlen_q=2))
    assert plan_for(fresh, *tensors(seqlen_q=1)) is first
    plan_for(fresh, *tensors(seqlen_q=3))
    assert len(fresh._plans) == 2
    assert plan_for(fresh, *tensors(seqlen_q=1)) is first
    assert plan_for(fresh, *tensors(seqlen_q=2)) is not second


def test_plans_that_hold_device_memory_count_for_more(
    fresh: Runtime, language: FakeLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh._plans, "_size", 20)
    for device_bytes, kept in ((0, 20), (3 * 2**14, 5), (2**20, 1)):
        language.device_bytes = device_bytes
        for seqlen in range(1, 30):
            plan_for(fresh, *tensors(seqlen_q=seqlen, seqlen_k=device_bytes % 1000 + 1))
        assert len(fresh._plans) == kept


def test_threads_make_one_plan(fresh: Runtime, language: FakeLanguage) -> None:
    plans: list[Plan] = []
    start = threading.Barrier(4)

    def run() -> None:
        start.wait()
        plans.append(plan_for(fresh, *tensors()))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(plans) == 4 and len({id(each) for each in plans}) == 1
    assert len(language.compiled) == 1


WORKLOAD = "b2_h4_kv2_q16_k24_d32_fp32_causal"


def test_tunefa_home_holds_the_user_s_records(
    fresh: Runtime, language: FakeLanguage, tmp_path: Path
) -> None:
    Store([tmp_path / "results"]).add(measured(WORKLOAD, config=TMA))
    chosen = plan_for(fresh, *tensors()).chosen
    assert (chosen.how, chosen.config, chosen.workload) == ("exact", TMA, Workload.parse(WORKLOAD))
    assert plan_for(fresh, *tensors(seqlen_k=48)).chosen.how == "nearest"


def test_a_record_of_another_toolchain_runs_and_is_called_unconfirmed(
    fresh: Runtime, language: FakeLanguage, tmp_path: Path
) -> None:
    language.triton = "3.8.0"
    Store([tmp_path / "results"]).add(measured(WORKLOAD, config=TMA))
    chosen = plan_for(fresh, *tensors()).chosen
    assert (chosen.how, chosen.config) == ("exact", TMA)
    assert chosen.why == (
        f"exact: measured on NVIDIA H200 for fwd_{WORKLOAD}; measured with Triton 3.7.1, and this "
        "machine has 3.8.0: unconfirmed, `tunefa verify` confirms it"
    )
    near = plan_for(fresh, *tensors(seqlen_k=48)).chosen
    assert near.how == "nearest" and near.why.endswith("`tunefa verify` confirms it")


def test_a_record_of_another_source_does_not_run(
    fresh: Runtime, language: FakeLanguage, tmp_path: Path
) -> None:
    made = {**measured().provenance, "source_hash": "ffff"}
    Store([tmp_path / "results"]).add(measured(WORKLOAD, config=TMA, provenance=made))
    assert plan_for(fresh, *tensors()).chosen.how == "default"


def test_load_decides_again_and_stands_before_the_store(
    fresh: Runtime, language: FakeLanguage, tmp_path: Path
) -> None:
    assert plan_for(fresh, *tensors()).chosen.how == "default"
    for block_m in (32, 64):
        file = tmp_path / f"{block_m}.yaml"
        store.write(file, [measured(WORKLOAD, config={**TMA, "BLOCK_M": block_m})])
        tunefa.load(file)
        assert plan_for(fresh, *tensors()).chosen.config["BLOCK_M"] == block_m
    Store([tmp_path / "results"]).add(measured(WORKLOAD, config=TMA))
    assert len(fresh.planner.records.records()) == 3
    (tmp_path / "64.yaml").unlink()  # what was loaded stays
    fresh._plans.clear()
    assert plan_for(fresh, *tensors()).chosen.config["BLOCK_M"] == 64


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layout": []}, r"unknown layout '\[\]'"),
        ({"q": torch.ones(2, 16, 4, 32).to_sparse()}, r"q is torch\.sparse_coo"),
        ({"q": None}, "q is a NoneType"),
    ],
)
def test_arguments_that_have_no_key_are_named(
    fresh: Runtime, language: FakeLanguage, changes: dict[str, Any], says: str
) -> None:
    """On CUDA a call looks for its plan before anything else."""
    q, k, v = tensors()
    options = Options(layout=changes.get("layout", "bshd"))
    with pytest.raises(TunefaError, match=says):
        fresh.plan(Tensors(changes.get("q", q), k, v), options)
