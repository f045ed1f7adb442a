"""kernels/attention_bwd_triton.py on the CPU: its host side, and its numbers in the interpreter."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.own_kernels import OwnKernels
from tests.support.tree import TREE
from tunefa.compile.contract import unordered
from tunefa.compile.workers import Workers
from tunefa.measure import gate, ops
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

NAME = "attention_bwd_triton"
CONFIG: dict[str, Any] = {
    "BLOCK_M1": 16, "BLOCK_N1": 32, "BLOCK_M2": 32, "BLOCK_N2": 16, "num_warps": 4,
    "num_stages": 1, "USE_TMA": 0, "maxnreg": 0, "L2_SECTION_HEADS": 1,
}  # fmt: skip
GROUPS = "bwd_b2_h4_kv2_q50_k70_d16_fp16_causal"


def case(text: str, kernel: str = NAME) -> Case:
    return Case.from_names(kernel, text, "sm90")


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Workers]:
    """A process for all cases, which imports PyTorch and Triton once."""
    with Workers(1, gate.INTERPRETER_MEMORY_BYTES) as process:
        yield process


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("bwd_q8192_h4_kv2_d32_fp16_causal", {}),
        ("bwd_q8192_h2_d40_dv24_fp32_full_w40_a20", {"BLOCK_N1": 64, "BLOCK_N2": 32}),
        ("bwd_q8192_h4_kv2_b8_d32_bf16_causal_softcap_varlen", {"USE_TMA": 1}),
    ],
)
@pytest.mark.slow
def test_the_interpreter_passes_its_gradients(
    text: str, changes: dict[str, Any], interpreter: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a gradient of the logsumexp, and with values that overflow where they can."""
    monkeypatch.setattr(gate, "Workers", lambda *_: contextlib.nullcontext(interpreter))
    found = gate.in_interpreter(case(text), {**CONFIG, **changes})
    assert found.passed, found.reason


WRONG = {
    "mask_of_keys": ("queries[None, :] >= sight[0][:, None]", "queries[None, :] >= -1", "dK"),
    "mask_of_queries": ("keys[None, :] <= sight[1][:, None]", "keys[None, :] <= seqlen_k", "dQ"),
    "one_head_of_a_group": ("range(GROUP)", "range(1)", "dK"),
    "scale_forgotten": ("dk_acc * scales[0]", "dk_acc", "dK"),
    "delta_forgotten": ("p * (dp - delta[:, None])", "p * dp", "dQ"),
    "last_row_not_written": (
        "mask=(start + rows < seqlen)",
        "mask=(start + rows + 1 < seqlen)",
        "",
    ),
}
"""By mistake: the replaced device code, its replacement, and what the reason names."""


@pytest.mark.slow
def test_the_interpreter_finds_what_is_wrong(own_kernels: OwnKernels) -> None:
    with Workers(1) as process:
        for name, (old, new, sign) in WRONG.items():
            kernel = changed(own_kernels, f"bwd_{name}", old, new)
            names = Case(kernel, Workload.parse(GROUPS), Target.named("sm90")).names
            found = process.submit(gate._interpret, (names, CONFIG), 60.0).result()
            assert not found.passed and sign in found.reason, f"{name}: {found.reason}"


def changed(own_kernels: OwnKernels, name: str, old: str, new: str) -> Kernel:
    """The kernel under another name, with other device code."""
    folder = own_kernels.folder / "kernels" / "triton"
    shutil.copytree(TREE / "kernels" / "triton", folder, dirs_exist_ok=True)
    device = (folder / "attention_backward.py").read_text(encoding="utf-8")
    assert old in device
    (folder / f"{name}.py").write_text(device.replace(old, new), encoding="utf-8")
    host = (TREE / "kernels" / f"{NAME}.py").read_text(encoding="utf-8")
    host = host.replace("kernels.triton.attention_backward", f"kernels.triton.{name}")
    space = (TREE / "search_spaces" / f"{NAME}.yaml").read_text(encoding="utf-8")
    space = space.replace("    measured: NVIDIA H200\n", "")  # it is another kernel
    return own_kernels.add(name, host, space.replace(f"kernel: {NAME}", "kernel: NAME"))


def test_no_output_is_added_up_in_an_open_order() -> None:
    """So every config serves deterministic calls."""
    calls = [case(f"bwd_h32_kv8_q4096_d128{flag}") for flag in ("", "_deterministic")]
    assert [unordered(each, each.default()) for each in calls] == [(), ()]
    assert calls[0].feasible().configs == calls[1].feasible().configs


def launches(text: str, **changes: Any) -> tuple[Any, ...]:
    """The tensors of a call, their scratch, and (grid, arguments) of its two launches."""
    asked = case(text)
    op, config = ops.of(asked.workload), {**CONFIG, **changes}
    spec, made = op.launch_spec(asked, config), op.tensors(asked.workload, "cpu", seed=0)
    scratch = spec.scratch(made)
    both = [*made, *(made[0].new_zeros(shape, dtype=dtype) for shape, dtype in scratch)]
    return both, scratch, spec.preprocess_arguments(both), spec.arguments(both)


def test_one_launch_has_the_tiles_of_keys_and_of_queries() -> None:
    both, scratch, before, main = launches("bwd_b2_h4_kv2_q50_k70_d16_causal")
    # 3 tiles of 32 keys for 4 KV heads, 2 tiles of 32 query rows for 8 query heads.
    assert main[0] == (3 * 4 + 2 * 8, 1, 1)
    # One program for 128 rows of each head, of which those beyond the last are padding.
    assert before[0] == (8, 1, 1)
    assert [shape for shape, _ in scratch] == [(8, 128), (8, 128)]
    assert len(both) == 12


def test_packed_calls_have_room_for_as_many_rows_as_the_next_power_of_two() -> None:
    both, scratch, before, main = launches("bwd_b3_h4_kv2_q50_k70_d16_causal_varlen")
    assert both[0].shape[0] == 17 + 34 + 50
    assert scratch[0][0] == (4, 128 + 4 * 128)
    assert before[0] == (4 * (1 + 4), 1, 1)
    # The longest of up to 4 sequences has 3 tiles of keys.
    assert main[0] == (2 * (3 * 4) + 4 * (128 // 32 + 4), 1, 1)
    assert (both[10], 0) in [each for each in main[1] if isinstance(each, tuple)]
    # The stride of lse's heads is the number of rows of a call, which differs between calls.
    assert (both[4], 1) in [each for each in before[1] if isinstance(each, tuple)]


def test_tma_reads_packed_tensors_as_dense_ones_without_an_end() -> None:
    both, _, _, (_, arguments) = launches("bwd_b3_h4_kv2_q50_k70_d16_causal_varlen", USE_TMA=1)
    maps = [each for each in arguments if isinstance(each, dict)]
    assert all(each["map"] is of for each, of in zip(maps, [*both[:3], both[5]], strict=True))
    assert [each["box"][2] for each in maps] == [16, 16, 16, 16]
    for each in maps:
        assert each["shape"][1:] == (each["map"].shape[1], 2**30, 16)
        assert each["strides"][1:] == (*reversed(each["map"].stride()[:2]), 1)
