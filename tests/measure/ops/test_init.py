"""tunefa/measure/ops/__init__.py: an op is a module with all that is measured and checked."""

from __future__ import annotations

import pytest
import torch

from tunefa.compile.contract import LaunchSpec
from tunefa.costmodel.latency import MODELS
from tunefa.measure import ops
from tunefa.spec import space as spaces
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

EXAMPLES = {
    "bwd": ("attention_bwd_triton", "bwd_b2_h2_q64_d32_bf16"),
    "decode": ("attention_decode_triton", "decode_b2_h4_kv2_k300_d32_bf16_page16_sinks"),
    "fwd": ("attention_fwd_triton", "b2_h2_q64_d32_bf16"),
    "prefill": ("attention_prefill_triton", "b2_h4_kv2_q30_k300_d32_bf16_page16_sinks"),
    "matmul": ("matmul_triton", "matmul_m256_bf16"),
}


def test_every_op_of_a_space_has_a_module_and_a_latency_model() -> None:
    known = {spaces.load(name).op for name in spaces.names()}
    assert known == set(ops.names()) == set(MODELS) == set(EXAMPLES)


@pytest.mark.parametrize("name", ops.names())
def test_an_op_has_what_a_check_needs(name: str) -> None:
    kernel, text = EXAMPLES[name]
    case = Case.from_names(kernel, text, "sm90")
    op, workload = ops.of(case.workload), case.workload
    assert op is ops.load(name)
    made = op.tensors(workload, "cpu", seed=0)
    assert all(bool(each.isnan().all()) for each in made[op.OUTPUTS])
    assert not any(bool(each.isnan().any()) for each in made[: op.OUTPUTS.start])
    spec = op.launch_spec(case, case.default())
    assert isinstance(spec, LaunchSpec) and spec.scale > 0
    shape = op.ragged(workload, case.default())
    assert shape.op == name and Workload.parse(str(shape)) == shape
    for kind in op.kinds_of_finalists(workload):
        tensors, memories = op.inputs(shape, kind, "cpu")
        outputs = tensors[op.OUTPUTS]
        assert len(memories) == op.OUTPUTS.stop
        found = op.expected(shape, kind, tensors, torch.float64)
        assert not found.compare(*outputs).passed, "outputs that were not written are wrong"
        assert found.bytes > 0
