"""Kernels in Triton: resources as the compiler's own tools say, and errors in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import triton

from tests.support.own_kernels import FAULTY_SOURCE, FAULTY_SPACE, OwnKernels
from tunefa.compile.contract import Compiled, CompileError
from tunefa.compile.languages import triton as language
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_triton")
WORKLOAD = Workload.parse("q1024_d64")
SM90 = Target.named("sm90")
CONFIG: dict[str, Any] = {
    "BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2,
    "USE_TMA": 0, "maxnreg": 0, "L2_SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip
SMALL: dict[str, Any] = {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 1, "num_stages": 1}
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compiled(arch: str = "sm90", aligned: bool = True, **changes: Any) -> Compiled:
    case = Case(KERNEL, WORKLOAD, Target.named(arch))
    return language.compile(case, {**CONFIG, **changes}, aligned)


def ptxas_says(made: Compiled, arch: str, folder: Path) -> tuple[int, int, int]:
    """(registers, stack bytes, bytes of spill stores) that ptxas prints for the kernel's PTX."""
    source = folder / "kernel.ptx"
    source.write_text(made.binary.asm["ptx"])
    # As Triton calls it: the "a" is for the instructions of just that chip, WGMMA for one.
    name = arch.replace("sm", "sm_") + ("a" if arch in ("sm90", "sm100", "sm120") else "")
    level = re.search(r"--regAllocOptLevel=\d", Path(_compiler_source()).read_text())
    command: list[Any] = [TOOLS / "ptxas", "-lineinfo", "-v", *([level[0]] if level else [])]
    command += [f"--gpu-name={name}", source, "-o", folder / "kernel.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", said)
    spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said)
    assert registers and spills, said
    return int(registers[1]), int(spills[1]), int(spills[2])


def _compiler_source() -> str:
    from triton.backends.nvidia import compiler

    return str(compiler.__file__)


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        ("sm90", {}),
        ("sm90", {"USE_TMA": 1, "num_stages": 3}),
        ("sm90", {"BLOCK_M": 128, "BLOCK_N": 128, "maxnreg": 96}),
        ("sm80", {"BLOCK_M": 128, "BLOCK_N": 128, "maxnreg": 128}),
    ],
)
def test_resources_are_what_cuobjdump_and_ptxas_say(
    tmp_path: Path, arch: str, changes: dict[str, Any]
) -> None:
    made = compiled(arch, **changes)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(made.binary.asm["cubin"])
    command: list[Any] = [TOOLS / "cuobjdump", "--dump-resource-usage", cubin]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", usage)}
    resources = made.resources
    assert (resources.registers, resources.stack_bytes) == (figures["REG"], figures["STACK"])
    registers, stack, spilled = ptxas_says(made, arch, tmp_path)
    assert (resources.registers, resources.stack_bytes) == (registers, stack)
    assert resources.spill_bytes is not None
    # STL counts the instructions that there are, ptxas what it meant to spill: near, not equal.
    assert resources.spill_bytes == pytest.approx(spilled, rel=0.1)
    assert (resources.spill_bytes > 0) is ("maxnreg" in changes)


def test_shared_memory_is_what_a_launch_asks_for() -> None:
    # Q takes 64 x 64 x 2 bytes, K and V two buffers each.
    assert compiled().resources.smem_bytes == 64 * 64 * 2 * (1 + 2 * 2)
    assert compiled().resources.smem_bytes == compiled().binary.metadata.shared


@pytest.mark.parametrize("arch", archs.names("nvidia"))
def test_it_compiles_for_every_arch_without_a_device(arch: str) -> None:
    made = compiled(arch, **SMALL)
    assert f".target sm_{arch[2:]}" in made.binary.asm["ptx"]
    assert made.seconds > 0
    assert made.resources.registers and made.resources.smem_bytes


def test_strides_that_are_no_multiples_of_16_are_another_kernel() -> None:
    aligned, other = compiled(**SMALL), compiled(aligned=False, **SMALL)
    assert aligned.binary.asm["cubin"] != other.binary.asm["cubin"]
    assert "ld.global.v4" in aligned.binary.asm["ptx"]
    assert "ld.global.v4" not in other.binary.asm["ptx"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"BLOCK_N": 48}, r"ValueError: arange's range must be a power of 2"),
        ({"num_warps": 3}, r"AssertionError: num_warps must be a power of 2"),
        ({"maxnreg": 8}, r"PTXASError: ptxas fatal : .*[Rr]egister"),
    ],
)
def test_the_compilers_words_in_one_line(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(CompileError, match=f"^{error}") as caught:
        compiled(**changes)
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 300
    assert caught.value.__cause__ is not None


def test_a_kernels_own_words(own_kernels: OwnKernels) -> None:
    kernel = own_kernels.add("faulty_words", FAULTY_SOURCE, FAULTY_SPACE)
    with pytest.raises(CompileError, match="CompileTimeAssertionFailure: this config is told to"):
        language.compile(Case(kernel, WORKLOAD, SM90), {"FAULT": "error"})


FIRST = """

def preprocess(workload, config):
    return {**variant(workload, config), "options": {"num_warps": 2}} if workload.causal else None
"""


def test_what_runs_first_is_compiled_and_tells_binaries_apart(own_kernels: OwnKernels) -> None:
    kernel = own_kernels.add_attention("attention_preprocess", lambda source: source + FIRST)
    full = Workload.parse("q1024_d64_full")
    config = {**CONFIG, **SMALL}
    causal, plain = (
        language.compile(Case(kernel, each, SM90), config) for each in (WORKLOAD, full)
    )
    assert plain.preprocess is None
    assert causal.preprocess.metadata.num_warps == 2 and causal.binary.metadata.num_warps == 1
    keys: list[Any] = [
        language.binary_key(Case(each, WORKLOAD, SM90), config, True) for each in (kernel, KERNEL)
    ]
    assert keys[0][1:-1] == keys[1][1:] and len(keys[0]) == len(keys[1]) + 1


class OddError(Exception):
    pass


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "OddError:"),
        ("one\n", "OddError: one"),
        ("at 3:4:\n  x = y\n      ^\nbecause of y", "OddError: because of y"),
        ("at 3:4:\n  x = y\n      ^", "OddError: x = y"),
        (
            "PTXAS error: `ptxas` failed with error code -9\n`ptxas` stderr:\n\n"
            "Repro command: ptxas -v x.ptx",
            "OddError: PTXAS error: `ptxas` failed with error code -9",
        ),
        ("PTXAS error: Internal\nptxas fatal   : no\nmore", "OddError: ptxas fatal : no"),
        ("a\nline 28; error   : Arguments\nb", "OddError: line 28; error : Arguments"),
        ("x" * 900, "OddError: " + "x" * 290),
    ],
)
def test_the_telling_line_of_an_error(text: str, words: str) -> None:
    assert language._first_words(OddError(text)) == words


def test_an_import_that_fails_is_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    for attempt in (compiled, language.versions):
        with pytest.raises(TunefaError, match=r"no compiler found: Triton.*pip install 'triton>="):
            attempt()


def test_versions_for_provenance() -> None:
    versions = language.versions()
    assert versions["triton"] == triton.__version__
    assert re.fullmatch(r"ptxas \d+\.\d+\.\d+", versions["compiler"])


def test_the_interpreter_needs_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert language.why_no_interpreter() is None
    monkeypatch.setitem(sys.modules, "torch", None)
    reason = language.why_no_interpreter()
    assert reason is not None and "PyTorch, which is not installed: pip install torch" in reason


@pytest.mark.parametrize(
    ("of_triton", "of_numpy", "works"),
    [
        ("3.6.0", "2.3.5", True),
        ("3.6.0", "2.4.0", False),
        ("3.6.1", "2.10.1", False),
        ("3.7.1", "2.4.6", True),
        ("3.10.0+git123", "3.0.0", True),
    ],
)
def test_where_the_interpreter_does_not_work(
    monkeypatch: pytest.MonkeyPatch, of_triton: str, of_numpy: str, works: bool
) -> None:
    monkeypatch.setattr(triton, "__version__", of_triton)
    monkeypatch.setattr(numpy, "__version__", of_numpy)
    reason = language.why_no_interpreter()
    assert (reason is None) is works
    if reason:
        assert of_triton in reason and of_numpy in reason and "pip install" in reason


def test_a_process_that_interprets_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.from_names("attention_fwd_triton", "q64_d64", "sm90")
    for value, interprets in (("1", True), ("True", True), ("0", False), ("", False)):
        monkeypatch.setenv("TRITON_INTERPRET", value)
        assert (language.why_no_compiler(case.arch) is not None) == interprets
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(TunefaError, match=r"TRITON_INTERPRET is '1' in .*: unset it"):
        language.compile(case, case.default())
