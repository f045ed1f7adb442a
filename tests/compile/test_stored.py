"""tunefa/compile/stored.py: compiled configs as data, for every kernel with binaries."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cuda_copies import case as cuda_case
from tests.support.sample_bundles import compiled as bundle
from tests.support.tree import TREE
from tunefa.compile import languages, stored
from tunefa.compile.contract import CompileError
from tunefa.compile.languages import cuda
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNELS = [each for each in map(kernels.load, kernels.names()) if each.space.vendor == "nvidia"]
WORKLOADS = {"fwd": "q128_d64", "matmul": "matmul_m128", "bwd": "bwd_q128_d64"}
WORKLOADS |= {"decode": "decode_k128_d64", "prefill": "q128_d64_page16"}


def workload_of(kernel: Kernel) -> Workload:
    text = "decode_h16_k128_mla" if "mla" in kernel.name else WORKLOADS[kernel.op]
    return Workload.parse(text + ("_page16_prefix" if "prefix" in kernel.name else ""))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_digests_are_of_plain_data(kernel: Kernel) -> None:
    """An address in the text of a key would make another digest in each process."""
    if kernel.is_library:
        assert stored.why_not(kernel.language) is not None
        return
    case = Case(kernel, workload_of(kernel), Target.named("sm90"))
    if case.why_not():
        pytest.skip(str(case.why_not()))
    language = languages.load(kernel.language)
    assert stored.why_not(kernel.language) is None
    key = language.binary_key(case, case.default(), True)
    assert eval(repr(key)) == key
    digest = stored.digest(case, case.default(), True)
    assert len(digest) == 32 and stored.digest(case, dict(case.default()), True) == digest
    sm80 = replace(case, target=Target.named("sm80"))
    assert stored.digest(sm80, case.default(), True) != digest


def read(name: str) -> bytes:
    image: bytes = bundle()[1][name]
    return image


def test_a_compiled_config_is_restored() -> None:
    contents, _ = bundle()
    for data in contents.binaries.values():
        language = kernels.load(data["kernel"]).language
        made = stored.restored(language, json.loads(json.dumps(data)), read)
        assert made.seconds == 0 and made.binary is not None
        assert made.resources.registers and made.resources.registers <= 255
        assert (made.preprocess is not None) is ("preprocess" in data["steps"])
        assert (made.postprocess is not None) is ("postprocess" in data["steps"])


def test_a_cuda_binary_is_restored_as_it_was() -> None:
    kernel = kernels.load("attention_fwd_cuda_sm90")
    case = cuda_case(kernel, workload=Workload.parse("q256_d64"))
    compiled = cuda.compile(case, case.default())
    data, images = stored.stored(case, compiled)
    binary = stored.restored("cuda", data, images.__getitem__).binary
    assert binary.made_by.startswith("NVRTC ")
    assert binary.cubin.image == compiled.binary.cubin.image
    own = replace(binary, cubin=compiled.binary.cubin, made_by="")
    assert own == compiled.binary


@pytest.mark.parametrize(
    "changes",
    [{"steps": {"binary": {}}}, {"steps": {"other": {}}}, {"resources": {"registers": -1}}],
)
def test_other_data_is_refused(changes: Mapping[str, Any]) -> None:
    (data, *_) = bundle()[0].binaries.values()
    with pytest.raises(CompileError, match="its stored binary cannot be read: "):
        stored.restored(kernels.load(data["kernel"]).language, {**data, **changes}, read)


def test_a_binary_that_is_not_there_is_named() -> None:
    def missing(name: str) -> bytes:
        raise TunefaError(f"{name} is not there")

    (data, *_) = bundle()[0].binaries.values()
    with pytest.raises(CompileError, match=r"binaries/.*\.cubin is not there"):
        stored.restored(kernels.load(data["kernel"]).language, data, missing)


def test_what_launches_need_is_imported_at_once() -> None:
    code = (
        "import sys; from tunefa.compile import stored; stored.warm_up('gluon'); "
        "own = set(sys.modules); "
        "from tunefa.compile.languages import gluon, triton; "
        "from tunefa.compile.launch import host_side, triton_abi, triton_launch, triton_stored; "
        "print(set(sys.modules) == own, 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr
