"""tunefa/store/added_parameters.py: records and journals from before a parameter was added."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.sample_records import measured
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.store import added_parameters
from tunefa.store.record import Record

SM90 = archs.load("sm90")


@pytest.mark.parametrize("name", added_parameters.ADDED)
def test_values_are_in_the_space_and_before_its_other_parameters(name: str) -> None:
    added, parameters = added_parameters.ADDED[name], kernels.load(name).space.parameters
    assert list(added) == [each.name for each in parameters[: len(added)]]
    assert all(added[each.name] in each.values for each in parameters[: len(added)])


@pytest.mark.parametrize("count", [1, 2])
def test_an_earlier_record_gets_them_and_its_runner_up_too(count: int) -> None:
    """Parameters are added at the front, so the oldest records lack the most."""
    name, record = "attention_fwd_cuda_sm90", measured("fwd_q4096")
    added = added_parameters.ADDED[name]
    config = {**kernels.load(name).default(record.workload, SM90), **added}
    lacking = list(added)[:count]
    earlier = {key: value for key, value in config.items() if key not in lacking}
    certificate = {"runner_up": {"config": earlier, "slower_by": {"low": 0.1}}}
    made = replace(record, kernel=name, config=earlier, certificate=certificate)
    read = Record.from_dict(made.to_dict())
    assert read.config == config and list(read.config) == list(config)
    assert read.certificate == {"runner_up": {"config": config, "slower_by": {"low": 0.1}}}


def test_what_is_there_stays() -> None:
    config = {"DEPENDENT_LAUNCH": 1, "FP16_PV": 1}
    assert added_parameters.completed("attention_fwd_cuda_sm90", config) == config
    assert added_parameters.completed("my_kernel", {"TILE": 2}) == {"TILE": 2}
