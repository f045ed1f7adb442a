"""The chip of this machine, for measurements that also need its figures."""

from __future__ import annotations

from tunefa.compile.languages.ascend import available_npu
from tunefa.compile.launch import driver
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Target


def target() -> Target:
    """Returns the first device that PyTorch can use. Raises TunefaError where there is none."""
    seen = next(iter(driver.devices()), None)
    if seen is not None:
        return Target.seen(seen.name, seen.compute_capability, seen.sms)
    npu = available_npu()
    if npu is None:
        raise TunefaError("this machine has no GPU: name a chip, such as --arch h200")
    return Target(archs.find(npu.name)[0], npu)
