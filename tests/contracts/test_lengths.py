"""The files in kernels/lengths/ say what the host sides of their kernels say, for all lengths."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.launch_specs import Kept
from tunefa import assets
from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.compile.launch import lengths as launch_lengths
from tunefa.compile.launch.lengths import Resized
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

NAMES = sorted(
    path.stem for path in (assets.root("kernels") / "lengths").glob("attention_fwd_*.py")
)
FAMILIES = (
    *("h32_kv8_q4096_d128", "h8_kv8_q512_d128", "h8_kv8_q4096_d128_full", "h8_kv2_q4096_d64"),
    "h4_q4096_d64_dv128_fp16_full",
)
WORKLOADS = 200
SM90 = Target.named("sm90")
SMS = 132


def random_lengths(chance: random.Random) -> dict[str, Any]:
    """Short and long ones, that blocks divide or not."""
    keys = chance.choice([1, 16, 64, 128]) * chance.randint(1, 40) + chance.choice([0, 0, 1, 7])
    rows = chance.choice([1, keys, keys, max(1, keys - 64 * chance.randint(0, 9)), keys + 5])
    return {"batch": chance.randint(1, 9), "seqlen_q": rows, "seqlen_k": keys}


def tensors(w: Workload, chance: random.Random) -> list[Tensor]:
    """(q, k, v, out, lse) without memory, heads first; keys may be a part of a larger cache."""

    def heads(count: int, rows: int, columns: int, more: int = 0) -> Tensor:
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[w.dtype]
        made = torch.empty(w.batch, rows + more, count, columns, dtype=kind, device="meta")
        return made[:, :rows].transpose(1, 2)

    more = chance.choice([0, 0, 100])
    return [
        heads(w.heads, w.seqlen_q, w.head_dim),
        heads(w.heads_kv, w.seqlen_k, w.head_dim, more),
        heads(w.heads_kv, w.seqlen_k, w.head_dim_v, more),
        heads(w.heads, w.seqlen_q, w.head_dim_v),
        torch.empty(w.batch, w.heads, w.seqlen_q, device="meta"),
    ]


@functools.cache
def others(name: str, first: Workload) -> list[Any]:
    """A few feasible configs; finding all takes a second, and several tests ask."""
    feasible = kernels.load(name).space.feasible(first, SM90.arch).configs
    return random.Random(str(first)).sample(list(feasible), min(3, len(feasible)))


def configs(kernel: Kernel, first: Workload) -> Iterator[dict[str, Any]]:
    """The defaults, and some others."""
    found = [kernel.default(first, SM90.arch)]
    found += [each.config for each in kernel.space.defaults if each.config not in found]
    found += map(dict, others(kernel.name, first))
    yield from (each for each in found if kernel.refusal(each, first, SM90.arch) is None)


def cases() -> Iterator[Any]:
    for name in NAMES:
        for text in FAMILIES:
            kernel, first = kernels.load(name), Workload.parse(text)
            if kernel.why_not(first, SM90.arch) is None:
                yield pytest.param(kernel, first, id=f"{name}-{text}")


def test_there_are_some() -> None:
    assert len(NAMES) >= 3 and set(NAMES) <= set(kernels.names())


@pytest.mark.parametrize(("kernel", "first"), [*cases()])
def test_numbers_are_the_arguments_of_the_host_side(kernel: Kernel, first: Workload) -> None:
    chance = random.Random(str(first))
    for config in configs(kernel, first):
        sized, kept = _resized(kernel, first, config), Kept()
        for _ in range(WORKLOADS // 4):
            w = replace(first, **random_lengths(chance))
            made = tensors(w, chance)
            spec = LaunchSpec(Case(kernel, w, SM90), config, 0.5, seen_sms=SMS, tables=kept)
            made[4] = torch.empty(0)  # where tables are made; no kernel's arguments read its shape
            (ctas, *rest), found = spec.arguments(made)
            made_tables = sized.tables(spec, torch.device("cpu"))
            tables = tuple((len(each), each.data_ptr()) for each in made_tables)
            sizes = [(*each.shape, *each.stride()) for each in made[:4]]
            asked = w.batch, w.seqlen_q, w.seqlen_k
            expected = list(_numbers(found, made))
            got_ctas, numbers = sized.numbers(*asked, sizes, tables)
            assert (got_ctas, [1, 1]) == (ctas, rest), w
            assert list(numbers) == expected[: len(numbers)], (w, config)


@pytest.mark.parametrize(("kernel", "first"), [*cases()])
def test_lengths_with_one_variant_have_one_binary(kernel: Kernel, first: Workload) -> None:
    chance, language = random.Random(str(first)), languages.load(kernel.language)
    for config in configs(kernel, first):
        sized, found, shared = _resized(kernel, first, config), dict[Any, Any](), 0
        for _ in range(WORKLOADS // 4):
            w = replace(first, **random_lengths(chance))
            key = sized.variant(w.seqlen_q, w.seqlen_k)
            shared += key in found
            made = language.binary_key(Case(kernel, w, SM90), config, True)
            assert found.setdefault(key, made) == made, (w, config)
        assert shared >= WORKLOADS // 4 - 4


@pytest.mark.parametrize(("kernel", "first"), [*cases()])
def test_what_decides_tables_decides_what_is_specialized(kernel: Kernel, first: Workload) -> None:
    """Equal values have equal tables, with the config and with the changed one."""
    specialize = getattr(kernel.module, "specialize", None)
    if specialize is None:
        pytest.skip("it changes no config")
    chance = random.Random(str(first))
    for config in configs(kernel, first):
        sized, found = _resized(kernel, first, config), dict[Any, Any]()
        for _ in range(WORKLOADS):
            lengths = random_lengths(chance)
            lengths["seqlen_k"] += chance.choice([0, 0, 3000, 9000])
            w = replace(first, **lengths)
            changes = specialize(w, config, SMS)
            spec = LaunchSpec(Case(kernel, w, SM90), {**config, **changes}, 0.5, seen_sms=SMS)
            keys: list[Any] = []
            object.__setattr__(spec, "tables", lambda key, make, keys=keys: keys.append(key))
            sized.tables(spec, torch.device("cpu"))
            key = sized.decides(w.batch, w.seqlen_q, w.seqlen_k)
            assert found.setdefault(key, (changes, keys)) == (changes, keys), (w, config)
        assert len(found) < WORKLOADS


def test_what_it_does_not_serve() -> None:
    for text in ("varlen", "w64", "e4m3"):
        w = Workload.parse(f"h8_d128_q512_{text}".replace("_w64", "_causal_w64"))
        for name in NAMES:
            kernel = kernels.load(name)
            if kernel.why_not(w, SM90.arch) is None:
                config = kernel.default(w, SM90.arch)
                assert launch_lengths.load(kernel, w, config, SMS) is None


def _resized(kernel: Kernel, first: Workload, config: dict[str, Any]) -> Resized:
    sized = launch_lengths.load(kernel, first, config, SMS)
    assert sized is not None
    return sized


def _numbers(arguments: list[Any], made: list[Tensor]) -> Iterator[int]:
    """Yields the arguments that are integers, with the addresses of tables."""
    for each in arguments:
        if isinstance(each, Tensor):
            if not any(each is tensor for tensor in made):
                yield each.data_ptr()
        elif each is not None and not isinstance(each, dict):
            yield getattr(each, "value", each)
