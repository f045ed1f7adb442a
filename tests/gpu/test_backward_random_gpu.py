"""Hundreds of random gradients by every kernel that serves them, on the device."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.gradient_errors import CASES, workloads
from tests.support.random_problems import check_random
from tunefa.spec import kernel as kernels

pytestmark = pytest.mark.gpu


def test_workloads_have_something_of_everything() -> None:
    every = list(itertools.islice(workloads(), CASES))
    for name in ("varlen", "deterministic", "softcap", "causal"):
        assert {getattr(each, name) for each in every} == {True, False}


OF_GRADIENTS = [name for name in kernels.names() if kernels.load(name).op == "bwd"]


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_random_problems_are_right(name: str) -> None:
    check_random(kernels.load(name), itertools.islice(workloads(), CASES))
