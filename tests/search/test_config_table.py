"""tunefa/search/config_table.py: a list of configs that makes each when it is asked for."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tunefa.search.config_table import ConfigTable
from tunefa.spec.kernel import load
from tunefa.spec.space import Parameter
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

CASE = Case(
    load("attention_fwd_cuda_sm90"), Workload.parse("q1024_h8_kv2_d64"), Target.named("h200")
)
PARAMETERS = CASE.kernel.space.parameters
CONFIGS = CASE.feasible().configs


def test_it_holds_the_configs_of_a_kernel() -> None:
    table = ConfigTable.of(PARAMETERS, CONFIGS)
    assert list(table) == list(CONFIGS) and len(table) == len(CONFIGS)
    assert table[0] == CONFIGS[0] and table[-1] == CONFIGS[-1]
    assert list(table[0]) == list(CONFIGS[0]), "the order of parameters"
    assert list(table[3:9:2]) == list(CONFIGS[3:9:2])
    assert CONFIGS[7] in table and table.index(CONFIGS[7]) == 7
    assert table.positions.nbytes == 2 * len(PARAMETERS) * len(CONFIGS)
    with pytest.raises(IndexError):
        table[len(CONFIGS)]


def test_values_are_those_of_the_parameters_lists() -> None:
    """Neither numpy's numbers, nor 1 in place of True: compilers get them as they are."""
    parameters = (Parameter("A", (False, True), ""), Parameter("B", (16, 32), ""))
    (config,) = ConfigTable(parameters, np.array([[1, 0]], np.int16))
    assert repr(config) == "{'A': True, 'B': 16}"


def test_a_table_is_not_made_again_but_for_other_parameters() -> None:
    table = ConfigTable.of(PARAMETERS, CONFIGS)
    assert ConfigTable.of(PARAMETERS, table) is table
    turned = ConfigTable.of(PARAMETERS[::-1], table)
    assert (turned.positions == table.positions[:, ::-1]).all()
    with pytest.raises(KeyError):
        ConfigTable.of(PARAMETERS, [{**CONFIGS[0], PARAMETERS[0].name: "another"}])


def test_a_kernel_without_parameters_has_one_config() -> None:
    table = ConfigTable.of((), [{}])
    assert list(table) == [{}] and len(pickle.dumps(table.positions)) < 500
