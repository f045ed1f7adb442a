"""tunefa/runtime/argument_checks.py: each check by itself; whole calls are in test_call.py."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from tunefa.errors import TunefaError
from tunefa.runtime.argument_checks import (
    MOST_KEYS,
    check_cu_seqlens,
    check_descales,
    check_like_q,
    check_max_seqlen,
    check_scale,
    check_sizes,
    check_softcap,
    check_tensor,
    check_window_side,
)
from tunefa.spec.workload_parts import MAX_HEAD_DIM

Q = torch.zeros(2, 8, 5, 64)
KV = torch.zeros(2, 2, 7, 64)
NESTED = torch.nested.nested_tensor([Q[0], Q[1, :3]], layout=torch.jagged)
AXES = "(batch, heads, seqlen, head_dim)"


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (None, r"k is a NoneType: give a torch\.Tensor, \(batch"),
        (np.zeros((1, 1, 1, 1)), "k is a ndarray: give"),
        (torch.zeros(2, 3, 4), r"k has 3 axes, \(2, 3, 4\): give 4, \(batch"),
        (torch.zeros(1, 1, 1, 1, dtype=torch.int32), r"unknown dtype of k, 'torch\.int32'"),
        (torch.zeros(1, 1, 1, 1).to_sparse(), r"k is torch\.sparse_coo: convert it, k\.to_dense"),
        (torch.zeros(1, 1, 1, 1).to_mkldnn(), r"k is torch\._mkldnn: convert it, k\.to_dense"),
        (NESTED, r"k is a nested tensor: call flash_attention_varlen with its values\(\) and"),
    ],
)
def test_what_is_no_such_tensor(tensor: Any, says: str) -> None:
    with pytest.raises(TunefaError, match=says):
        check_tensor("k", tensor, 4, AXES)


def test_a_tensor_of_another_kind_than_q() -> None:
    check_like_q("k", KV, Q)
    with pytest.raises(TunefaError, match=r"k is torch\.float16 and q is .*k\.to\(q\.dtype\)"):
        check_like_q("k", KV.half(), Q)
    with pytest.raises(TunefaError, match=r"k is on meta and q is on cpu: .*k\.to\(q\.device\)"):
        check_like_q("k", KV.to("meta"), Q)


@pytest.mark.parametrize(
    ("q", "k", "v", "says"),
    [
        ((3, 8, 5, 64), (2, 2, 7, 64), (2, 2, 7, 64), "batch of q is 3 and of k 2"),
        ((2, 8, 5, 64), (2, 2, 7, 64), (1, 2, 7, 64), "batch of k is 2 and of v 1"),
        ((2, 8, 5, 64), (2, 2, 7, 64), (2, 4, 7, 64), "heads of k is 2 and of v 4"),
        ((2, 8, 5, 64), (2, 2, 7, 64), (2, 2, 6, 64), "seqlen of k is 7 and of v 6"),
        ((2, 8, 5, 64), (2, 2, 7, 32), (2, 2, 7, 64), "head_dim of q is 64 and of k 32"),
        ((2, 7, 5, 64), (2, 2, 7, 64), (2, 2, 7, 64), "7 heads, which is not a multiple of the 2"),
        ((2, 8, 5, 64), (2, 0, 7, 64), (2, 0, 7, 64), "not a multiple of the 0"),
        ((2, 8, 5, 0), (2, 2, 7, 0), (2, 2, 7, 64), "head_dim of q is 0: give 1 or more"),
    ],
)
def test_sizes_that_do_not_fit(q: Any, k: Any, v: Any, says: str) -> None:
    q, k, v = (torch.empty(shape, device="meta") for shape in (q, k, v))
    with pytest.raises(TunefaError, match=says) as error:
        check_sizes(q, k, v, AXES)
    assert str(error.value).endswith(f"({AXES})")


def test_the_smallest_head_dim_fits_and_one_that_no_kernel_serves() -> None:
    for head_dim in (1, MAX_HEAD_DIM + 1):
        q = torch.empty(1, 2, 3, head_dim)
        check_sizes(q, q[:, :1], q[:, :1], AXES)


@pytest.mark.parametrize(
    ("starts_q", "starts_k", "says"),
    [
        ([0, 5], None, "cu_seqlens_k is a NoneType"),
        (torch.zeros(2, 2).int(), torch.zeros(2).int(), r"cu_seqlens_q has shape \(2, 2\)"),
        (torch.zeros(0).int(), torch.zeros(2).int(), r"cu_seqlens_q has shape \(0,\)"),
        (torch.zeros(4).int()[::2], torch.zeros(2).int(), r"strides \(2,\): give one contiguous"),
        (torch.zeros(2).long(), torch.zeros(2).int(), r"convert it, cu_seqlens_q\.int\(\)"),
        (torch.zeros(2).int().to("meta"), torch.zeros(2).int(), "cu_seqlens_q is on meta"),
        (torch.zeros(2).int().to_sparse(), torch.zeros(2).int(), "cu_seqlens_q is torch.sparse"),
        (torch.zeros(3).int(), torch.zeros(2).int(), "has 2 sequences and cu_seqlens_k 1"),
    ],
)
def test_starts_that_are_none(starts_q: Any, starts_k: Any, says: str) -> None:
    if isinstance(starts_q, list):
        starts_q = torch.tensor(starts_q).int()
    with pytest.raises(TunefaError, match=says):
        check_cu_seqlens(starts_q, starts_k, Q)


def test_no_sequence_at_all_is_fine() -> None:
    none = torch.zeros(1).int()
    check_cu_seqlens(none, none, Q)


@pytest.mark.parametrize("value", [-1, 1.0, True, None, "5", 10**30])
def test_a_longest_length_that_is_none(value: Any) -> None:
    with pytest.raises(TunefaError, match=r"max_seqlen_q is .*a whole number from 0"):
        check_max_seqlen("max_seqlen_q", value)


def test_a_longest_length() -> None:
    for value in (0, 1, 10**9):
        check_max_seqlen("max_seqlen_q", value)


def test_descales_on_another_device() -> None:
    q = torch.zeros(2, 8, 5, 64).to(torch.float8_e4m3fn)
    check_descales(q, KV, (torch.ones(2, 2), None, None))
    with pytest.raises(TunefaError, match="q_descale is on meta and q is on cpu"):
        check_descales(q, KV, (torch.ones(2, 2, device="meta"), None, None))


def test_the_scale_is_a_float_whatever_number_was_given() -> None:
    assert check_scale(None, 64) == 0.125
    for given in (2, 2.0, Fraction(2), np.float32(2)):
        made = check_scale(given, 64)
        assert made == 2.0 and type(made) is float
    for wrong in (math.nan, math.inf, "2", 2j, torch.ones(1), 10**400):
        with pytest.raises(TunefaError, match=r"scale is .*: give a finite number"):
            check_scale(wrong, 64)


def test_soft_caps_and_windows_that_no_number_holds() -> None:
    for cap in (None, 1, 50.0, Fraction(1, 2)):
        check_softcap(cap)
    for wrong in (0, -1.0, math.nan, math.inf, 10**400, "50", torch.ones(1)):
        with pytest.raises(TunefaError, match=r"softcap is .*: give a positive number"):
            check_softcap(wrong)
    for fits in (None, 1, MOST_KEYS):
        check_window_side("window_left", fits, 1)
    for keys in (0, True, 1.0, MOST_KEYS + 1, 10**30):
        with pytest.raises(TunefaError, match=r"window_left is .*: give a number of keys from 1"):
            check_window_side("window_left", keys, 1)
