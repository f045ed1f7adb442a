"""The op `decode`: attention of few queries over a cache of keys and values. Its tensors, its
inputs, its reference, its limits.

The cache is contiguous, (batch, heads_kv, seqlen_k, head_dim), or has pages, (pages, heads_kv,
page_size, head_dim). A sequence has the first `seqlens` keys of its part; what lies behind them is
NaN or Inf in a check.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check
from tunefa.measure.comparison import ACCURACY_MARGIN, TOLERANCE, Expected
from tunefa.spec.rounding import ceil_div
from tunefa.spec.target import Case
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # they import PyTorch, which takes seconds
    import torch
    from torch import Tensor

    from tunefa.measure.hostile import Kind

OUTPUTS = slice(3, 5)
"""The output and the logsumexp; q and the cache are before them, and what a kernel reads beside
them is behind: seqlens, the block table of pages, and the sinks, if there are any."""
NAMES = ("out", "lse")
HALF_OF_LEAST = {"bf16": 2.0**-134, "fp16": 2.0**-25}
"""Half of the smallest positive number of the dtype."""
LIBRARY_SPLIT_KEYS = 512
"""Keys that a library may split. FlashAttention-2 has blocks of 64 to 256 keys, and does not say
where it splits."""
SPARE_PAGES = 3
"""Pages of no sequence, which no kernel may read."""


def tensors(workload: Workload, device: str, seed: int | None = None) -> tuple[Any, ...]:
    """Returns fresh (q, k, v, out, lse, seqlens, ...) on `device`: normal inputs, and outputs full
    of NaN.

    q and out are (batch, heads, seqlen_q, head_dim | head_dim_v) views of memory in the order
    (batch, seqlen_q, heads, head_dim), and so is a contiguous cache; pages are in the order
    (page, slot, head, dim). lse is (batch, heads, seqlen_q), seqlens (batch,) in int32. The block
    table is (batch, pages of the longest sequence) in int32, in random order but for the pages that
    sequences share; sinks are (heads,) in fp32. A cache in e4m3 has the descales of k and v at the
    end, (batch, heads_kv) in fp32. With `mla` v is a view of the first head_dim_v columns of k.
    """
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[workload.dtype]
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)

    def normal(*shape: int, stored: Any = dtype) -> Tensor:
        made = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        return made.to(stored).transpose(1, 2)

    size, pages = _cache_size(workload)
    q = normal(workload.batch, workload.seqlen_q, workload.heads, workload.head_dim)
    stored = torch.float8_e4m3fn if workload.e4m3cache else dtype
    k = normal(*size, workload.heads_kv, workload.head_dim, stored=stored)
    if workload.mla:
        v = k[..., : workload.head_dim_v]
    else:
        v = normal(*size, workload.heads_kv, workload.head_dim_v, stored=stored)
    shape = (workload.batch, workload.seqlen_q, workload.heads, workload.head_dim_v)
    out = torch.full(shape, math.nan, device=device, dtype=dtype).transpose(1, 2)
    lse = torch.full(q.shape[:3], math.nan, device=device)
    keys = [each for _, each in workload.lengths]
    more = [torch.tensor(keys, device=device, dtype=torch.int32)]
    if workload.page_size is not None:
        order = torch.randperm(size[0], generator=generator, device=device)
        table = order[: workload.batch * pages].view(workload.batch, pages).int()
        shared = workload.prefix_keys // workload.page_size
        table[:, :shared] = table[0, :shared].clone()
        more.append(table)
    if workload.sinks:
        more.append(torch.randn(workload.heads, generator=generator, device=device))
    if workload.e4m3cache:
        of_heads = (2, workload.batch, workload.heads_kv)
        more += list(0.5 + torch.rand(of_heads, generator=generator, device=device))
    return q, k, v, out, lse, *more


def _cache_size(workload: Workload) -> tuple[tuple[int, int], int]:
    """Returns the first two axes of the cache in memory, and the pages of a sequence."""
    if workload.page_size is None:
        return (workload.batch, workload.seqlen_k), 0
    pages = ceil_div(workload.seqlen_k, workload.page_size)
    return (workload.batch * pages + SPARE_PAGES, workload.page_size), pages


def ragged(workload: Workload, config: Config) -> Workload:
    """Returns a small workload of the same kind: sequences of several lengths, which no block
    divides, and which have one split or several. The number of query rows is the workload's, which
    the binary depends on."""
    least = config.get("MIN_SPLIT_KEYS") or LIBRARY_SPLIT_KEYS
    if "LEAF_KEYS" in config:
        least = config["num_warps"] * config["LEAF_KEYS"]
    left, keys = workload.window_left, 2 * int(least) + 77
    if workload.prefix and workload.page_size is not None:
        keys += 6 * workload.page_size  # so that the shortest one has a page of the prefix
    return replace(
        workload,
        batch=3,
        heads=2 * workload.group,
        heads_kv=2,
        seqlen_k=keys,
        window_left=left if left is None else min(left, keys // 2),
        varlen=True,
    )


def launch_spec(case: Case, config: Config) -> LaunchSpec:
    """The scale is that of scaled dot-product attention, head_dim^-0.5."""
    return LaunchSpec(case, config, case.workload.head_dim**-0.5, check.softcap(case.workload))


def kinds_of_finalists(workload: Workload) -> tuple[Kind, ...]:
    """The inputs that finalists are checked with on the workload's own shape."""
    return ("mixed",) if workload.batch > 1 else ("hostile", "normal")


def inputs(
    workload: Workload, kind: Kind, device: str
) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Returns the tensors, and the memory of q, the cache, out and lse with what surrounds them.

    Pages have the spare pages around them, and the slots behind a sequence's last key.
    """
    from tunefa.measure import hostile

    made = list(tensors(workload, device, seed=0))
    generator = made[0].new_empty(0).device
    for number, role in enumerate(_roles(workload, kind)):
        keys, values = sequence_of(workload, made, number)
        if role == "hostile":
            first = workload.prefix_keys  # the keys before it are those of other sequences too
            own = keys[:, first:], values[:, first:]
            hostile.change_sequence(made[0][number], *own, _generator(generator, number))
            if workload.mla:  # they are the keys' own
                values = keys[..., : workload.head_dim_v]
        write_sequence(workload, made, number, (keys, values))
    whole: list[tuple[Tensor, Tensor]] = []
    for i in range(4):
        if workload.mla and i == 2:
            keys, memory = whole[1]
            whole.append((keys[..., : workload.head_dim_v], memory))
        elif workload.page_size is None or i in (0, 3):
            whole.append(hostile.surrounded(made[i], is_input=i < 3))
        else:
            whole.append((made[i], made[i]))
    whole.append(hostile.surrounded_lse(made[4]))
    made[:5] = [inner for inner, _ in whole]
    return tuple(made), tuple(memory for _, memory in whole)


def _roles(workload: Workload, kind: Kind) -> list[Any]:
    """Returns the kind of inputs of each sequence."""
    from tunefa.measure import hostile

    return list(hostile.roles(replace(workload, varlen=False), kind))


def _generator(device: torch.device, seed: int) -> torch.Generator:
    import torch

    return torch.Generator(device).manual_seed(seed)


def sequence_of(workload: Workload, made: Any, number: int) -> tuple[Tensor, Tensor]:
    """Returns copies of the keys and values of a sequence: (heads_kv, keys, head_dim), and with
    head_dim_v."""
    keys = workload.lengths[number][1]
    if workload.page_size is None:
        k, v = (made[i][number, :, :keys].clone() for i in (1, 2))
        return k, v
    from tunefa.measure.attention_inputs import as_indexed

    pages = made[6][number, : ceil_div(keys, workload.page_size)].long()
    k, v = (
        as_indexed(made[i])[pages]
        .transpose(0, 1)
        .flatten(1, 2)[:, :keys]
        .clone()
        .view(made[i].dtype)
        for i in (1, 2)
    )
    return k, v


def write_sequence(
    workload: Workload, made: list[Any], number: int, found: tuple[Tensor, Tensor]
) -> None:
    """Writes keys and values of a sequence into the cache, and NaN and Inf behind them. With the
    first sequence's come those of spare pages; table entries behind a sequence's last page are one
    of them."""
    import torch

    from tunefa.measure.attention_inputs import as_indexed

    keys, page = workload.lengths[number][1], workload.page_size
    for cache, own in zip(made[1:3], found, strict=True):
        if page is None:
            cache[number, :, :keys] = own
            cache[number, :, keys:] = math.nan
            if not workload.e4m3cache:  # it has no Inf
                cache[number, :, keys + 1 :: 2] = math.inf
            continue
        pages = made[6][number].long()
        whole = torch.full_like(own[:, :1], math.nan).repeat(1, pages.numel() * page, 1)
        if not workload.e4m3cache:
            whole[:, keys + 1 :: 2] = math.inf
        whole[:, :keys] = own
        in_pages = whole.reshape(whole.shape[0], -1, page, whole.shape[2]).transpose(0, 1)
        as_indexed(cache)[pages] = as_indexed(in_pages)
        if number == 0:
            every = torch.arange(cache.shape[0], device=cache.device)
            unused = every[~torch.isin(every, made[6].long())]
            as_indexed(cache)[unused] = as_indexed(torch.full_like(cache[:1], math.nan))
    if page is not None:
        every = torch.arange(made[1].shape[0], device=made[6].device)
        used = torch.cat([made[6][i, : ceil_div(n, page)]
                          for i, (_, n) in enumerate(workload.lengths)])  # fmt: skip
        spare = every[~torch.isin(every, used.long())][0]
        made[6][number, ceil_div(keys, page) :] = spare.int()


def expected(workload: Workload, kind: Kind, made: tuple[Any, ...], dtype: torch.dtype) -> Expected:
    """Returns the reference, with the rows that are judged, which of them are normal, and what is
    special about the rest."""
    import torch

    from tunefa.measure import hostile

    whole = replace(workload, varlen=False)
    found = [attention(workload, made, number, dtype) for number in range(workload.batch)]
    out, lse, spread = (torch.cat(each) for each in zip(*found, strict=True))
    of_sequence = _roles(workload, kind)
    normal = torch.tensor([role == "normal" for role in of_sequence], device=lse.device)
    if not bool(normal.any()):
        normal = ~normal

    def inputs_of(place: tuple[int, ...]) -> str:
        return hostile.described(whole, kind, *place)

    made_of = Expected.from_reference(whole, (out, lse, spread), check.softcap(workload))
    # A sink may leave a row outputs below the smallest number of its dtype.
    limits = made_of.limits + HALF_OF_LEAST[workload.dtype] * workload.head_dim_v**0.5
    return replace(
        made_of, limits=limits, normal=normal[:, None, None].expand(lse.shape), inputs_of=inputs_of
    )


def attention(
    workload: Workload, made: Any, number: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (out, lse, spread) of one sequence, as `reference.attention_and_spread` does."""
    return attention_of(workload, made, number, made[0][number : number + 1], dtype)


def attention_of(
    workload: Workload, made: Any, number: int, q: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what `attention` does, of these queries of a sequence: (1, heads, rows, head_dim)."""
    import torch

    from tunefa.measure import reference
    from tunefa.measure.attention_inputs import AttentionInputs

    k, v = sequence_of(workload, made, number)
    mask = workload.window_left, workload.window_right, check.softcap(workload)
    factors: tuple[Tensor, ...] = ()
    if workload.e4m3cache:
        factors = q.new_empty(0), *(each[number : number + 1] for each in made[-2:])
    scale = workload.head_dim**-0.5
    asked = AttentionInputs(q, k[None], v[None], workload.causal, scale, *mask, factors)
    out, lse, spread = reference.attention_and_spread(asked, dtype)
    if workload.sinks:
        sinks = made[-3 if workload.e4m3cache else -1]
        with_sink = torch.logaddexp(lse, sinks.to(dtype)[None, :, None])
        share = (lse - with_sink).exp()
        out, lse, spread = out * share[..., None], with_sink, spread * share
    return out, lse, spread


def limit(workload: Workload, kind: Kind, made: tuple[Any, ...], expected: Expected) -> float:
    """Returns the dtype's tolerance: PyTorch has no attention over a cache to compare with. Where
    all inputs are hostile, rows alone are judged."""
    if kind == "hostile":
        return math.inf
    return TOLERANCE[workload.dtype] * ACCURACY_MARGIN[workload.accuracy]
