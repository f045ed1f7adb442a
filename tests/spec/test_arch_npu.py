"""tunefa/spec/arch.py over the files of Huawei's chips: memories of a core, cores, peaks."""

from __future__ import annotations

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs

KIB = 1024
A2, A5 = (192, 512, 64, 64, 128), (248, 512, 64, 64, 256)

# KiB of UB, L1, L0A, L0B and L0C; cubes and vector cores; dense fp16 TFLOP/s.
SPECIFICATIONS = {
    "ascend910b1": (A2, 24, 48, 363.7),
    "ascend910b2": (A2, 24, 48, 353.9),
    "ascend910b3": (A2, 20, 40, 294.9),
    "ascend910b4": (A2, 20, 40, 245.8),
    "ascend910_93": (A2, 24, 48, 353.9),
    "ascend950": (A5, 32, 64, 432.0),
    "ascend310p": ((256, 1024, 64, 64, 256), 8, 15, 70.0),
}


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_memories_cores_and_peaks(name: str) -> None:
    found = archs.npu(archs.load(name))
    memories, cubes, vectors, tflops = SPECIFICATIONS[name]
    sizes = (found.ub_bytes, found.l1_bytes, found.l0a_bytes, found.l0b_bytes, found.l0c_bytes)
    assert sizes == tuple(size * KIB for size in memories)
    assert (found.device().sms, found.device().vector_cores) == (cubes, vectors)
    assert found.device().tensor_flops_per_s("fp16") == pytest.approx(tflops * 1e12, rel=0.002)


def test_there_is_a_test_for_every_file() -> None:
    assert set(archs.names("huawei")) == SPECIFICATIONS.keys()


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_sources_are_public_documents_or_say_that_they_are_estimates(name: str) -> None:
    for key, text in archs.load(name).sources.items():
        assert text.startswith(("Estimate: ", "Huawei, ", "torchtitan-npu, ")), key


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_a_name_finds_its_arch_and_device(name: str) -> None:
    found = archs.npu(archs.load(name))
    assert found.compiler_target == found.device().name
    for device in found.devices:
        for text in (device.name, *device.match):
            assert archs.find(text) == (found, device)


def test_names_for_expressions() -> None:
    env = archs.load("ascend910b3").env()
    assert (env["arch"], env["cores"], env["ub_bytes"]) == ("ascend910b3", 20, 196608)
    assert "registers_per_sm" not in env
    assert all(archs.load(each).env().keys() == env.keys() for each in SPECIFICATIONS)


def test_what_is_no_gpu_and_what_is_no_npu_is_said() -> None:
    with pytest.raises(TunefaError, match=r"ascend910b3 is not an NVIDIA GPU: name one of sm80, "):
        archs.gpu(archs.load("ascend910b3"))
    with pytest.raises(TunefaError, match=r"sm90 is not an NPU: name one of ascend950, "):
        archs.npu(archs.load("sm90"))
