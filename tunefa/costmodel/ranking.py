"""The order of trials whose times come from a model, which may be wrong."""

from __future__ import annotations

from tunefa.spec.trial import Trial, time_us

MODEL_ERROR = 0.15
"""The stated error of the cost model of GPUs, relative: its pick among compiled configs was so much
slower than the best, in the median of eight landscapes of an H200 (docs/model.md)."""


TIME_SD = 0.176
"""The standard deviation of log(measured time / time of the cost model of GPUs): the root mean
square over 1,268 compiled configs, up to 25 at random of those within 30 % of the best of each of
51 landscapes of an H200 and an H100. 90 % of them were within 1.59 times this."""


def rank_us(trial: Trial) -> float:
    """Returns the time by which trials are ordered, in us; infinity for a trial without a time.

    A config that spills registers counts as slower by the model's error, unless it was measured. So
    it comes after every config without spills whose predicted time is within that error.
    """
    spills = trial.resources is not None and (trial.resources.spill_bytes or 0) > 0
    doubted = spills and not trial.samples_us
    return time_us(trial) * (1.0 + MODEL_ERROR if doubted else 1.0)
