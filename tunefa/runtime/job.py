"""The job that a plan is made for: the forward pass of a call, its gradients, or attention over a
cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from torch import Tensor

from tunefa.runtime.choice import Chosen
from tunefa.runtime.kernel_plan import Launches
from tunefa.spec.kernel import Kernel
from tunefa.spec.workload import Workload

P = TypeVar("P", covariant=True)
"""The type of a job's plans."""


class CheckedCall(Protocol):
    """The part of a call's checked arguments that planning needs."""

    @property
    def q(self) -> Tensor:
        """The queries."""

    @property
    def k(self) -> Tensor:
        """The keys."""

    @property
    def scale(self) -> float:
        """The factor of the scores."""

    @property
    def softcap(self) -> float | None:
        """The bound of the scores, None for none."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""


class Job(Protocol[P]):
    """The forward pass of a call, or its gradients."""

    @property
    def op(self) -> str:
        """The op of its workload."""

    @property
    def what(self) -> str:
        """The subject of a warning, with its verb: `attention runs`."""

    @property
    def call(self) -> CheckedCall:
        """The checked arguments."""

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """The tensors with heads that a kernel reads, with heads first, by name."""

    def workload(self) -> Workload:
        """The workload that runs. Raises TunefaError where no kernel could serve it."""

    def asked(self) -> Workload:
        """The workload that a config is looked up for, most often the same."""

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of a launch, in the order of the op, with heads first."""

    def why_not(self, kernel: Kernel) -> str | None:
        """Returns why a kernel cannot compute this job, though it serves the workload; or None."""

    def plan(self, chosen: Chosen, launches: Launches) -> P:
        """The plan that starts these launches."""

    def in_pytorch(self, chosen: Chosen) -> P:
        """The plan that computes the job in PyTorch."""
