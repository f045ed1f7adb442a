"""The latency models of GPUs by op: each op has its own tiling and its own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tunefa.costmodel import backward, decode, matmul
from tunefa.costmodel import gpu as attention
from tunefa.costmodel.gpu import Prediction
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.matmul import own
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources

FEWER_REGISTERS = 26
"""How many registers per thread fewer than expected a compiler may use: two standard deviations of
`gpu.expected_resources` (docs/model.md). On the eight landscapes of the Triton kernel on an H200,
2 % of the configs that are expected to take less than twice the least time rank more than 0.5 %
below the least time that follows from it, once they are compiled, and 19 % below the expected one.
The learned model is no monotonic function of registers: so its least time is no bound."""
FEWER_REGISTERS_BACKWARD = 108
"""The same for attention's gradients: two standard deviations of `backward.expected_resources`."""


@dataclass(frozen=True)
class Model:
    """The latency model of one op."""

    predict: Callable[[Case, Config, Resources], Prediction]
    """Returns the time of one launch with these resources, see `gpu.predict`."""
    expected: Callable[[Case, Config], Resources]
    """Returns what the compiler will probably report."""
    threads: Callable[[Case, Config], int]
    """Returns the threads of one CTA."""
    sets_registers: Callable[[Case, Config], bool]
    """Returns whether the kernel sets its registers itself, so that they are known before."""
    fewer_registers: int
    """How many registers per thread fewer than expected a compiler may use."""


def _predict_attention(case: Case, config: Config, resources: Resources) -> Prediction:
    tiling = case.tiling(config)
    return attention.predict(case.workload, gpu(case.arch), case.device, tiling, resources)


def _expected_of_attention(case: Case, config: Config) -> Resources:
    tiling, lower = case.tiling_and_estimate(config)
    return attention.expected_resources(gpu(case.arch), tiling, *_bounds(lower))


def _predict_backward(case: Case, config: Config, resources: Resources) -> Prediction:
    tiling = case.backward_tiling(config)
    return backward.predict(case.workload, gpu(case.arch), case.device, tiling, resources)


def _expected_of_backward(case: Case, config: Config) -> Resources:
    tiling, lower = case.backward_tiling(config), case.estimate(config)
    return backward.expected_resources(gpu(case.arch), tiling, *_bounds(lower))


def _predict_decode(case: Case, config: Config, resources: Resources) -> Prediction:
    tiling = case.decode_tiling(config)
    return decode.predict(case.workload, gpu(case.arch), case.device, tiling, resources)


def _expected_of_decode(case: Case, config: Config) -> Resources:
    lower = case.estimate(config)
    return decode.expected_resources(case.decode_tiling(config), *_bounds(lower))


def _predict_matmul(case: Case, config: Config, resources: Resources) -> Prediction:
    tiling, asked = case.matmul_tiling(config), own(case.workload)
    return matmul.predict(asked, gpu(case.arch), case.device, tiling, resources)


def _expected_of_matmul(case: Case, config: Config) -> Resources:
    tiling, lower = case.matmul_tiling(config), case.estimate(config)
    asked = own(case.workload)
    return matmul.expected_resources(asked, gpu(case.arch), tiling, *_bounds(lower))


def _bounds(lower: Mapping[str, float]) -> tuple[int, int]:
    """The lower bounds of shared memory and registers."""
    return int(lower.get("smem_bytes", 0)), int(lower.get("registers", 0))


_ATTENTION = Model(
    _predict_attention,
    _expected_of_attention,
    lambda case, config: case.tiling(config).threads,
    lambda case, config: case.tiling(config).warp_specialised,
    FEWER_REGISTERS,
)
MODELS: Mapping[str, Model] = {
    "fwd": _ATTENTION,
    "bwd": Model(
        _predict_backward,
        _expected_of_backward,
        lambda case, config: case.backward_tiling(config).threads,
        lambda case, config: case.backward_tiling(config).warp_specialised,
        FEWER_REGISTERS_BACKWARD,
    ),
    "decode": Model(
        _predict_decode,
        _expected_of_decode,
        lambda case, config: case.decode_tiling(config).threads,
        lambda case, config: False,
        FEWER_REGISTERS,
    ),
    "prefill": _ATTENTION,
    "matmul": Model(
        _predict_matmul,
        _expected_of_matmul,
        lambda case, config: case.matmul_tiling(config).threads,
        lambda case, config: False,
        FEWER_REGISTERS,
    ),
}


def of(case: Case) -> Model:
    """Returns the model of the case's op."""
    return MODELS[case.workload.op]
