"""tunefa/runtime/parameter_names.py: other libraries' names are answered with those of tunefa."""

from __future__ import annotations

from typing import Any

import pytest

import tunefa
from tests.support.dense_calls import tensors
from tests.support.packed_calls import call
from tests.support.packed_calls import tensors as packed
from tunefa.runtime.parameter_names import CALLED, UnknownParameterError, unknown_parameter

DENSE: Any = tunefa.flash_attention


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("softmax_scale", "has no parameter 'softmax_scale'; it is called 'scale'"),
        ("sm_scale", "it is called 'scale'"),
        ("is_causal", "it is called 'causal'"),
        ("window_size", "it is called 'window', and None stands for no limit"),
        ("logit_cap", "it is called 'softcap'"),
        ("attn_mask", "has no parameter 'attn_mask': use causal and window, or"),
        ("dropout_p", "has no parameter 'dropout_p': there is no dropout, so leave it out"),
        ("enable_gqa", "leave it out, because k and v may always have fewer heads"),
        ("cuasal", "has no parameter 'cuasal': did you mean 'causal'"),
        ("xyz", r"has no parameter 'xyz' \(its parameters: q, k, v, "),
    ],
)
def test_both_functions_say_the_right_name(name: str, says: str) -> None:
    given = {name: None}
    with pytest.raises(tunefa.TunefaError, match=f"flash_attention .*{says}") as error:
        DENSE(*tensors(), **given)
    assert isinstance(error.value, TypeError)
    with pytest.raises(UnknownParameterError, match=f"flash_attention_varlen .*{says}"):
        call(packed(), **given)


def test_a_parameter_that_only_the_other_function_has_is_not_promised() -> None:
    for name in ("tensor_layout", "descale_q"):
        error = unknown_parameter(tunefa.flash_attention_varlen, [name])
        assert "it is called" not in str(error) and "its parameters: q, k, v, cu_" in str(error)


def test_every_name_of_the_table_is_answered_with_a_parameter() -> None:
    for name, ours in CALLED.items():
        of_pages = ours in ("block_table", "seqlens_k")
        function: Any = tunefa.flash_attention_varlen if of_pages else tunefa.flash_attention
        error = unknown_parameter(function, [name])
        assert isinstance(error, UnknownParameterError) and f"is called {ours!r}" in str(error)
