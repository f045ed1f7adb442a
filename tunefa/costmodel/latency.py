"""The latency models of GPUs by op: each op has its own tiling and its own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tunefa.costmodel import backward, decode, matmul
from tunefa.costmodel import gpu as attention
from tunefa.costmodel.gpu import Prediction
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.matmul import own
from tunefa.spec.target import Case
from tunefa.spec.tiling import BackwardTiling, DecodeTiling, MatmulTiling, Tiling
from tunefa.spec.trial import Config, Resources

FEWER_REGISTERS = 26
"""The registers per thread that a compiler may use fewer than expected: two standard deviations of
`gpu.expected_resources` (docs/model.md). On the eight landscapes of the Triton kernel on an H200,
2 % of the configs that are expected to take less than twice the least time rank more than 0.5 %
below the least time that follows from it, once they are compiled, and 19 % below the expected one.
The learned model is no monotonic function of registers: so its least time is no bound."""
FEWER_REGISTERS_BACKWARD = 108
"""The same for attention's gradients: two standard deviations of `backward.expected_resources`."""


Tiled = tuple[Any, Mapping[str, float]]
"""A tiling of the op, and lower bounds of resources by their names."""


@dataclass(frozen=True)
class Model:
    """The latency model of one op. Evaluating the expressions of a space takes most of its time, so
    each method does that once."""

    tiled: Callable[[Case, Config], Tiled]
    """Returns the tiling of a config, and the space's lower bounds of its resources."""
    predicted: Callable[[Case, Any, Resources], Prediction]
    """Returns the time of one launch with a tiling and these resources, see `gpu.predict`."""
    likely: Callable[[Case, Any, int, int], Resources]
    """Returns what the compiler will probably report for a tiling, from the lower bounds of shared
    memory and registers."""
    fewer_registers: int = FEWER_REGISTERS
    """The number of registers per thread that a compiler may use fewer than expected."""
    may_set_registers: bool = True
    """Whether warp-specialised kernels of the op set their registers themselves."""

    def predict(self, case: Case, config: Config, resources: Resources | None = None) -> Prediction:
        """Returns the time of one launch with these resources, see `gpu.predict`; with the expected
        ones if none are given."""
        tiling, lower = self.tiled(case, config)
        return self.predicted(case, tiling, resources or self._likely(case, tiling, lower))

    def needs(self, case: Case, config: Config) -> tuple[Resources, int | None]:
        """Returns what the compiler will probably report, and the space's lower bound of registers:
        None where the kernel sets its registers itself, so that they are known before."""
        tiling, lower = self.tiled(case, config)
        sets = self.may_set_registers and tiling.warp_specialised
        registers = None if sets else int(lower.get("registers", 0))
        return self._likely(case, tiling, lower), registers

    def threads(self, case: Case, config: Config) -> int:
        """Returns the threads of one CTA."""
        count: int = self.tiled(case, config)[0].threads
        return count

    def _likely(self, case: Case, tiling: Any, lower: Mapping[str, float]) -> Resources:
        smem_bytes, registers = int(lower.get("smem_bytes", 0)), int(lower.get("registers", 0))
        return self.likely(case, tiling, smem_bytes, registers)


def _predict_attention(case: Case, tiling: Tiling, resources: Resources) -> Prediction:
    return attention.predict(case.workload, gpu(case.arch), case.device, tiling, resources)


def _predict_backward(case: Case, tiling: BackwardTiling, resources: Resources) -> Prediction:
    return backward.predict(case.workload, gpu(case.arch), case.device, tiling, resources)


def _predict_decode(case: Case, tiling: DecodeTiling, resources: Resources) -> Prediction:
    return decode.predict(case.workload, gpu(case.arch), case.device, tiling, resources)


def _predict_matmul(case: Case, tiling: MatmulTiling, resources: Resources) -> Prediction:
    return matmul.predict(own(case.workload), gpu(case.arch), case.device, tiling, resources)


_ATTENTION = Model(
    Case.tiling_and_estimate,
    _predict_attention,
    lambda case, *known: attention.expected_resources(gpu(case.arch), *known),
)
MODELS: Mapping[str, Model] = {
    "fwd": _ATTENTION,
    "bwd": Model(
        lambda case, config: case.tiling_as_and_estimate(BackwardTiling, config),
        _predict_backward,
        lambda case, *known: backward.expected_resources(gpu(case.arch), *known),
        FEWER_REGISTERS_BACKWARD,
    ),
    "decode": Model(
        lambda case, config: case.tiling_as_and_estimate(DecodeTiling, config),
        _predict_decode,
        lambda case, *known: decode.expected_resources(*known),
        may_set_registers=False,
    ),
    "prefill": _ATTENTION,
    "matmul": Model(
        lambda case, config: case.tiling_as_and_estimate(MatmulTiling, config),
        _predict_matmul,
        lambda case, *known: matmul.expected_resources(own(case.workload), gpu(case.arch), *known),
        may_set_registers=False,
    ),
}


def of(case: Case) -> Model:
    """Returns the model of the case's op."""
    return MODELS[case.workload.op]
