"""Languages are found by file name, and say what they lack."""

from __future__ import annotations

import pytest

from tunefa.compile import languages
from tunefa.compile.languages import triton as language
from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload


def test_languages_are_found_by_file_name() -> None:
    assert "triton" in languages.names()
    assert languages.load("triton") is language
    with pytest.raises(TunefaError, match="unknown language 'tritom': did you mean triton"):
        languages.load("tritom")


@pytest.mark.parametrize(
    ("name", "only_host"),
    [
        ("attention_fwd_triton", ("L2_SECTION_HEADS",)),
        ("attention_fwd_cuda_sm90", ("L2_SECTION_MB",)),
        ("attention_fwd_gluon_sm90", ("L2_SECTION_MB",)),
        ("attention_fwd_cuda_sm80", ()),
    ],
)
def test_parameters_that_the_compiler_never_sees(name: str, only_host: tuple[str, ...]) -> None:
    case = Case(kernels.load(name), Workload.parse("q1024_d64"), Target.named("sm90"))
    assert languages.host_parameters(case, case.default()) == only_host


def test_a_parameter_whose_value_breaks_the_host_side_is_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(kernels.load("attention_fwd_triton"), Workload.parse("q64"), Target.named("sm90"))

    def key(case: Case, config: Config, aligned: bool) -> int:
        if config["BLOCK_M"] == 32:
            raise KeyError("BLOCK_Q")
        return 1

    monkeypatch.setattr(language, "binary_key", key)
    found = languages.host_parameters(case, case.default())
    assert "BLOCK_N" in found and "BLOCK_M" not in found
