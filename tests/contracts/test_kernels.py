"""The contract of every kernel in `kernels/` and every space in `search_spaces/`."""

from __future__ import annotations

import ast
import itertools
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import interpreter, lone_compiler, processes
from tests.support.contract_workloads import (
    CACHES,
    DEFAULTS,
    PADDED,
    PAGES,
    PRODUCTS,
    SMALL,
    WORKLOADS,
)
from tunefa import assets
from tunefa.compile import languages
from tunefa.costmodel import latency
from tunefa.costmodel.occupancy import occupancy
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec import space as spaces
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

KERNELS = [kernels.load(name) for name in kernels.names()]
every = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
WITH_BINARY = [kernel for kernel in KERNELS if not kernel.is_library]
every_binary = pytest.mark.parametrize("kernel", WITH_BINARY, ids=lambda kernel: kernel.name)
INTERPRETED = [kernels.load(name) for name in interpreter.names()]
TARGETS = {name: Target.named(name) for name in archs.names()}


def test_each_kernel_has_a_space_and_each_space_a_kernel() -> None:
    sources = {path.stem for path in assets.root("kernels").glob("*.py")}
    assert sources == set(spaces.names()) == set(kernels.names()) and sources
    beside = {path.stem for path in assets.root("kernels").iterdir() if path.suffix == ".cu"}
    assert beside <= sources, "a .cu lies beside the .py of its name"


@every
def test_a_kernel_begins_with_a_document(kernel: Kernel) -> None:
    text = ast.get_docstring(ast.parse(kernel.source.read_text(encoding="utf-8"))) or ""
    assert len(text.splitlines()) > 10, "algorithm, paper, who owns which tile, the parameters"
    for parameter in kernel.space.parameters:
        assert parameter.name in text, f"its document does not say what {parameter.name} trades"
        assert parameter.doc


@every
def test_a_kernel_knows_nothing_of_searching(kernel: Kernel) -> None:
    tree = ast.parse(kernel.source.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        inside = [name for name in names if name.split(".")[0] == "tunefa"]
        allowed = ("tunefa.kernels.", "tunefa.spec.rounding")
        assert not [name for name in inside if not name.startswith(allowed)]


@every
def test_its_language_is_there(kernel: Kernel) -> None:
    assert kernel.language in languages.names()
    own = ("run", "version") if kernel.is_library else ("arguments",)
    for needed in (*own, "is_aligned"):
        assert callable(getattr(kernel.module, needed))


@every
@pytest.mark.parametrize("arch", TARGETS)
def test_its_default_is_feasible_wherever_it_serves(kernel: Kernel, arch: str) -> None:
    target = TARGETS[arch]
    served = [Case(kernel, w, target) for w in WORKLOADS if kernel.why_not(w, target.arch) is None]
    for case in served:
        config = case.default()  # raises where there is none
        assert case.refusal(config) is None
    for case in random.Random(0).sample(served, min(2, len(served))):
        assert case.default() in case.feasible().configs


@every
def test_it_serves_something_somewhere_and_says_why_not_elsewhere(kernel: Kernel) -> None:
    reasons = [kernel.why_not(w, target.arch) for target in TARGETS.values() for w in WORKLOADS]
    assert None in reasons
    assert all(reason is None or len(reason) > 5 for reason in reasons)


# ------------------------------------------------------------------------------------- numerics


@pytest.fixture(scope="module")
def interpreted() -> list[dict[str, Any]]:
    """The outcome of each case of tests/support/interpreter.py, in their order."""
    for kernel in INTERPRETED:
        if reason := languages.load(kernel.language).why_no_interpreter():
            pytest.skip(reason)
    return processes.interpreted("interpreter")


@pytest.mark.slow
def test_numbers_are_right_on_ragged_shapes(interpreted: list[dict[str, Any]]) -> None:
    wrong = [case for case in interpreted if not case["passed"]]
    assert not wrong, f"{len(wrong)} of {len(interpreted)}, first {wrong[0]}"


@pytest.mark.slow
def test_every_value_of_every_parameter_was_interpreted(
    interpreted: list[dict[str, Any]],
) -> None:
    for kernel in INTERPRETED:
        configs = [case["config"] for case in interpreted if case["kernel"] == kernel.name]
        for parameter in kernel.space.parameters:
            assert {config[parameter.name] for config in configs} == set(parameter.values)
    assert len(interpreted) == len(list(interpreter.cases()))


# ------------------------------------------------------------------------------------- resources


@dataclass(frozen=True)
class Compiled:
    """A config, what the space says of it and what the compiler says."""

    case: Case
    config: dict[str, Any]
    estimate: dict[str, float]
    resources: Resources | None
    reason: str
    has_torch: bool
    """Whether its compiler's process has loaded PyTorch."""

    def __str__(self) -> str:
        case = self.case
        return f"{self.config} for {case.workload} on {case.arch.name}: {self.resources}"


def _sample(kernel: Kernel) -> list[tuple[Case, dict[str, Any]]]:
    """Always the same: defaults on an arch of each family, and another config on sm90.

    Where archs have the same default, the one with the least shared memory stands for all; sm90
    has that of the first sizes.
    """
    chance, defaults, others = random.Random(0), dict[Any, tuple[Case, dict[str, Any]]](), []
    if kernel.op == "matmul":
        elsewhere = zip(PRODUCTS[:3], ("sm80", "sm80", "sm120"), strict=True)
        named = [*itertools.product(PRODUCTS, ("sm90",)), *elsewhere]
        products = [Case(kernel, Workload.parse(w), Target.named(arch)) for w, arch in named]
        varied = products[: len(PRODUCTS) : 2]  # on sm90
        others = [(each, chance.choice(each.feasible().configs)) for each in varied]
        return [*((each, each.default()) for each in products), *others]
    if kernel.op in ("decode", "prefill"):
        words = CACHES if kernel.op == "decode" else PAGES
        workloads = [Workload.parse(f"{kernel.op}_{each}") for each in words]
        hopper, blackwell = (  # sm80's code is like sm120's
            [each for w in workloads if (each := Case(kernel, w, target)).why_not() is None]
            for target in (TARGETS["sm90"], TARGETS["sm120"])
        )
        served = [*hopper, *blackwell[:1]]
        others = [(each, chance.choice(each.feasible().configs)) for each in hopper[:1]]
        return [*((each, each.default()) for each in served), *others]
    # Backward kernels take three times as long to compile. The code of sm89 is like that of sm80,
    # and its default that of sm120. Padding of 16 bits is compiled on sm90 alone.
    for target in map(Target.named, ("sm80", "sm90", "sm120")):
        for sizes in SMALL if target.arch.name == "sm120" else DEFAULTS:
            if sizes == PADDED and target.arch.name != "sm90":
                continue
            case = Case(kernel, Workload.parse(f"{kernel.op}_h32_kv8_q4096_{sizes}"), target)
            if case.why_not() is None:
                default = case.default()
                apart = sizes == DEFAULTS[0] and target.arch.name == "sm90"
                same = (sizes, apart, *default.values())
                if same not in defaults or _smem(case) <= _smem(defaults[same][0]):
                    defaults[same] = case, default
                if target.arch.name == "sm90" and not others:
                    others.append((case, chance.choice(case.feasible().configs)))
    return [*defaults.values(), *others]


def _smem(case: Case) -> int:
    return archs.gpu(case.arch).smem_per_block_bytes


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[Compiled]]:
    """By kernel. Compiled in two processes, as a search does it."""
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[Compiled]] = {}
    with ProcessPoolExecutor(2, context) as pool:
        for kernel in WITH_BINARY:
            sample = _sample(kernel)
            # The arguments of lone_compiler.compiled, one list for each.
            arguments = [(case.names, config) for case, config in sample]
            made = pool.map(lone_compiler.compiled, *zip(*arguments, strict=True))
            found[kernel.name] = [
                Compiled(case, config, case.estimate(config), *each)
                for (case, config), each in zip(sample, made, strict=True)
            ]
    return found


@pytest.mark.slow
@every_binary
def test_what_the_rules_leave_compiles(kernel: Kernel, compiled: dict[str, list[Compiled]]) -> None:
    failed = [each for each in compiled[kernel.name] if each.resources is None]
    assert not failed, f"{len(failed)}: {failed[0].reason}: {failed[0]}"


@pytest.mark.slow
@every_binary
def test_compilers_do_without_pytorch(kernel: Kernel, compiled: dict[str, list[Compiled]]) -> None:
    assert not [str(each) for each in compiled[kernel.name] if each.has_torch]


@pytest.mark.slow
@every_binary
def test_resource_formulas_are_lower_bounds_and_tight(
    kernel: Kernel, compiled: dict[str, list[Compiled]]
) -> None:
    tight = []
    for each in compiled[kernel.name]:
        assert each.resources is not None
        smem, registers = each.resources.smem_bytes, each.resources.registers
        assert smem is not None and registers is not None
        if "smem_bytes" in each.estimate:
            assert each.estimate["smem_bytes"] <= smem, each
            if each.case.workload.dtype == "bf16":
                # TMA's barriers, and what aligns its blocks, take up to 1 KiB more.
                tight.append(each.estimate["smem_bytes"] >= smem - 1056)
        if "registers" in each.estimate and not each.resources.spill_bytes:
            assert each.estimate["registers"] <= registers, each
    assert sum(tight) >= len(tight) / 2, f"a bound met by {sum(tight)} of {len(tight)} is trivial"


@pytest.mark.slow
@every_binary
def test_defaults_fit_a_block_and_an_sm(
    kernel: Kernel, compiled: dict[str, list[Compiled]]
) -> None:
    """A default is what runs when nothing is known, so the compiler must agree that it can run."""
    for each in compiled[kernel.name]:
        if each.config == each.case.default():
            made = each.resources
            assert made is not None and made.registers is not None and made.smem_bytes is not None
            arch = archs.gpu(each.case.arch)
            assert made.smem_bytes <= arch.smem_per_block_bytes, each
            threads = latency.of(each.case).threads(each.case, each.config)
            fits = occupancy(arch, made.registers, made.smem_bytes, threads)
            assert fits.blocks_per_sm >= 1, each


def test_an_arch_that_no_kernel_serves_is_refused_in_words() -> None:
    with pytest.raises(TunefaError, match="no kernel serves"):
        kernels.serving(Workload.parse("q8_w4"), archs.load("sm80"))
