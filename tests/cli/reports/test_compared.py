"""tunefa/cli/reports/compared.py: for which chips the model was compared with a device."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run
from tests.support.canned_search import CONFIG, SMALL, Searching
from tests.support.sample_records import predicted
from tunefa.cli.reports import compared
from tunefa.costmodel.estimate import compared_with, devices_compared
from tunefa.spec import arch_catalog as archs
from tunefa.store import results as store

NEVER = "The model's times were never compared with measurements on an sm80 device: its figures"


@pytest.mark.parametrize("name", archs.names("nvidia"))
def test_every_gpu_says_whether_it_was_compared(name: str) -> None:
    said, found = compared.sentence(archs.load(name)), compared_with(name)
    assert ("were never compared" in said) == (not found)
    assert all(each.kernel in said for each in found)
    for device in devices_compared(name):
        assert device in said and archs.load(name).device(device).name == device


def test_attention_over_a_cache_says_what_its_constants_rest_on() -> None:
    said = compared.sentence(archs.load("sm90"), "decode")
    assert "were set on measurements on an H200" in said and "were never" not in said
    assert "were never compared" in compared.sentence(archs.load("sm80"), "decode")


def test_gradients_say_what_they_were_compared_with() -> None:
    said = compared.sentence(archs.load("sm90"), "bwd")
    assert "of a few workloads on an H200" in said and "were never" not in said
    assert "were never compared" in compared.sentence(archs.load("sm80"), "bwd")


def test_a_predicted_search_ends_with_it(run: Run, canned: Searching) -> None:
    canned(record=predicted(config=CONFIG))
    out = run(*SMALL).stdout
    said = compared.sentence(archs.load("sm90"))
    assert f"{said}  Next: " in "  ".join(" ".join(part.split()) for part in out.split("\n\n"))
    data = json.loads(run(*SMALL, "--json").stdout)["compared_with"]
    assert [each["kernel"] for each in data] == [each.kernel for each in compared_with("sm90")]
    assert all(0 < each["comparison_error"] <= each["error"] < 1 for each in data)


@pytest.mark.parametrize("command", ["show", "explain --no-compile --seqlen 2048", "doctor"])
def test_other_commands_say_it_too(run: Run, command: str) -> None:
    store.default_store().add(predicted(arch="sm80"))
    out = " ".join(run(*command.split(), "--arch", "sm80").stdout.split())
    assert NEVER in out


def test_an_npu_has_a_latency_model(run: Run) -> None:
    assert "fitted to public measurements of an Ascend 910B3" in compared.sentence(
        archs.load("ascend910b3")
    )
