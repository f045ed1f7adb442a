"""Runs an experiment: every point is measured on this machine's GPU, or modelled for a chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tunefa.compile import provenance
from tunefa.errors import TunefaError
from tunefa.experiments.document import MEASURED, MODELLED, Document, Row
from tunefa.experiments.experiment import Experiment
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from tunefa.measure.contest import Settings

Tell = Callable[[Workload, int, int], None]
"""Is told which point begins: the workload, its number from 0, and how many there are."""


def run(
    experiment: Experiment,
    workloads: Sequence[Workload],
    target: Target,
    settings: Settings | None,
    tell: Tell,
) -> Document:
    """Returns the results for these workloads, measured with `settings`, or modelled for None.

    A point that raises TunefaError, or an error of PyTorch such as one for memory, becomes a row
    with the key `error`, so that it does not end the others. Raises TunefaError if all points fail.
    """
    rows: list[Row] = []
    for place, workload in enumerate(workloads):
        tell(workload, place, len(workloads))
        rows += _rows(experiment, workload, target, settings)
    failed = [row for row in rows if "error" in row]
    if len(failed) == len(rows):
        raise TunefaError(f"{experiment.name}: {failed[0]['error']}" if failed else "no rows")
    return Document(
        experiment=experiment.name,
        source=MODELLED if settings is None else MEASURED,
        arch=target.arch.name,
        device=target.device.name,
        rows=rows,
        made_with={} if settings is None else made_with(),
        settings={} if settings is None else asdict(settings),
    )


def _rows(
    experiment: Experiment, workload: Workload, target: Target, settings: Settings | None
) -> list[Row]:
    try:
        if workload.op != experiment.op:
            raise TunefaError(
                f"the experiment takes workloads of the op {experiment.op}, and {workload} is of "
                f"the op {workload.op}: name another with -w"
            )
        target.check_memory(workload)
        if settings is None:
            return experiment.modelled(workload, target)
        return experiment.measured(workload, settings)
    except TunefaError as error:
        return [{"workload": str(workload), "error": str(error)}]
    except RuntimeError as error:  # PyTorch's errors are of this type
        said = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
        return [{"workload": str(workload), "error": said}]


def made_with() -> dict[str, str]:
    """Returns the versions of what runs on this machine's GPU."""
    import torch

    versions = provenance.of(kernels.load("attention_fwd_triton"))
    found = {name: str(versions[name]) for name in ("tunefa", "torch", "triton", "driver")}
    cudnn: Any = torch.backends.cudnn
    return {**found, "cudnn": str(cudnn.version())}
