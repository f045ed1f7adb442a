"""The seconds that the races of a search take, before they are run.

A bench checks the finalists of each kernel on the workload's own shape, then races them; at last
the kernels' winners race. Where a launch takes 20 us, that is less than a second for each kernel;
where it takes 20 ms, many. So a search that shares a GPU leaves as much time as its races need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunefa.costmodel.roofline import roofline
from tunefa.measure import ops
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

FINALISTS = 10
"""The racers of a kernel that is searched: eight finalists, the default and a known config."""
ALONE = 2
"""The racers of a kernel that is not searched: its best config, and the default."""
_RACE_S, _KERNELS_S = 0.5, 0.3
"""A kernel's race and the race of kernels, besides their launches: statistics, and small tensors.
On an H200 four kernels take 1 s, and a default alone 0.4 to 1.3 s."""
_PROBE = 60.0
"""Inputs and their reference in fp32 take as long as so many launches: it has a twelfth of the
tensor cores' rate, and writes scores to memory."""
_CHECK = 4.0
"""The launches as long as which the check of one finalist takes."""
_ROUNDS = 18
"""The rounds of a race; it has 12 at least, and ends when more would change nothing."""
_FLUSH_US = 150.0
"""To fill the L2 cache with other data before each launch."""
_ABOVE_ROOFLINE = 1.6
"""A default takes so many times the least time that the chip needs."""
_TRIALS_S = 1.0
"""The trials of defaults, besides their launches."""
_TRIAL = 12.0
"""The launches of one trial."""


def race_s(workload: Workload, launch_us: float, racers: int) -> float:
    """Returns the seconds in which so many configs of a kernel are checked and raced."""
    kinds = len(ops.of(workload).kinds_of_finalists(workload))
    checks_us = kinds * (_PROBE + _CHECK * racers) * launch_us
    return _RACE_S + 1e-6 * (checks_us + _ROUNDS * (racers + 1) * (launch_us + _FLUSH_US))


def kernels_s(launches_us: Sequence[float]) -> float:
    """Returns the seconds in which the winners of several kernels race; 0 for fewer than two."""
    known = [us for us in launches_us if us < math.inf]
    if len(known) < 2:
        return 0.0
    return _KERNELS_S + 1e-6 * _ROUNDS * sum(us + _FLUSH_US for us in [*known, min(known)])


def record_s(workload: Workload, target: Target, kernels: int) -> float:
    """Returns the seconds that a search of so many kernels needs for a record: it tries their
    defaults, and races."""
    launch_us = _ABOVE_ROOFLINE * roofline(workload, target).least_us
    alone_s = race_s(workload, launch_us, ALONE) + 1e-6 * _TRIAL * launch_us
    first_s = race_s(workload, launch_us, FINALISTS) + 1e-6 * _TRIAL * launch_us
    return _TRIALS_S + first_s + (kernels - 1) * alone_s + kernels_s([launch_us] * kernels)
