"""tunefa/runtime/cache_sizes.py: which calls over a cache are of one family."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.support.cache_families import CacheCalls
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime import decode_call
from tunefa.runtime.cache_sizes import CacheFamilyCall, family_call
from tunefa.runtime.decode_call import CacheOptions, CacheTensors

BF16 = torch.bfloat16


def made(batch: int = 2, keys: int = 100, **changes: Any) -> CacheTensors:
    """Tensors of a call with 8 heads over 2 KV heads, some of them changed."""
    q, lengths = torch.empty(batch, 1, 8, 64, dtype=BF16), torch.ones(batch, dtype=torch.int32)
    k, v = (torch.empty(batch, keys, 2, 64, dtype=BF16) for _ in range(2))
    return CacheTensors(q, k, v, lengths)._replace(**changes)


def paged(batch: int = 2, width: int = 5, page: int = 16, **changes: Any) -> CacheTensors:
    table = torch.zeros(batch, width, dtype=torch.int32)
    k, v = (torch.empty(30, page, 2, 64, dtype=BF16) for _ in range(2))
    return made(batch, k=k, v=v, block_table=table)._replace(**changes)


def asked(given: CacheTensors, out: Any = None, **options: Any) -> CacheFamilyCall | None:
    of_call = CacheOptions(**options)
    return family_call(decode_call.key(given, of_call, out), of_call)


def family(given: CacheTensors, out: Any = None, **options: Any) -> Any:
    found = asked(given, out, **options)
    assert found is not None
    return found.family


def test_batches_caches_and_strides_are_of_one_family() -> None:
    wide = torch.empty(3, 70, 4, 128, dtype=BF16)
    assert family(made()) == family(made(3, 7)) == family(made())
    strided = wide[:2, :, 1:3, 16:80]
    assert family(made(k=strided, v=strided)) != family(made()), "v has the rows of k"
    assert family(made(k=strided, v=wide[:2, :, :2, :64])) == family(made())
    pages = paged(), paged(3, 9), paged(width=1)
    assert len({family(each) for each in pages}) == 1


def test_what_is_different_is_told() -> None:
    found = asked(paged(3, 9))
    assert found is not None
    batch, keys, row, (q, k, v, out), steps = found.sizes
    assert (batch, keys, row, steps) == (3, 9 * 16, 9, ())
    assert q == out == (3, 8, 1, 64, 512, 64, 512, 1)
    assert k == v == (30, 2, 16, 64, 16 * 128, 64, 128, 1)
    turned = made()._replace(**{name: getattr(made(), name).transpose(1, 2) for name in "qkv"})
    first, second = asked(turned, layout="bhsd"), asked(made())
    assert first is not None and second is not None
    assert first.sizes.tensors[:3] == second.sizes.tensors[:3]
    assert first.sizes.tensors[3] == (2, 8, 1, 64, 512, 64, 64, 1)
    kept = torch.empty(2, 1, 8, 128, dtype=BF16)[..., :64]
    own = asked(made(), kept)
    assert own is not None and own.sizes.tensors[3] == (2, 8, 1, 64, 1024, 128, 1024, 1)


def test_what_decides_the_family() -> None:
    kept, sinks = torch.empty(2, 1, 8, 64, dtype=BF16), torch.zeros(8)
    found = [
        family(made()),
        family(made(), kept),
        family(made(), causal=False),
        family(made(), window_left=7),
        family(made(sinks=sinks)),
        family(paged()),
        family(paged(page=32)),
        family(made(q=torch.empty(2, 2, 8, 64, dtype=BF16))),
        family(made(q=torch.empty(2, 1, 4, 64, dtype=BF16))),
        family(made(v=torch.empty(2, 100, 2, 32, dtype=BF16))),
        family(CacheCalls(head_dim=64, e4m3=True).call(random.Random(0))),
    ]
    assert len({*found}) == len(found)


def test_factors_count_by_their_strides() -> None:
    def with_factors(batch: int, factor: Any) -> CacheTensors:
        k, v = (torch.empty(batch, 100, 2, 64, dtype=BF16).to(E4M3) for _ in range(2))
        return made(batch, k=k, v=v, k_descale=factor, v_descale=factor)

    own, one = torch.ones(2, 2), torch.ones(())
    assert family(with_factors(2, own)) == family(with_factors(3, torch.ones(3, 2)))
    shared = asked(with_factors(2, one.expand(2, 2)))
    assert shared is not None and shared.sizes.descale_steps == (0,) * 4
    assert shared.family != family(with_factors(2, own))
    assert asked(with_factors(2, torch.ones(2).expand(2, 2))) is None, "TMA may not take it"
    assert asked(with_factors(2, torch.ones(3, 2))) is None


BAD = {
    "unaligned": made(q=torch.empty(2 * 8 * 64 + 1, dtype=BF16)[1:].view(2, 1, 8, 64)),
    "rows apart": made(q=torch.empty(2, 1, 64, 8, dtype=BF16).transpose(2, 3)),
    "expanded": made(k=torch.empty(1, 100, 2, 64, dtype=BF16).expand(2, 100, 2, 64)),
    "strides": made(k=torch.empty(2, 100, 2, 72, dtype=BF16)[..., :64]),
    "three axes": made(q=torch.empty(2, 8, 64, dtype=BF16)),
    "no keys": made(keys=0),
    "no sequence": made(batch=0),
    "another batch": made(k=torch.empty(3, 100, 2, 64, dtype=BF16)),
    "v is shorter": made(v=torch.empty(2, 99, 2, 64, dtype=BF16)),
    "v has other heads": made(v=torch.empty(2, 100, 1, 64, dtype=BF16)),
    "too few lengths": made(seqlens=torch.ones(1, dtype=torch.int32)),
    "lengths apart": made(seqlens=torch.ones(4, dtype=torch.int32)[::2]),
    "table of another batch": paged(block_table=torch.zeros(3, 5, dtype=torch.int32)),
    "table with one axis": paged(block_table=torch.zeros(2, dtype=torch.int32)),
    "expanded table": paged(block_table=torch.zeros(1, 5, dtype=torch.int32).expand(2, 5)),
    "table with apart columns": paged(block_table=torch.zeros(2, 9, dtype=torch.int32)[:, ::2]),
    "empty table": paged(block_table=torch.zeros(2, 0, dtype=torch.int32)),
    "v has fewer pages": paged(v=torch.empty(29, 16, 2, 64, dtype=BF16)),
}


@pytest.mark.parametrize("name", BAD)
def test_others_are_planned_one_by_one(name: str) -> None:
    assert asked(BAD[name]) is None


def test_some_options_too() -> None:
    assert asked(made(), window_left=99) is None, "it hides nothing"
    assert asked(made(), window_left=98) is not None
    assert asked(paged(), shared_prefix=True) is None
    assert asked(made(), torch.empty(2, 1, 8, 32, dtype=BF16)) is None, "out of another shape"
    assert asked(made(), torch.empty(2, 1, 64, 8, dtype=BF16).transpose(2, 3)) is None
