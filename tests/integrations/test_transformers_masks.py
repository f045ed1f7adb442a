"""The masks that a model asks for, in the forms that the attention function takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa.integrations.transformers_masks import make

CAUSAL: dict[str, Any] = {"allow_is_causal_skip": True, "device": "cpu"}


def causal(batch: Any, head: Any, row: Any, key: Any) -> Any:
    return key <= row


def padded(*lengths: int, keys: int = 6) -> Tensor:
    """Sequences whose last tokens are there."""
    return torch.arange(keys) >= keys - torch.tensor(lengths)[:, None]


def test_nothing_is_hidden_beyond_the_causal_mask() -> None:
    assert make(2, 6, 6, mask_function=causal, **CAUSAL) is None
    assert make(2, 1, 7, 6, mask_function=causal, **CAUSAL) is None
    assert make(2, 6, 6, attention_mask=padded(6, 6), **CAUSAL) is None


def test_padding_is_the_keys_that_are_none() -> None:
    given = padded(6, 2)
    found = make(2, 6, 6, attention_mask=given, **CAUSAL)
    assert found is not None and torch.equal(found, given[:, None, None])
    step = make(2, 1, 6, 5, attention_mask=given, **CAUSAL)
    assert step is not None and torch.equal(step, given[:, None, None])


def test_the_padding_of_a_sliding_cache_is_that_of_its_last_keys() -> None:
    given = padded(6, 2)
    found = make(2, 1, 4, 5, 2, attention_mask=given, **CAUSAL)
    assert found is not None and torch.equal(found, given[:, None, None, 2:])
    assert make(2, 1, 2, 5, 4, attention_mask=given, **CAUSAL) is None


@pytest.mark.parametrize("offset", [0, torch.tensor(0)], ids=["int", "tensor"])
def test_the_prefill_of_a_static_cache_sees_its_first_keys(offset: Any) -> None:
    found = make(2, 6, 32, offset, attention_mask=padded(6, 6), **CAUSAL)
    assert found is not None and (found.dtype, found.shape) == (torch.int8, (1, 1, 1, 6))
    found = make(2, 6, 32, offset, attention_mask=padded(6, 3), **CAUSAL)
    assert found is not None and torch.equal(found, padded(6, 3)[:, None, None])


def test_a_step_over_a_static_cache_has_its_count_on_the_device() -> None:
    found = make(2, 1, 32, torch.tensor(8), **CAUSAL)
    assert found is not None and (found.dtype, found.shape) == (torch.int32, (1, 1, 1, 1))
    assert int(found) == 9
    mask = torch.cat([padded(6, 3), torch.ones(2, 3, dtype=torch.bool)], 1)
    found = make(2, 1, 32, torch.tensor(8), attention_mask=mask, **CAUSAL)
    assert found is not None and found.shape == (2, 1, 1, 32)
    assert found.sum((1, 2, 3)).tolist() == [9, 6]


def packed(*ids: int) -> dict[str, Any]:
    of = torch.tensor(ids)

    def see(batch: Any, head: Any, row: Any, key: Any) -> Any:
        return (key <= row) & (of[row] == of[key])

    return {"mask_function": see, "allow_is_causal_skip": False, "device": "cpu"}


def test_packed_sequences_are_their_cumulative_lengths() -> None:
    found = make(1, 7, 7, **packed(0, 0, 0, 1, 2, 2, 2))
    assert found is not None and found.dtype == torch.int32
    assert found.shape == (1, 1, 3, 4) and found[0, 0, 0].tolist() == [0, 3, 4, 7]
    found = make(2, 4, 4, **packed(0, 0, 1, 1))
    assert found is not None and found[0, 0, 0].tolist() == [0, 2, 4, 6, 8]


def test_chunks_are_packed_sequences() -> None:
    def chunked(batch: Any, head: Any, row: Any, key: Any) -> Any:
        return (key <= row) & (row // 4 == key // 4)

    config = SimpleNamespace(attention_chunk_size=4)
    form = {**CAUSAL, "mask_function": chunked, "config": config, "local_size": 4}
    found = make(1, 10, 10, **form)
    assert found is not None and found[0, 0, 0].tolist() == [0, 4, 8, 10]
    assert make(1, 4, 4, **form) is None


def test_masks_of_another_form_are_made_in_full() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")

    def see(batch: Any, head: Any, row: Any, key: Any) -> Any:
        return (key <= row) | ((row < 3) & (key < 3))  # a picture sees itself

    form = {**CAUSAL, "allow_is_causal_skip": False}
    rows, keys = torch.arange(5)[:, None], torch.arange(5)[None]
    for given in (form, {**form, "use_vmap": True}):
        found = make(1, 5, 5, mask_function=see, **given)
        assert found is not None and torch.equal(found[0, 0], see(0, 0, rows, keys))
    mask = padded(5, 3, keys=5)
    found = make(2, 5, 5, mask_function=see, attention_mask=mask, **form)
    assert found is not None and found.shape == (2, 1, 5, 5) and not found[1, 0, :, 0].any()


def test_encoders_have_padding_only() -> None:
    form: dict[str, Any] = {
        "allow_is_bidirectional_skip": True,
        "allow_is_causal_skip": False,
        "device": "cpu",
    }
    assert make(2, 6, 6, **form) is None
    found = make(2, 6, 6, attention_mask=padded(6, 2), **form)
    assert found is not None and found.shape == (2, 1, 1, 6)
