"""tunefa/measure/attention_inputs.py: shapes, rows that see no key, and packed sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.packed_sequences import starts
from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import E4M3, AttentionInputs, batch_of_one, shares_rows


def dense(seqlen_q: int, seqlen_k: int, causal: bool, right: int | None = None) -> AttentionInputs:
    """Two batches of four heads over two KV heads; V has rows of 24."""
    q, k = torch.zeros(2, 4, seqlen_q, 16), torch.zeros(2, 2, seqlen_k, 16)
    return AttentionInputs(q, k, torch.zeros(2, 2, seqlen_k, 24), causal, 0.3, None, right)


def packed(seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...]) -> AttentionInputs:
    """The same heads; row i of a tensor holds i."""
    q, k, v = (
        torch.arange(float(sum(seqlens))).expand(dim, heads, -1).permute(2, 1, 0)
        for seqlens, heads, dim in ((seqlens_q, 4, 16), (seqlens_k, 2, 16), (seqlens_k, 2, 24))
    )
    cu_seqlens = starts(*seqlens_q), starts(*seqlens_k)
    return AttentionInputs(q, k, v, True, 0.3, 5, None, 1.5, cu_seqlens=cu_seqlens)


def test_shapes_of_what_it_gives() -> None:
    assert dense(5, 7, True).out_shape == (2, 4, 5, 24)
    assert dense(5, 7, True).lse_shape == (2, 4, 5)
    assert packed((5, 3), (4, 9)).out_shape == (8, 4, 24)
    assert packed((5, 3), (4, 9)).lse_shape == (4, 8)
    assert dense(5, 7, True).group == packed((5, 3), (4, 9)).group == 2


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "causal", "right", "first"),
    [
        (5, 7, True, None, 0),
        (7, 5, True, None, 2),
        (7, 5, False, None, 0),
        (9, 5, False, 1, 3),
        (7, 5, False, 4, 0),
        (7, 0, False, None, 7),
    ],
)
def test_rows_before_the_first_see_no_key(
    seqlen_q: int, seqlen_k: int, causal: bool, right: int | None, first: int
) -> None:
    assert dense(seqlen_q, seqlen_k, causal, right).first_row == first


def test_what_has_nothing_to_compute_is_empty() -> None:
    assert dense(0, 7, True).empty and dense(7, 0, True).empty and not dense(1, 1, True).empty
    assert packed((0,), (3,)).empty and packed((3,), (0,)).empty and packed((), ()).empty
    assert not packed((0, 1), (3, 0)).empty


def test_dtypes() -> None:
    x = torch.zeros(1, 1, 1, 16)
    for dtype, computed, out in (
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float64, torch.float64, torch.float64),
        (E4M3, torch.float32, torch.bfloat16),
    ):
        inputs = AttentionInputs(x.to(dtype), x.to(dtype), x.to(dtype), True, 1.0)
        assert (inputs.dtype, inputs.out_dtype) == (computed, out)


def test_each_sequence_is_dense_inputs_with_the_same_mask() -> None:
    made = list(packed((2, 0, 3), (1, 4, 2)).sequences())
    assert [(rows, keys) for rows, keys, _ in made] == [
        (slice(0, 2), slice(0, 1)),
        (slice(2, 2), slice(1, 5)),
        (slice(2, 5), slice(5, 7)),
    ]
    last = made[2][2]
    assert last.cu_seqlens is None and last.q.shape == (1, 4, 3, 16) and last.v.shape[3] == 24
    assert last.q[0, 1, :, 0].tolist() == [2, 3, 4] and last.k[0, 0, :, 0].tolist() == [5, 6]
    mask = last.causal, last.scale, last.window_left, last.window_right, last.softcap
    assert mask == (True, 0.3, 5, None, 1.5)


def test_dense_inputs_have_no_sequences() -> None:
    assert list(dense(5, 7, True).sequences()) == []


def test_one_sequence_as_a_batch() -> None:
    rows = torch.arange(24.0).view(3, 2, 4)
    assert torch.equal(batch_of_one(rows)[0, 1], rows[:, 1])


@pytest.mark.parametrize(
    ("name", "values"), [("q", (0, 5, 3, 12, 15, 23)), ("q", (0, 5, 5, 12, 15, 99)), ("k", (-1, 9))]
)
def test_sequences_that_are_not_there(name: str, values: tuple[int, ...]) -> None:
    made = packed((5, 0, 7, 3, 8), (7, 3, 0, 3, 20))
    assert made.cu_seqlens is not None
    given = dict(zip("qk", made.cu_seqlens, strict=True))
    given[name] = torch.tensor(values, dtype=torch.int32)
    broken = replace(made, cu_seqlens=(given["q"], given["k"]))
    with pytest.raises(TunefaError, match=rf"cu_seqlens_{name} is \[.*cumulative lengths"):
        list(broken.sequences())


def test_rows_are_shared_where_each_begins_at_the_same_place() -> None:
    cache = torch.zeros(3, 5, 1, 8)
    assert shares_rows(cache, cache[..., :6]) and shares_rows(cache, cache)
    rows = cache[:, :, 0]
    assert shares_rows(rows.unsqueeze(2), rows[..., :6].unsqueeze(2))
    assert not shares_rows(cache, cache[..., 1:])
    assert not shares_rows(cache, cache[..., :6].clone())
    assert not shares_rows(cache.transpose(0, 1), cache[..., :6])
    wide = torch.zeros(3, 5, 2, 8)
    assert not shares_rows(wide[:, :, :1], wide[:, ::2, :1]) and not shares_rows(cache, rows)
