"""Pages of batches over SGLang's table of slots, without SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa.integrations import sglang_attention as paged

PAGE, PLACES = 4, 24


def slots_of(*pages: list[int]) -> Tensor:
    """SGLang's table: row 0 is nobody's, then each request has a row with its pages' slots."""
    table = torch.zeros(1 + len(pages), PLACES, dtype=torch.int32)
    for row, own in enumerate(pages, 1):
        slots = (torch.tensor(own)[:, None] * PAGE + torch.arange(PAGE)).flatten()
        table[row, : len(slots)] = slots
    return table


def batch(keys: list[int], **more: Any) -> Any:
    lengths = torch.tensor(keys)
    given = {
        "seq_lens": lengths,
        "seq_lens_cpu": lengths,
        "req_pool_indices": torch.arange(1, len(keys) + 1),
        "out_cache_loc": None,
    }
    return SimpleNamespace(**given | more)


TABLE = slots_of([7, 2, 9], [1], [5, 6])
KEYS = [11, 3, 8]


def test_pages_of_requests_that_decode() -> None:
    pages = paged.decodes(paged.Pool(TABLE, PAGE, None), batch(KEYS))
    assert pages.seqlens.dtype == pages.table.dtype == torch.int32
    assert pages.seqlens.tolist() == KEYS and pages.cu_seqlens_q is None
    assert pages.table.shape == (3, PLACES // PAGE), "the width does not depend on the batch"
    assert pages.table[0, :3].tolist() == [7, 2, 9]
    assert pages.table[1, :1].tolist() == [1] and pages.table[2, :2].tolist() == [5, 6]


def test_pages_of_prompts() -> None:
    lengths = torch.tensor([4, 1, 8], dtype=torch.int32)
    made = batch(KEYS, extend_seq_lens=lengths, extend_seq_lens_cpu=lengths.tolist())
    pages = paged.prompts(paged.Pool(TABLE, PAGE, None), made)
    assert pages.cu_seqlens_q is not None and pages.cu_seqlens_q.dtype == torch.int32
    assert pages.cu_seqlens_q.tolist() == [0, 4, 5, 13]
    assert (pages.max_seqlen_q, pages.max_seqlen_k) == (8, 11)
    assert pages.table.shape == (3, 3) and pages.table[0].tolist() == [7, 2, 9]


@pytest.mark.parametrize("page_size", [1, 3, 5])
def test_tables_that_are_no_multiple_of_a_page(page_size: int) -> None:
    slots = (torch.arange(8) + page_size).int()[None].repeat(2, 1)
    pool = paged.Pool(slots, page_size, None)
    pages = paged.decodes(pool, batch([8]))
    assert pages.table[0].tolist() == [1 + number for number in range(-(-8 // page_size))]


def test_lengths_that_only_the_device_knows_read_all_columns() -> None:
    pages = paged.decodes(paged.Pool(TABLE, PAGE, None), batch(KEYS, seq_lens_cpu=None))
    assert pages.table[0].tolist() == [7, 2, 9, 0, 0, 0]


def test_the_second_pool_has_pages_of_its_own() -> None:
    mapping = torch.arange(40)
    mapping[7 * PAGE : 8 * PAGE] = torch.arange(PAGE) + 3 * PAGE
    mapping[2 * PAGE : 3 * PAGE] = -1  # these keys have left the window
    written = torch.tensor([7 * PAGE + 1, 6 * PAGE])
    pool = paged.Pool(TABLE, PAGE, mapping)
    pages = pool.new_pages(3, 6, 5)
    pool.fill(pages, batch(KEYS, out_cache_loc=written))
    assert pages.sliding_table is not None and pages.sliding_slots is not None
    assert pages.sliding_table[0, :3].tolist() == [3, 0, 9]
    assert pages.table[0, :3].tolist() == [7, 2, 9]
    assert pages.sliding_slots[:2].tolist() == [3 * PAGE + 1, 6 * PAGE]


@pytest.mark.parametrize("heads_first", [False, True])
def test_a_buffer_in_pages(heads_first: bool) -> None:
    whole = torch.randn(5, PAGE, 2, 8)
    buffer = whole.transpose(1, 2).contiguous() if heads_first else whole.flatten(0, 1)
    assert torch.equal(paged.in_pages(buffer, PAGE), whole)
