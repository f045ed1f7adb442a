"""tunefa/runtime/gathered.py: which calls over pages run on copies of their keys.
tests/kernels/test_gather_pages.py runs such plans."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support import prefill_calls
from tests.support.fake_kernel import H200
from tests.support.fixed_store import Fixed
from tests.support.sample_records import measured
from tunefa.compile import languages
from tunefa.compile.contract import CompileError
from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime import gathered
from tunefa.runtime.call import PACKED, Options
from tunefa.runtime.chip import Chip
from tunefa.runtime.gathered import GatheredPlan, bytes_of_copies, rows_of_key
from tunefa.runtime.prefill_call import PrefillCall, PrefillTensors, key
from tunefa.runtime.prefill_plan import Prefill
from tunefa.runtime.process import Runtime
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

GLUON = kernels.load("attention_fwd_gluon_sm90")
PAGED = kernels.load("attention_prefill_triton")
HEADS, HEADS_KV, DIM, PAGE, COLUMNS = 8, 2, 64, 16, 40
LEAST = gathered.LEAST_ROWS * HEADS_KV // HEADS
"""Queries of a sequence."""


def made(rows: int = 2 * LEAST, batch: int = 2, **changes: Any) -> PrefillTensors:
    """The tensors of a call with as few queries as a copy takes, some of them changed."""
    sizes = HEADS, HEADS_KV, DIM, 7, PAGE, COLUMNS
    return prefill_calls.zeros(rows, batch, *sizes)._replace(**changes)


def options(**changes: Any) -> Options:
    return Options(causal=True, layout=PACKED, max_seqlen_q=2 * LEAST)._replace(**changes)


def job(
    tensors: PrefillTensors, out: torch.Tensor | None = None, changes: dict[str, Any] | None = None
) -> Prefill:
    return Prefill(PrefillCall.of(tensors, options(**(changes or {})), None), out)


def compiled(case: Any, config: Any, aligned: bool) -> Any:
    """A compiler that is never asked for anything but these two."""
    assert case.kernel.name in ("gather_pages", GLUON.name)


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepares launches without a device."""
    _ = PAGED.module
    for name in ("triton", "gluon"):
        prepare = lambda spec, compiled, tensors: SimpleNamespace(device_bytes=1)  # noqa: E731
        monkeypatch.setattr(languages.load(name), "prepare", prepare)


def plan_of(
    asked: Prefill, *records: Any, chip: Chip = H200, compile: Any = compiled, only: Any = (GLUON,)
) -> GatheredPlan | None:
    return gathered.plan(asked, chip, Fixed(records), only, compile)


def test_the_choice_says_that_keys_are_gathered() -> None:
    plan = plan_of(job(made()))
    assert plan is not None
    chosen = plan.chosen
    assert chosen.kernel == GLUON.name
    assert chosen.why.startswith("many queries, so the keys on pages are gathered first; default:")
    assert str(chosen.workload) == "fwd_b2_h8_kv2_q512_k1024_d64_bf16_causal_varlen"
    assert plan.most_keys == 1024 and plan.device_bytes == 2


def test_masks_and_results_are_those_of_packed_attention() -> None:
    asked = {"causal": False, "window_left": 600, "window_right": 500, "softcap": 3.0}
    plan = plan_of(job(made(sinks=torch.zeros(HEADS)), changes=asked))
    assert plan is not None and plan.chosen.workload is not None
    workload = plan.chosen.workload
    assert workload.band == (600, 500) and workload.softcap and workload.varlen
    assert not workload.sinks, "PyTorch adds them"


def test_chunks_of_few_queries_are_left_to_the_pages() -> None:
    assert plan_of(job(made(rows=2 * LEAST - 63))) is not None, "rows are rounded up to eighths"
    assert plan_of(job(made(rows=2 * LEAST - 64))) is None
    assert plan_of(job(made(), changes={"max_seqlen_q": LEAST})) is not None
    assert plan_of(job(made(), changes={"max_seqlen_q": LEAST // 2})) is None, "the rest is padding"


@pytest.mark.parametrize(
    ("tensors", "more"),
    [
        (made(), {"chip": Chip("NVIDIA A100", Target.named("a100"))}),
        (made(), {"chip": Chip("NVIDIA B200", Target.named("b200"))}),
        (made(), {"chip": Chip("", None, "there is no GPU")}),
        (made(), {"only": (kernels.load("attention_fwd_triton"),)}),
        (made(), {"only": (kernels.load("attention_fwd_fa2"),)}),
        (made(block_table=torch.zeros(2, 0).int()), {}),
        (made(block_table=torch.zeros(2, 2**20 // PAGE + 1).int()), {}),
        (made(k=torch.zeros(7, PAGE, DIM, HEADS_KV).bfloat16().transpose(2, 3)), {}),
        (made(k=torch.zeros(2 * 7 * PAGE * DIM + 1).bfloat16()[1:].view(7, PAGE, 2, DIM)), {}),
        (made()._replace(**{name: getattr(made(), name).float() for name in "qkv"}), {}),
    ],
)
def test_what_the_packed_kernel_does_not_serve_is_left_to_the_pages(
    tensors: PrefillTensors, more: dict[str, Any]
) -> None:
    assert plan_of(job(tensors), **more) is None


def test_caches_may_have_any_strides() -> None:
    wide = made()
    narrow = wide._replace(**{name: getattr(wide, name)[..., :40] for name in "kv"})
    turned = {n: getattr(wide, n).transpose(1, 2).contiguous().transpose(1, 2) for n in "kv"}
    for tensors in (narrow._replace(q=wide.q[..., :40].contiguous()), wide._replace(**turned)):
        assert plan_of(job(tensors)) is not None


def test_caches_in_e4m3_are_gathered_for_bf16_alone() -> None:
    cache, ones = torch.zeros(7, PAGE, HEADS_KV, DIM).to(E4M3), torch.ones(2, HEADS_KV)
    tensors = made(k=cache, v=cache, k_descale=ones, v_descale=ones)
    plan = plan_of(job(tensors))
    assert plan is not None and plan.chosen.workload is not None
    assert plan.chosen.workload.dtype == "bf16"
    assert plan_of(job(tensors._replace(q=made().q.half()))) is None, "it may overflow"


def test_an_output_has_to_be_one_that_packed_attention_writes() -> None:
    q = made().q
    assert plan_of(job(made(), torch.empty_like(q))) is not None
    wide = q.new_zeros(q.shape[0], 2 * HEADS, DIM)[:, :HEADS]
    shifted = q.new_zeros(q.numel() + 1)[1:].view(q.shape)
    assert plan_of(job(made(), wide)) is None and plan_of(job(made(), shifted)) is None


def test_a_record_of_just_this_call_decides_for_its_kernel() -> None:
    own = str(job(made()).workload())
    of_pages = {"kernel": PAGED.name, "config": dict(PAGED.default(job(made()).workload(), SM90))}
    assert plan_of(job(made()), measured(own, **of_pages)) is None
    for other in (
        measured(own, **of_pages, device="NVIDIA H100 80GB HBM3"),
        measured(own.replace("q512", "q2048"), **of_pages),
    ):
        assert plan_of(job(made()), other) is not None


def test_a_copy_that_does_not_compile_is_said_and_not_taken() -> None:
    def broken(case: Any, config: Any, aligned: bool) -> None:
        if case.kernel.name == "gather_pages":
            raise CompileError("ptxas says no")

    with pytest.warns(UserWarning, match="keys on pages are not copied: ptxas says no"):
        assert plan_of(job(made()), compile=broken) is None


def test_a_window_counts_for_the_part_of_the_keys_that_it_shows() -> None:
    workload = job(made()).workload()
    assert rows_of_key(workload, 2 * LEAST, 2) == gathered.LEAST_ROWS
    assert (
        rows_of_key(replace(workload, window_left=511), 2 * LEAST, 2) == 0.5 * gathered.LEAST_ROWS
    )
    assert rows_of_key(replace(workload, seqlen_q=8), 2 * LEAST, 2) == 8 * 4
    beyond = replace(workload, causal=False, window_left=None, window_right=1)
    assert rows_of_key(beyond, 2 * LEAST, 2) == gathered.LEAST_ROWS


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("b1_h32_kv8_q8192_k8192", True),
        ("b8_h32_kv8_q2048_k2048", True),
        ("b32_h32_kv8_q512_k512", True),
        ("b1_h32_kv8_q2048_k32768", True),
        ("b8_h32_kv8_q512_k8192", True),
        ("b32_h32_kv8_q64_k4096", False),
        ("b64_h32_kv8_q16_k4096", False),
    ],
)
def test_what_was_measured_is_decided_as_it_was_faster(text: str, taken: bool) -> None:
    """They are the workloads of benchmarks/prefill.py, with sequences of different lengths."""
    workload = Workload.parse(f"prefill_{text}_d128_bf16_page64_varlen")
    rows = sum(each for each, _ in workload.lengths)
    assert (rows_of_key(workload, rows, workload.batch) >= gathered.LEAST_ROWS) == taken
    assert bytes_of_copies(workload, workload.batch) <= gathered.MOST_BYTES


def test_the_copies_are_bounded_by_shapes() -> None:
    """32 sequences of 8,192 keys and 8 KV heads of 128 take 1 GiB."""
    workload = Workload.parse("prefill_b32_h32_kv8_q1024_k8192_d128_bf16_page64_varlen")
    assert bytes_of_copies(workload, 32) == gathered.MOST_BYTES == 2**30
    cache = torch.empty(1, PAGE, HEADS_KV, DIM).bfloat16()
    for columns, taken in ((2**21 // PAGE // 2, True), (2**21 // PAGE // 2 + 1, False)):
        tensors = made(k=cache, v=cache, block_table=torch.zeros(2, columns).int())
        copied = gathered.copies(tensors._replace(q=tensors.q.to("meta")), 2**21)
        assert (plan_of(job(tensors)) is not None) == taken
        if taken:
            assert sum(each.numel() for each in copied[:2]) * 2 <= gathered.MOST_BYTES
    few = gathered.copies(made(), 100)
    assert few[0].shape == (200, HEADS_KV, DIM) and few[2].shape == (3,)
    assert gathered.copies(made(), 2**20)[1].shape == (2 * COLUMNS * PAGE, HEADS_KV, DIM)


@pytest.mark.parametrize("rows", range(2 * LEAST - 260, 2 * LEAST + 260, 65))
def test_calls_with_one_plan_are_decided_alike(rows: int) -> None:
    decided: dict[Any, set[bool]] = {}
    for more in range(65):
        asked = job(made(rows=rows + more))
        own = key(asked.call.tensors, options(), None)
        why = gathered.why_not(asked.call, asked.workload(), None)
        decided.setdefault(own, set()).add(why is None)
    assert all(len(each) == 1 for each in decided.values())


def test_a_planner_asks_for_it_unless_it_is_frozen(fresh: Runtime, tmp_path: Any) -> None:
    from tunefa.store import results

    compiler: Any = compiled
    fresh.planner.devices[torch.device("cpu")] = (H200, compiler)
    assert isinstance(fresh.planner.plan(job(made())), GatheredPlan)
    path = tmp_path / "lock.yaml"
    results.write(path, [measured()])
    fresh.planner.freeze.to(path)
    with pytest.raises(TunefaError, match="has no record measured for prefill_b2_h8_kv2_q512"):
        fresh.planner.plan(job(made()))


SM90 = Target.named("sm90").arch
