"""kernels/attention_fwd_cuda_sm80.cu: its numbers on the CPU, and what the compiler makes of it.

On the CPU its own source runs, see tests/support/cuda_on_cpu. The launch of a kernel that reads
outside a tensor, deadlocks or has bank conflicts fails.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import cuda_on_cpu
from tests.support.cuda_on_cpu import OnCpu
from tests.support.interpreter import thinned
from tests.support.launch_specs import spec_of
from tests.support.tree import TREE
from tunefa.compile import languages
from tunefa.compile.contract import Compiled
from tunefa.measure import check
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_cuda_sm80")
SM80 = Target.named("sm80")
NAMES = (
    "num_warps",
    "BLOCK_M",
    "BLOCK_N",
    "num_stages",
    "Q_IN_REGS",
    "SHARE_QK_SMEM",
    "RESCALE_THRESHOLD",
    "MIN_BLOCKS_PER_SM",
)
SHAPES = (
    # One row, rows without a key, more keys than rows, tails of both.
    "h2_q1_k1_d64_bf16_causal",
    "h4_kv1_q40_k7_d32_bf16_causal",
    "h1_q5_k300_d16_fp16_causal",
    # Panels of every width, a lone chunk, keys and values of other widths, several tiles and heads.
    "h2_kv1_q140_k160_d120_dv104_bf16_causal",
    "h2_kv1_q70_k200_d72_dv40_fp16_full",
    "h1_q270_k110_d192_dv128_bf16_causal",
    "b2_h3_q35_k36_d24_dv200_bf16_full",
    "h1_q66_k66_d248_dv16_fp16_causal",
)
needs_compiler = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")


def config(*values: int) -> dict[str, Any]:
    return dict(zip(NAMES, values, strict=True))


# ------------------------------------------------------------------------------------ numbers


@needs_compiler
@pytest.mark.slow
def test_numbers_are_right_on_the_cpu() -> None:
    """Configs with every value of every parameter that can be there: with copies as early and as
    late as they may be and another warp ahead, to the same bits."""
    command = [sys.executable, "-m", "tests.kernels.test_cuda_sm80"]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert {case["workload"] for case in cases} == {str(Workload.parse(text)) for text in SHAPES}
    for parameter in KERNEL.space.parameters:
        assert {case["config"][parameter.name] for case in cases} == set(parameter.values)
    wrong = [case for case in cases if case["reason"] or not case["repeatable"]]
    assert not wrong, f"{len(wrong)} of {len(cases)}, first {wrong[0]}"


def main() -> None:
    """Prints what becomes of each config, for each of SHAPES."""
    torch.set_num_threads(1)
    chance = random.Random(0)
    shapes = (Case(KERNEL, workload, SM80) for workload in map(Workload.parse, SHAPES))
    for case, chosen in thinned(shapes):
        print(json.dumps(_case(case.workload, chosen, chance)), flush=True)


def _case(workload: Workload, chosen: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = cuda_on_cpu.compiled(KERNEL, workload, chosen, Path(folder))
    made = check.tensors(workload, "cpu", seed=0)
    seen = []
    for mode in chance.sample(cuda_on_cpu.MODES[:4], 2):
        for output in made[3:]:
            output.fill_(float("nan"))
        run(made, workload, mode)
        seen.append([output.clone() for output in made[3:]])
    found = check.compare(workload, made, workload.head_dim**-0.5, torch.float64)
    return {
        "workload": str(workload),
        "config": chosen,
        "reason": "" if found.passed else found.reason,
        "repeatable": all(map(torch.equal, *seen)),
    }


def run_once(workload: Workload, folder: Path) -> tuple[OnCpu, tuple[Any, ...], list[Any]]:
    """A config, the tensors that it ran on, and what it wrote."""
    run = cuda_on_cpu.compiled(KERNEL, workload, config(4, 64, 32, 2, 0, 0, 8, 1), folder)
    made = check.tensors(workload, "cpu", seed=0)
    run(made, workload)
    return run, made, [output.clone() for output in made[3:]]


@needs_compiler
def test_layouts_are_strides_and_nothing_is_written_beside_the_output(tmp_path: Path) -> None:
    workload = Workload.parse("b2_h4_kv2_q75_k90_d40_dv24_bf16_causal")
    run, made, right = run_once(workload, tmp_path)

    def bhsd(x: Any) -> Any:
        return x.contiguous()

    def part_of_more(x: Any) -> Any:
        batch, heads, seqlen, head_dim = x.shape
        shape = (batch, seqlen + 8, heads + 3, head_dim + 16)
        more = torch.full(shape, 7.0, dtype=x.dtype).transpose(1, 2)
        more[:, 1 : heads + 1, 3 : seqlen + 3, :head_dim].copy_(x)
        return more[:, 1 : heads + 1, 3 : seqlen + 3, :head_dim]

    for layout in (bhsd, part_of_more):
        others = [layout(x) for x in made[:4]]
        lse = torch.full((2 * 4 * 75 + 64,), 7.0)
        within = lse[32:-32].view(2, 4, 75)
        assert KERNEL.module.is_aligned(others)
        run((*others, within), workload)
        assert torch.equal(others[3], right[0]) and torch.equal(within, right[1])
        assert bool((lse[:32] == 7).all()) and bool((lse[-32:] == 7).all())
    around = others[3]._base
    assert around is not None
    written = torch.zeros_like(around, dtype=torch.bool).transpose(1, 2)
    written[:, 1:5, 3:78, :24] = True
    assert bool((around.transpose(1, 2)[~written] == 7).all())


@needs_compiler
def test_offsets_beyond_two_to_the_31st(tmp_path: Path) -> None:
    """Rows of K and heads of V that lie so far apart; of the memory between, none is touched."""
    workload = Workload.parse("h2_q40_k100_d64_bf16_causal")
    run, made, right = run_once(workload, tmp_path)

    def far(x: Any, head: int, row: int) -> Any:
        elements = (x.shape[1] - 1) * head + x.shape[2] * row
        file = tmp_path / f"{head}"  # with holes
        memory = torch.from_file(str(file), shared=True, size=elements, dtype=x.dtype)
        return memory.as_strided(x.shape, (0, head, row, 1)).copy_(x)

    k, v = far(made[1], 64, 2**31 // 90 // 8 * 8), far(made[2], 2**31 + 64, 64)
    for output in made[3:]:
        output.fill_(float("nan"))
    run((made[0], k, v, *made[3:]), workload)
    assert all(map(torch.equal, right, made[3:]))


# --------------------------------------------------------------------------------- host side


@pytest.mark.parametrize(
    ("change", "aligned"),
    [
        (lambda x: x, True),
        (lambda x: x.contiguous(), True),
        (lambda x: torch.zeros(*x.shape[:3], 72, dtype=x.dtype)[..., 8:], True),
        (lambda x: torch.zeros(*x.shape[:3], 68, dtype=x.dtype)[..., :64], False),
        (lambda x: torch.zeros(*x.shape[:3], 72, dtype=x.dtype)[..., 1:65], False),
    ],
)
def test_rows_begin_at_multiples_of_16_bytes(change: Any, aligned: bool) -> None:
    made = list(check.tensors(Workload.parse("h2_q8_d64_bf16"), "cpu"))
    for place in range(4):
        assert KERNEL.module.is_aligned(
            [*made[:place], change(made[place]), *made[place + 1 :]]
        ) is (aligned)


def test_tensors_that_cp_async_cannot_read_are_refused_in_words() -> None:
    assert "16-byte aligned" in str(KERNEL.unaligned)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("q64_d64_w32", "it does not support sliding windows"),
        ("q64_d64_full_a3", "it does not support sliding windows"),
        ("q64_d64_softcap", "it does not support soft-capped scores"),
        ("b2_q64_d64_varlen", "it does not support packed sequences"),
        ("q64_d64_e4m3", "it supports bf16 and fp16 only"),
        ("q64_d64_fp32", "it supports bf16 and fp16 only"),
        ("q64_d60", "cp.async needs head dimensions that are multiples of 8 (16 bytes)"),
    ],
)
def test_what_it_does_not_serve_has_a_name(text: str, why: str) -> None:
    arch = archs.load("sm90")
    assert KERNEL.why_not(Workload.parse(text), arch) == why
    assert KERNEL.why_not(Workload.parse("q64_d64"), arch) is None


def test_heavy_tiles_come_first_within_what_the_l2_cache_holds() -> None:
    small = config(4, 64, 32, 1, 0, 0, 8, 1)
    for text, tiles, section in [
        ("b2_h8_kv2_q4096_d64_full", 64, 1),
        ("b2_h8_kv2_q1000_d64_causal", 16, 16),  # 250 KB a KV head: all heads at once
        ("b2_h32_kv8_q65536_d128_causal", 1024, 4),  # 32 MB a KV head: those of one
    ]:
        workload = Workload.parse(text)
        strided = torch.empty(1).as_strided((1, 1, 1, 1), (0, 0, 0, 1))
        grid, found = spec_of(KERNEL, workload, small, 1.0).arguments([strided] * 5)
        sizes = found[-1]
        assert (sizes.tiles, sizes.section_heads) == (tiles, section)
        assert grid == (tiles * workload.batch * workload.heads, 1, 1)
        assert (sizes.heads, sizes.group) == (workload.heads, workload.group)


# --------------------------------------------------------------------------------- the compiler


def compiled(text: str, arch: str, *values: int) -> Compiled:
    case = Case(KERNEL, Workload.parse(text), Target.named(arch))
    made: Compiled = languages.load("cuda").compile(case, config(*values))
    return made


@pytest.mark.parametrize("head_dim", (16, 40, 72, 96, 104, 128))
def test_everything_of_a_warp_is_in_registers(head_dim: int) -> None:
    """An array that is indexed at run time would be a stack."""
    for values in ((4, 64, 48, 1, 0, 0, 8, 1), (4, 64, 32, 3, 1, 0, 8, 1)):
        found = compiled(f"q512_d{head_dim}_bf16_causal", "sm80", *values).resources
        assert (found.stack_bytes, found.spill_bytes) == (0, 0), (head_dim, values)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm86", "sm100"])
def test_what_the_rules_leave_compiles_as_the_space_says(arch: str) -> None:
    """Beside the archs of tests/contracts."""
    target, chance = Target.named(arch), random.Random(arch)
    language = languages.load("cuda")
    for text in ("d64_fp16_causal", "d72_dv48_bf16_full", "d128_bf16_causal", "d256_bf16_full"):
        case = Case(KERNEL, Workload.parse(f"q4096_{text}"), target)
        chosen = chance.choice(case.feasible().configs)
        found = language.compile(case, chosen).resources
        estimate = case.estimate(chosen)
        assert found.smem_bytes == estimate["smem_bytes"]
        assert found.registers <= case.tiling(chosen).max_registers
        assert found.spill_bytes or found.registers >= estimate["registers"]


def test_it_takes_every_head_dimension_there_is_a_config_for() -> None:
    for arch in map(archs.load, ("sm80", "sm86", "sm90", "sm120")):
        for head_dim in range(16, 264, 8):
            workload = replace(Workload.parse("q4096"), head_dim=head_dim, head_dim_v=head_dim)
            assert KERNEL.refusal(KERNEL.default(workload, arch), workload, arch) is None


if __name__ == "__main__":
    main()
