"""The files in kernels/lengths/ say what the host sides of kernels of gradients say, for all
lengths."""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa import assets
from tunefa.compile import languages
from tunefa.compile.contract import LaunchSpec
from tunefa.compile.launch import lengths as launch_lengths
from tunefa.compile.launch.lengths import GradientSizes, ResizedGradients
from tunefa.runtime.family_binaries import divisors
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

NAMES = sorted(
    path.stem for path in (assets.root("kernels") / "lengths").glob("attention_bwd_*.py")
)
FAMILIES = ("h8_kv8_d128_causal", "h8_kv1_d128_causal", "h8_kv2_d128_full", "h4_d64_fp16_causal",
            "h8_kv4_d64_full", "h2_d256_full", "h4_kv2_d96_deterministic_causal",
            "h2_d64_dv128_causal", "h4_kv2_d192_causal", "h2_d192_dv128_full")  # fmt: skip
SM90 = Target.named("sm90")
SMS, CALLS = 132, 40


def cases() -> Iterator[Any]:
    for name in NAMES:
        for text in FAMILIES:
            kernel = kernels.load(name)
            first = replace(family(text), seqlen_q=4096, seqlen_k=4096)
            if kernel.why_not(first, SM90.arch) is None:
                yield pytest.param(kernel, first, id=f"{name}-{text}")


def family(text: str) -> Workload:
    deterministic = "_deterministic" in text
    made = Workload.parse(f"bwd_{text.replace('_deterministic', '')}_q64")
    return replace(made, deterministic=deterministic)


@functools.cache
def others(name: str, first: Workload) -> list[Any]:
    """A few feasible configs; finding all takes a second, and several tests ask."""
    feasible = kernels.load(name).space.feasible(first, SM90.arch).configs
    return random.Random(str(first)).sample(list(feasible), min(5, len(feasible)))


def configs(kernel: Kernel, first: Workload) -> Iterator[dict[str, Any]]:
    """The defaults, and some others."""
    found = [each.config for each in kernel.space.defaults]
    changes = [each.config for each in kernel.space.default_changes]
    found += [{**each, **change} for change in changes for each in found]
    found += map(dict, others(kernel.name, first))
    yield from (each for each in found if kernel.refusal(each, first, SM90.arch) is None)


def random_lengths(chance: random.Random) -> dict[str, Any]:
    """Short and long ones, that blocks divide or not."""
    keys = chance.choice([1, 16, 64, 128]) * chance.randint(1, 20) + chance.choice([0, 0, 1, 7])
    rows = chance.choice([1, keys, keys, max(1, keys - 64 * chance.randint(0, 9)), keys + 5])
    return {"batch": chance.randint(1, 9), "seqlen_q": rows, "seqlen_k": keys}


def call(w: Workload, chance: random.Random) -> list[Tensor]:
    """The tensors of a call without memory, heads first; inputs may be parts of larger tensors."""
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[w.dtype]

    def made(count: int, rows: int, columns: int, more: int = 0) -> Tensor:
        whole = torch.empty(w.batch, rows + more, count, columns, dtype=kind, device="meta")
        return whole[:, :rows].transpose(1, 2)

    def heads(count: int, rows: int, columns: int) -> Tensor:
        return made(count, rows, columns, chance.choice([0, 0, 100]))

    of_q, of_k = (w.heads, w.seqlen_q), (w.heads_kv, w.seqlen_k)
    q, k, v = heads(*of_q, w.head_dim), heads(*of_k, w.head_dim), heads(*of_k, w.head_dim_v)
    out, dout = heads(*of_q, w.head_dim_v), heads(*of_q, w.head_dim_v)
    lse = torch.empty(w.batch, w.heads, w.seqlen_q, device="meta")
    dlse = torch.empty((), device="meta").expand(lse.shape) if chance.random() < 0.5 else lse
    # Not `torch.empty_like`, which takes 1 ms without memory: PyTorch finds the layout in Python.
    grads = [made(*of_q, w.head_dim), made(*of_k, w.head_dim), made(*of_k, w.head_dim_v)]
    return [q, k, v, out, lse, dout, dlse.detach(), *grads]


def test_there_are_some() -> None:
    assert len(NAMES) == 4 and set(NAMES) <= set(kernels.names())
    assert len([*cases()]) >= 12


@pytest.mark.parametrize(("kernel", "first"), [*cases()])
def test_numbers_are_the_arguments_of_the_host_side(
    kernel: Kernel, first: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda self: 0)  # meta tensors have none
    chance = random.Random(str(first))
    for config in configs(kernel, first):
        sized = resized(kernel, first, config)
        for _ in range(CALLS):
            w = replace(first, **random_lengths(chance))
            made = call(w, chance)
            sizes = tuple((*each.shape, *each.stride()) for each in made)
            asked = w.batch, w.seqlen_q, w.seqlen_k
            spec = LaunchSpec(Case(kernel, w, SM90), config, 0.5, seen_sms=SMS)
            tables = [0] * len(sized.tables(*asked, "cpu"))
            scratch, launches = sized(GradientSizes(*asked, sizes, 0.5), tables)
            assert scratch == kernel.module.scratch(made, spec), (w, config)
            made += [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in scratch]
            expected = [*host_sides(kernel, made, spec)]
            assert len(expected) == len(launches) == len(sized.forms)
            for (ctas, ours), (grid, arguments) in zip(launches, expected, strict=True):
                assert (ctas, 1, 1) == grid, (w, config)
                theirs = [*numbers(arguments, made)]
                assert list(ours) == theirs[: len(ours)], (w, config)


def host_sides(kernel: Kernel, made: Sequence[Tensor], spec: LaunchSpec) -> Iterator[Any]:
    for step in ("preprocess_arguments", "arguments", "postprocess_arguments"):
        if hasattr(kernel.module, step):
            yield getattr(kernel.module, step)(made, spec)


def numbers(arguments: Sequence[Any], made: Sequence[Tensor]) -> Iterator[Any]:
    """Yields the arguments that are numbers, with the addresses of tables."""
    for each in arguments:
        if isinstance(each, Tensor):
            if not any(each is tensor for tensor in made):
                yield each.data_ptr()
        elif isinstance(each, tuple):
            yield each[0].shape[each[1]]
        elif isinstance(each, ctypes.Structure):
            yield from (getattr(each, field[0]) for field in each._fields_)
        elif each is not None and not isinstance(each, dict):
            yield getattr(each, "value", each)


@pytest.mark.parametrize(("kernel", "first"), [*cases()])
def test_lengths_with_one_variant_have_one_binary(kernel: Kernel, first: Workload) -> None:
    """So have lengths with the same divisors."""
    chance, language = random.Random(str(first)), languages.load(kernel.language)
    for config in configs(kernel, first):
        sized, found, divided = resized(kernel, first, config), dict[Any, Any](), dict[Any, Any]()
        for _ in range(CALLS):
            w = replace(first, **random_lengths(chance))
            made = language.binary_key(Case(kernel, w, SM90), config, True)
            key = sized.variant(w.seqlen_q, w.seqlen_k)
            assert found.setdefault(key, made) == made, (w, config)
            assert divided.setdefault(divisors(w), made) == made, (w, config)
        assert len(found) <= 4


@pytest.mark.parametrize(("kernel", "first"), [*cases()])
def test_what_decides_tables_decides_what_is_in_them(kernel: Kernel, first: Workload) -> None:
    chance = random.Random(str(first))
    for config in configs(kernel, first):
        sized, found = resized(kernel, first, config), dict[Any, Any]()
        for _ in range(CALLS):
            w = replace(first, **random_lengths(chance))
            asked = w.batch, w.seqlen_q, w.seqlen_k
            made = [each.tolist() for each in sized.tables(*asked, "cpu")]
            assert found.setdefault(sized.decides(*asked), made) == made, (w, config)


def test_what_it_does_not_serve() -> None:
    for text in ("bwd_h8_d128_q512_causal_w64", "bwd_h8_d128_q512_causal_varlen"):
        w = Workload.parse(text)
        for name in NAMES:
            kernel = kernels.load(name)
            if kernel.why_not(w, SM90.arch) is None:
                config = kernel.default(w, SM90.arch)
                assert launch_lengths.load_gradients(kernel, w, config, SMS) is None


def test_kernels_of_other_calls_say_nothing() -> None:
    kernel = kernels.load("attention_fwd_triton")
    w = Workload.parse("h8_q512_d64_causal")
    assert launch_lengths.load_gradients(kernel, w, kernel.default(w, SM90.arch), SMS) is None


def resized(kernel: Kernel, first: Workload, config: dict[str, Any]) -> ResizedGradients:
    sized = launch_lengths.load_gradients(kernel, first, config, SMS)
    assert sized is not None
    return sized
