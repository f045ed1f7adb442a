"""tunefa/runtime/candidates.py: which kernels can compute a job."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.fake_kernel import SM90, FakeKernel, FakeLanguage
from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.runtime import candidates
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.plan import Forward
from tunefa.runtime.process import Runtime


def job(columns: int = 32, stride: int = 32, **changes: Any) -> Any:
    q, k = (torch.zeros(1, rows, 2, stride)[..., :columns] for rows in (20, 30))
    given = {"q": q, "k": k, "v": k, **changes}
    return Forward(Call.of(Tensors(**given), Options(), None))


TMA: Any = FakeKernel(name="own_tma", unaligned="TMA needs aligned tensors")
ANY: Any = FakeKernel(name="own_any")


def test_a_kernel_that_needs_aligned_tensors_reads_no_others() -> None:
    assert candidates.why_unreadable(job(), TMA) is None
    odd = job(stride=40, columns=36)
    assert candidates.why_unreadable(odd, TMA) == "TMA needs aligned tensors"
    assert candidates.why_unreadable(odd, ANY) is None


def test_an_expanded_tensor_is_not_aligned() -> None:
    k = torch.zeros(1, 30, 1, 32).expand(1, 30, 2, 32)
    assert not candidates.is_aligned(job(k=k, v=k), TMA)
    assert candidates.is_aligned(job(), TMA)
    one = torch.zeros(1, 30, 2, 32)[:, :, :1].expand(1, 30, 1, 32)
    q = torch.zeros(1, 20, 1, 32)
    assert candidates.is_aligned(job(q=q, k=one, v=one), TMA), "an axis of one has any stride"


def test_where_no_kernel_is_left_the_reason_is_that_of_each() -> None:
    odd = job(stride=40, columns=36)
    workload = odd.workload()
    assert candidates.readable(odd, workload, SM90, [TMA, ANY]) == [ANY]
    refusing: Any = FakeKernel(name="own_none")
    refusing.why_not = lambda workload, arch: "it serves nothing"
    with pytest.raises(TunefaError) as caught:
        candidates.readable(odd, workload, SM90, [TMA, refusing])
    said = "(own_tma: TMA needs aligned tensors; own_none: it serves nothing)"
    assert str(caught.value).endswith(said)


def test_kernels_without_their_compiler_are_left_out_unless_all_are(
    fresh: Runtime, language: FakeLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking: dict[str, str] = {"own_tma": "no compiler"}
    monkeypatch.setattr(languages, "without_compiler", lambda kernels, arch: lacking)
    assert candidates.compilable([TMA, ANY], SM90) == [ANY]
    lacking["own_any"] = "no compiler"
    assert candidates.compilable([TMA, ANY], SM90) == [TMA, ANY]
