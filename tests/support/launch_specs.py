"""The input of a kernel's host side, for its functions that tests call themselves."""

from __future__ import annotations

from typing import Any

from tunefa.compile.contract import LaunchSpec
from tunefa.measure import check
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload


def spec_of(
    kernel: Kernel, workload: Workload, config: Config, scale: float = 0.5, *, sms: int = 132
) -> LaunchSpec:
    """The launch of a config on a Hopper device with so many SMs."""
    case = Case(kernel, workload, Target.named("sm90"))
    return LaunchSpec(case, config, scale, check.softcap(workload), seen_sms=sms)


class Kept:
    """Tables by their key, as the runtime keeps them."""

    def __init__(self) -> None:
        self.made: dict[Any, Any] = {}

    def __call__(self, key: Any, make: Any) -> Any:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]
