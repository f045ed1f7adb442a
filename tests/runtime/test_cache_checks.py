"""tunefa/runtime/cache_checks.py: what each message names."""

from __future__ import annotations

import pytest
import torch

from tunefa.errors import TunefaError
from tunefa.runtime import cache_checks as checks

Q = torch.zeros(2, 4, 1, 64, dtype=torch.bfloat16)
K = torch.zeros(2, 2, 30, 64, dtype=torch.bfloat16)
NAMES = ("k_cache", "v_cache")


def test_what_fits_passes() -> None:
    checks.check_dtypes((Q, K, K), NAMES)
    checks.check_sizes(Q, K, K, None, NAMES)
    checks.check_vector("seqlens", torch.zeros(2, dtype=torch.int32), (2,), torch.int32, Q)
    checks.check_table(torch.zeros(2, 3, dtype=torch.int32), Q, 2)
    checks.check_descales((None, None), (2, 2), K)


@pytest.mark.parametrize(
    ("k", "v", "said"),
    [
        (K, K[:, :1], "heads of k_cache is 2 and of v_cache 1"),
        (K, K[:, :, :7], "seqlen of k_cache is 30 and of v_cache 7"),
        (K[..., :32], K, "head_dim of q is 64 and of k_cache 32"),
        (K[:1], K[:1], "batch of q is 2 and of k_cache 1"),
        (K.expand(2, 2, 30, 64).repeat(1, 2, 1, 1)[:, :3], K.repeat(1, 2, 1, 1)[:, :3],
         "not a multiple of the 3 of the cache"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_named(k: torch.Tensor, v: torch.Tensor, said: str) -> None:
    with pytest.raises(TunefaError, match=said):
        checks.check_sizes(Q, k, v, None, NAMES)


def test_other_dtypes_lengths_and_tables_are_named() -> None:
    with pytest.raises(TunefaError, match="v_cache"):
        checks.check_dtypes((Q, K, K.half()), NAMES)
    with pytest.raises(TunefaError, match="seqlens is"):
        checks.check_vector("seqlens", torch.zeros(2), (2,), torch.int32, Q)
    with pytest.raises(TunefaError, match="make its rows contiguous"):
        checks.check_table(torch.zeros(3, 2, dtype=torch.int32).t(), Q, 2)
    with pytest.raises(TunefaError, match="k_descale is missing"):
        checks.check_descales((None, None), (2, 2), K.to(torch.float8_e4m3fn))
    with pytest.raises(TunefaError, match=r"k_descale\.to"):
        checks.check_device("k_descale", torch.zeros(2, device="meta"), Q)
