"""tunefa/search/compilable.py: kernels that cannot be compiled here are left out, or an error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.fake_objective import KERNEL, request
from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.search import compilable
from tunefa.spec import kernel as kernels

CUDA = kernels.load("attention_fwd_cuda_sm90")


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """By kernel, why it cannot be compiled."""
    missing: dict[str, str] = {}
    monkeypatch.setattr(languages, "without_compiler", lambda kernels, arch: missing)
    return missing


def test_nothing_is_left_out_where_all_compile(lacking: dict[str, str]) -> None:
    asked = request(KERNEL, CUDA)
    assert compilable.only(asked) == (asked, [])


def test_what_cannot_be_compiled_is_left_out_and_named(lacking: dict[str, str]) -> None:
    lacking[CUDA.name] = "there is no NVRTC"
    made, lines = compilable.only(request(KERNEL, CUDA))
    assert made.kernels == (KERNEL,)
    assert lines == [f"{CUDA.name} is left out: there is no NVRTC"]
    formulas = replace(request(KERNEL, CUDA), estimate=True)
    assert compilable.only(formulas) == (formulas, [])


def test_one_that_was_named_is_an_error(lacking: dict[str, str]) -> None:
    lacking[CUDA.name] = "there is no NVRTC"
    with pytest.raises(TunefaError, match="there is no NVRTC"):
        compilable.only(request(KERNEL, CUDA), [CUDA.name])
    with pytest.raises(TunefaError, match="there is no NVRTC"):
        compilable.only(request(CUDA))


def test_what_another_process_found_out_is_not_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(languages, "without_compiler", lambda *_: 1 / 0)
    known = {CUDA.name: "cuDNN is not installed", "another": "no"}
    made, lines = compilable.only(request(KERNEL, CUDA), (), known)
    assert made.kernels == (KERNEL,)
    assert lines == [f"{CUDA.name} is left out: cuDNN is not installed"]
    with pytest.raises(TunefaError, match="cuDNN is not installed"):
        compilable.only(request(CUDA), (), known)
