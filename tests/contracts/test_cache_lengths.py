"""The files in kernels/lengths/ say what the host sides of kernels over a cache say, for all
batches, caches and strides."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa import assets
from tunefa.compile.contract import LaunchSpec
from tunefa.compile.launch import lengths as launch_lengths
from tunefa.compile.launch.lengths import CacheSizes
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

NAMES = sorted(
    path.stem for path in (assets.root("kernels") / "lengths").glob("attention_decode_*.py")
)
SM90 = Target.named("sm90")
SMS = 132
CALLS = 60
FAMILIES = (
    {"heads": 32, "heads_kv": 8},
    {"heads": 8, "heads_kv": 2, "page_size": 64, "sinks": True},
    {"heads": 16, "heads_kv": 16, "head_dim": 64, "e4m3cache": True, "page_size": 16},
    {"heads": 4, "heads_kv": 1, "seqlen_q": 4, "window_left": 40, "softcap": True},
    {"heads": 16, "heads_kv": 8, "e4m3cache": True},
    {"heads": 16, "mla": True},
    {"heads": 128, "mla": True, "page_size": 64, "seqlen_q": 2},
)


def cases() -> Iterator[Any]:
    for name in NAMES:
        for number, parts in enumerate(FAMILIES):
            first = Workload.of(op="decode", **{"batch": 1, "seqlen_k": 8192, **parts})
            kernel = kernels.load(name)
            if kernel.why_not(first, SM90.arch) is None:
                yield pytest.param(kernel, first, id=f"{name}-{number}")


def configs(kernel: Kernel, first: Workload, chance: random.Random) -> Iterator[dict[str, Any]]:
    """The defaults, one that starts no second kernel if there is one, and some others."""
    found = [dict(each.config) for each in kernel.space.defaults]
    if "LAST_CTA_COMBINES" in kernel.space.default(first, SM90.arch):
        found.append(kernel.space.default(first, SM90.arch) | {"LAST_CTA_COMBINES": 1})
    feasible = kernel.space.feasible(first, SM90.arch).configs
    found += [dict(each) for each in chance.sample(list(feasible), min(4, len(feasible)))]
    yield from (each for each in found if kernel.refusal(each, first, SM90.arch) is None)


def call(w: Workload, chance: random.Random) -> tuple[list[Tensor], CacheSizes]:
    """The tensors of a call without memory, heads first, and its sizes. q and the cache may be
    parts of larger tensors."""

    def heads(batch: int, rows: int, count: int, columns: int) -> Tensor:
        more = chance.choice([0, 0, 3]), chance.choice([0, 0, 16])
        shape = batch, rows + more[0], count, columns + more[1]
        made = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        return made[:, :rows, :, :columns].transpose(1, 2)

    batch, table_row, more = w.batch, 0, []
    cache = batch, w.seqlen_k
    if w.page_size:
        width = -(-w.seqlen_k // w.page_size)
        table = torch.empty(batch, width + chance.choice([0, 5]), device="meta")[:, :width]
        cache, table_row, more = (chance.randint(1, 999), w.page_size), table.stride(0), [table]
    k = heads(*cache, w.heads_kv, w.head_dim)
    v = k[..., : w.head_dim_v] if w.mla else heads(*cache, w.heads_kv, w.head_dim_v)
    q, out = (heads(batch, w.seqlen_q, w.heads, x) for x in (w.head_dim, w.head_dim_v))
    lse, seqlens = (torch.empty(shape, device="meta") for shape in (q.shape[:3], (batch,)))
    more += [torch.empty(w.heads, device="meta")] * w.sinks
    factors = [torch.empty(batch, w.heads_kv, device="meta") for _ in range(2 * w.e4m3cache)]
    if factors and chance.random() < 0.5:
        factors = [torch.empty((), device="meta").expand(batch, w.heads_kv)] * 2
    sizes = tuple((*each.shape, *each.stride()) for each in (q, k, v, out))
    steps = tuple(step for each in factors for step in each.stride())
    made = [q, k, v, out, lse, seqlens, *more, *factors]
    return made, CacheSizes(batch, w.seqlen_k, table_row, sizes, steps)


def other(first: Workload, chance: random.Random) -> Workload:
    """A workload with another batch and another number of keys, which fill whole pages."""
    keys = chance.choice([1, 16, 100]) * chance.randint(1, 90) + (first.window_left or 0) + 2
    page = first.page_size or 1
    return replace(first, batch=chance.randint(1, 300), seqlen_k=-(-keys // page) * page)


def packed(arguments: Sequence[Any], form: str, count: int) -> bytes:
    """The first numbers among the arguments of a host side, as bytes."""
    if not form:
        numbers = [each for each in arguments if not isinstance(each, Tensor)]
        return struct.pack(f"{count}q", *numbers[:count])
    structures = [each for each in arguments if isinstance(each, ctypes.Structure)]
    return b"".join(map(bytes, structures))[: struct.calcsize(form)]


def test_there_are_some() -> None:
    assert len(NAMES) >= 4 and set(NAMES) <= set(kernels.names())
    assert len([*cases()]) >= 12


@pytest.mark.parametrize(("kernel", "first"), [*cases()])
def test_numbers_are_the_arguments_of_the_host_side(kernel: Kernel, first: Workload) -> None:
    chance, found = random.Random(str(first)), kernel.module
    for config in configs(kernel, first, chance):
        sized = launch_lengths.load_cache(kernel, first, config, SMS)
        assert sized is not None
        for _ in range(CALLS):
            w = other(first, chance)
            tensors, sizes = call(w, chance)
            spec = LaunchSpec(Case(kernel, w, SM90), config, 0.5, 9.0, seen_sms=SMS)
            scratch = found.scratch(tensors, spec)
            shapes, launches = sized(sizes)
            assert scratch == tuple((shape, torch.float32) for shape in shapes), w
            tensors += [torch.empty(shape, device="meta") for shape in shapes]
            expected = [found.arguments(tensors, spec)]
            if found.postprocess(w, config) is not None:
                expected.append(found.postprocess_arguments(tensors, spec))
            assert spec.has_scratch(is_alone=len(expected) == 1)
            for (ctas, numbers), form, (grid, arguments) in zip(
                launches, sized.forms, expected, strict=True
            ):
                assert (ctas, 1, 1) == grid, w
                ours = struct.pack(form or f"{len(numbers)}q", *numbers)
                assert ours == packed(arguments, form, len(numbers)), (w, config)


def test_kernels_of_other_calls_say_nothing() -> None:
    kernel = kernels.load("attention_fwd_triton")
    w = Workload.parse("h8_q512_d64_causal")
    assert launch_lengths.load_cache(kernel, w, kernel.default(w, SM90.arch), SMS) is None
