"""tunefa/compile/launch/interpreted.py: the launches of a call, in their order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tunefa.compile.contract import LaunchSpec
from tunefa.compile.launch.interpreted import steps
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload


def spec_of(others: int, scratch_alone: bool = False) -> LaunchSpec:
    """A spec of a kernel with so many launches beside its own."""

    def arguments(name: str) -> Any:
        return lambda tensors, spec: ((1, 1, 1), [name, *tensors])

    module: Any = SimpleNamespace(
        is_aligned=lambda tensors: True,
        variant=lambda workload, config, aligned: "main",
        preprocess=lambda workload, config: "first" if others > 0 else None,
        postprocess=lambda workload, config: "last" if others > 1 else None,
        arguments=arguments("main"),
        preprocess_arguments=arguments("first"),
        postprocess_arguments=arguments("last"),
        SCRATCH_ALONE=scratch_alone,
        scratch=lambda tensors, spec: [((3,), torch.int32)],
    )
    kernel: Any = SimpleNamespace(name="k", module=module)
    return LaunchSpec(Case(kernel, Workload.parse("q16_d64"), Target.named("h200")), {}, 0.5)


@pytest.mark.parametrize(
    ("others", "order"), [(0, ["main"]), (1, ["first", "main"]), (2, ["first", "main", "last"])]
)
def test_launches_come_in_order_and_share_scratch(others: int, order: list[str]) -> None:
    tensors = [torch.zeros(2)]
    made = list(steps(spec_of(others), tensors))
    assert [variant for variant, _, _ in made] == order
    assert [arguments[0] for _, _, arguments in made] == order
    assert all(grid == (1, 1, 1) and arguments[1] is tensors[0] for _, grid, arguments in made)
    scratch = {id(arguments[-1]) for _, _, arguments in made}
    assert len(scratch) == 1
    if others:
        assert made[0][2][-1].shape == (3,) and made[0][2][-1].dtype == torch.int32


def test_a_kernel_alone_has_scratch_if_it_says_so() -> None:
    ((_, _, arguments),) = steps(spec_of(0, scratch_alone=True), [torch.zeros(2)])
    assert len(arguments) == 3 and arguments[-1].shape == (3,)
