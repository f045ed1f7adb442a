"""Parameters that a kernel's host side sets for a workload, in a config found for another one.

The host side (`specialize`, if a kernel has one) knows how evenly a schedule fills the SMs; the
cost model knows what it costs in device memory. Larger L2 sections let CTAs end at the same time,
but where the K and V of a section outgrow half of the L2 cache, some are read again from memory.
"""

from __future__ import annotations

from typing import Any

from tunefa.costmodel import latency
from tunefa.costmodel.gpu import Prediction
from tunefa.spec.target import Case
from tunefa.spec.trial import Config

MOST_HBM = 1 / 3
"""The share of device memory in the time, above which a schedule must not read more of it.

In landscapes of causal workloads, L2 sections of 32 MiB instead of 8 lost 0 to 3 % beside what
they gained in balance where the share was at most 0.3 (20 landscapes of an H200 and an H100), and 5
to 9 % where it was 0.6 (4). b8 h32 s512 d96 has 0.4 on an H200 and 0.6 on an H100: it was 1.5 % and
11.9 % slower with 32 MiB than with 8. With the default on an H100, 32 MiB took 91 % of the time of
8 at b1 h32 s2048 d192 (share 0.31), 100 % at b4 h16 s1024 d192 (0.53) and 108 % at b8 h32 s512 d96
(0.61)."""


def specialized(case: Case, config: Config) -> dict[str, Any]:
    """Returns the parameters that the kernel's host side sets for the case in a config that was
    found for another workload, and their values.

    It is empty if the changed config is refused, or reads more device memory where that takes more
    than `MOST_HBM` of the time.
    """
    specialize = getattr(case.kernel.module, "specialize", None)
    changes = specialize(case.workload, config, case.device.sms) if specialize else {}
    changed = {**config, **changes}
    if not changes or case.refusal(changed) is not None:
        return {}
    own, new = _predicted(case, config), _predicted(case, changed)
    if new.hbm_us > own.hbm_us > MOST_HBM * own.time_us:
        return {}
    return dict(changes)


def _predicted(case: Case, config: Config) -> Prediction:
    """The time by the op's latency model, before compiling."""
    return latency.of(case).predict(case, config)
