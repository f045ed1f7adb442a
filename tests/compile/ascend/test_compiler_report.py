"""tunefa/compile/ascend/compiler_report.py on what the compiler itself wrote, in recordings/."""

from __future__ import annotations

import pytest

from tests.support.plan_recordings import recorded
from tunefa.compile.ascend import compiler_report
from tunefa.compile.ascend.compiler_report import CompilerReport, Output


def required(found: CompilerReport) -> dict[str, int | None]:
    """The bytes that are asked of each memory that overflows."""
    return {name: m.required_bytes for name, m in found.memories.items() if m.overflows}


def test_it_fits() -> None:
    found = compiler_report.from_output(recorded("fits"))
    assert (found.status, found.reason, found.retries) == ("fits", "", 0)
    peaks = {name: memory.peak_bytes for name, memory in found.memories.items()}
    assert peaks == {"ub": 156800, "l1": 163840, "l0c": 98304}
    assert all((m.sum_bytes or 0) >= (m.peak_bytes or 0) for m in found.memories.values())


def test_it_fits_though_the_compiler_exits_with_1() -> None:
    output = recorded("fits_1.2.0")
    assert output.returncode == 1
    assert compiler_report.from_output(output).status == "fits"


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("ub_overflow", {"ub": 297984}),
        ("l0c_overflow", {"l0c": 262144}),
        ("l0c_and_ub_overflow", {"l0c": 262144, "ub": 265216}),
        ("l1_overflow_to_the_byte", {"l1": 524288, "ub": 396288}),
        ("retried_and_fails", {"ub": 263424}),
    ],
)
def test_an_overflow_says_what_it_asks_of_each_memory(name: str, needs: dict[str, int]) -> None:
    found = compiler_report.from_output(recorded(name))
    assert found.status == "overflow"
    assert required(found) == needs
    available = {"ub": 196608, "l1": 524288, "l0c": 131072}
    for memory, size in needs.items():
        assert found.memories[memory].available_bytes == available[memory]
        assert f"{memory.upper()} overflow: {size:,} of {available[memory]:,} B" in found.reason


def test_another_run_adds_the_memories_that_one_thread_did_not_get_to() -> None:
    alone = recorded("l0c_overflow")
    found = compiler_report.from_output(alone, [recorded("l0c_and_ub_overflow")])
    assert required(found) == {"l0c": 262144, "ub": 265216}
    assert required(compiler_report.from_output(alone, [recorded("crash")])) == {"l0c": 262144}


def test_flags_that_the_compiler_changed_are_told() -> None:
    flags = {"enable-code-motion": False, "enable-auto-multi-buffer": False}
    fits, fails = (
        compiler_report.from_output(recorded("retried_and_fits")),
        compiler_report.from_output(recorded("retried_and_fails")),
    )
    assert (fits.status, fits.changed, fits.retries) == ("fits", flags, 2)
    assert (fails.status, fails.changed, fails.retries) == ("overflow", flags, 2)


def test_1_1_0_retries_without_a_word() -> None:
    found = compiler_report.from_output(recorded("ub_overflow"))
    assert (dict(found.changed), found.retries) == ({}, 4)


def test_a_crash_is_no_overflow() -> None:
    output = recorded("crash")
    assert output.returncode == -11
    found = compiler_report.from_output(output)
    assert (found.status, dict(found.memories)) == ("crash", {})
    assert found.reason == "the compiler died with exit code -11"


def test_an_error_is_told_in_the_words_of_the_compiler() -> None:
    found = compiler_report.from_output(recorded("error"))
    assert found.status == "error" and "linalg.nothing" in found.reason
    silent = compiler_report.from_output(Output(1, "[ERROR] Cannot find hivmc under $PATH\n"))
    assert silent.reason == "the compiler fails and gives no reason"


def test_a_plan_that_a_crash_cut_short_is_none() -> None:
    assert compiler_report.read_plan('{"Header": {') is None
    assert compiler_report.from_output(Output(0, "", (None,))).memories == {}


def test_the_workspace_is_read_from_the_last_ir() -> None:
    ir = (
        "  func.func @fa_fwd_infer_workspace_shape_function() -> index attributes "
        "{hacc.function_kind = #hacc.function_kind<HOST>} {\n"
        "    %c131072 = arith.constant 131072 : index\n    return %c131072 : index\n"
    )
    assert compiler_report.workspace_bytes(ir) == 131072
    assert compiler_report.workspace_bytes("module {}") is None


def test_equal_programs_have_equal_names_however_they_are_numbered() -> None:
    head = "// -----// IR Dump After ConvertHIVMToStandard //----- //\n"
    first = f"{head}#map = affine_map<(d0) -> (d0 * 2)>\n%1 = vadd %a, %0#1 [#map]\n%2 = vexp %1\n"
    again = f"{head}#map3 = affine_map<(d0) -> (d0 * 4)>\n%7 = vexp %5\n%5 = vadd %a, %4 [#map3]\n"
    assert compiler_report.code(first) == compiler_report.code(again)
    assert compiler_report.code(first) == compiler_report.code(
        f"%9 = of an attempt that failed\n{first}"
    )
    assert compiler_report.code(first) != compiler_report.code(first.replace("vexp", "vln"))
    assert compiler_report.code(first) == compiler_report.code(
        f'{first}loc("/tmp/x/kernel.mlir":1:1): hivmc\n'
    )
