"""tunefa/spec/dtype_names.py: the names of dtypes that others have."""

from __future__ import annotations

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import dtype_names
from tunefa.spec.workload import DTYPES, Workload


def test_every_other_name_means_a_dtype() -> None:
    assert set(dtype_names.OTHER_NAMES.values()) <= DTYPES.keys()
    assert not dtype_names.OTHER_NAMES.keys() & DTYPES.keys()


@pytest.mark.parametrize(
    ("written", "dtype"),
    [("float16", "fp16"), ("bfloat16", "bf16"), ("fp8", "e4m3"), ("torch.float32", "fp32")],
)
def test_a_workload_has_tunefas_name(written: str, dtype: str) -> None:
    assert dtype_names.canonical(written) == dtype
    workload = Workload.parse(f"q64_{written}")
    assert workload.dtype == dtype and written not in str(workload)


def test_two_names_of_a_dtype_are_a_repetition() -> None:
    with pytest.raises(TunefaError, match="'bfloat16' gives dtype a second time"):
        Workload.parse("q64_bf16_bfloat16")
    assert dtype_names.canonical("int8") == "int8"
