"""tunefa/compile/languages/gluon.py: a kernel for Hopper compiles with no device, as Gluon."""

from __future__ import annotations

from tunefa.compile import languages
from tunefa.compile.languages import gluon, triton
from tunefa.spec.target import Case

CASE = Case.from_names("attention_fwd_gluon_sm90", "b1_h1_q256_k256_d64_full", "sm90")


def test_a_config_is_a_cubin_of_wgmma_and_tma() -> None:
    made = gluon.compile(CASE, CASE.default())
    ptx = made.binary.asm["ptx"]
    assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx
    assert made.binary.asm["cubin"].startswith(b"\x7fELF")
    found = made.resources
    assert found.registers and found.smem_bytes and found.spill_bytes == 0


def test_binaries_are_told_apart_as_triton_s_are() -> None:
    default = CASE.default()
    assert gluon.binary_key(CASE, default, True) == triton.binary_key(CASE, default, True)
    other = next(each for each in CASE.feasible().configs if each != default)
    assert gluon.binary_key(CASE, default, True) != gluon.binary_key(CASE, other, True)
    assert gluon.versions() == triton.versions()


def test_it_has_no_interpreter_and_says_so() -> None:
    assert not languages.has_interpreter("gluon")
    assert "no interpreter" in gluon.why_no_interpreter()
    assert languages.without_compiler([CASE.kernel], CASE.arch) == {}
