"""attention_decode_prefix_triton: what its three kernels compute in Triton's interpreter, with any
lengths and block tables, and what the compiler makes of its defaults."""

from __future__ import annotations

import pytest

from tests.support import processes
from tests.support.interpreted_prefix import PROBLEMS
from tunefa.compile import languages
from tunefa.costmodel.occupancy import occupancy
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Case

TOLERANCE = {"fp16": 1e-3, "bf16": 1e-2}


@pytest.mark.slow
def test_rows_are_right_and_the_prefix_is_the_longest_one() -> None:
    """Slots that no sequence has are NaN, and entries behind a last page point nowhere."""
    if reason := languages.load("triton").why_no_interpreter():
        pytest.skip(reason)
    found = {each["name"]: each for each in processes.interpreted("interpreted_prefix")}
    assert found.keys() == PROBLEMS.keys()
    for name, (problem, _) in PROBLEMS.items():
        said = found[name]
        assert said["pages"] == problem.prefix_pages, name
        assert said["out"] <= TOLERANCE[problem.dtype] and said["lse"] <= 2e-5, (name, said)


def test_problems_have_prefixes_of_all_kinds() -> None:
    pages = {name: problem.prefix_pages for name, (problem, _) in PROBLEMS.items()}
    assert pages["no shared page"] == pages["lengths 0 and 1"] == pages["no keys at all"] == 0
    assert pages["some shared pages"] == 5 and pages["all of the cache"] == 20
    assert pages["several queries"] == 19, "the first of three queries does not see all 320 keys"
    assert pages["all queries see all"] == 20
    assert {problem.seqlen_q for problem, _ in PROBLEMS.values()} >= {1, 3, 5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "arch"),
    [
        # In Triton's cache: tests/contracts compiles these two too.
        ("b64_h32_kv8_k8192_d128_bf16_page64", "sm90"),
        ("b16_h32_kv4_q4_k4096_d64_fp16_page16_varlen_sinks", "sm90"),
        ("b64_h32_kv8_k8192_d128_bf16_page64", "sm80"),
        ("b64_h32_kv8_q3_k8192_d256_bf16_page64", "sm90"),
    ],
)
def test_defaults_fit_on_an_sm_as_often_as_they_say(text: str, arch: str) -> None:
    triton = languages.load("triton")
    if why := triton.why_no_compiler(archs.load(arch)):
        pytest.skip(why)
    case = Case.from_names("attention_decode_prefix_triton", f"decode_{text}_prefix", arch)
    config = case.default()
    made = triton.compile(case, config).inspect()
    assert (made.spill_bytes or 0) <= 16
    threads = 32 * config["num_warps"]
    fits = occupancy(archs.gpu(case.arch), made.registers or 0, made.smem_bytes, threads)
    assert fits.blocks_per_sm >= config["CTAS_PER_SM"]
