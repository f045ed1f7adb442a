"""The content of a report, for tests of its page. No figure is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support import sample_comparison
from tests.support.sample_journals import written
from tests.support.sample_records import dated, measured, predicted
from tunefa.experiments.document import MEASURED, Document
from tunefa.report.content import Content, FailureCount
from tunefa.report.search import Search, of_trials
from tunefa.spec.trial import Trial
from tunefa.spec.workload import Workload

HOSTILE = "<script>document.title='x'</script>\"'><img src=x onerror=alert(1)> $\\frac{$ --> {{7}}"
"""A text that would run in a page, or fail as a formula, if anything took it for one."""
LONG = "long" * 100
"""A word that is wider than any page."""


def difference(estimate: float) -> dict[str, float]:
    """A difference in a certificate, with its interval."""
    return {"estimate": estimate, "low": estimate - 0.01, "high": estimate + 0.02}


CERTIFICATE = {
    "decision": "the fastest of 6",
    "gain_over_default": difference(0.1),
    "noise_floor": 0.004,
    "rounds": 18,
    "runner_up": {"config": {}, "slower_by": difference(0.02)},
    "kernels": {"slower_by": {"near": difference(0.05), "far": difference(0.9)}},
}


def trial(block_m: int, block_n: int, *samples_us: float, stages: int = 2) -> Trial:
    """A trial that is right, or without times one that crashed."""
    config = {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_stages": stages}
    if samples_us:
        return Trial(config, "ok", samples_us=samples_us)
    return Trial(config, "crashed", "an illegal memory access")


TRIALS = (
    trial(64, 64, 500.0),
    trial(64, 128, 450.0),
    trial(128, 64, 470.0),
    trial(128, 128),
    trial(64, 128, 430.0, stages=3),
    trial(256, 64, 900.0),
    trial(64, 64, 410.0),  # the race of a config that was tried
)
"""The trials of a search of one kernel."""


def search(**changes: str) -> Search:
    """A search with those trials, a second after each other."""
    timed = [("a_kernel", each, float(place)) for place, each in enumerate(TRIALS)]
    made = Search(
        "20260131T120000-sm90.jsonl",
        "2026-01-31T12:00:00+00:00",
        Workload.parse("q4096"),
        "sm90",
        "NVIDIA H200",
        "measured",
        of_trials(timed),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def scaling(device: str = "NVIDIA H200") -> Document:
    """The results of an experiment."""
    row = {
        "workload": "b4_h8_q512_d64_fp16_causal",
        "tunefa_us": 10.0,
        "operators_us": 50.0,
        "sdpa_us": 12.5,
    }
    return Document("scaling", MEASURED, "sm90", device, [row], {"torch": "2.11"})


def content() -> Content:
    """A content with something in each section."""
    return Content(
        records=[
            measured(certificate=CERTIFICATE),
            measured("b64_q1_k8192", median_us=300.0),
            predicted("q2048", provenance=dated("2026-01-31T12:00:00Z", predicted_sd=0.1)),
        ],
        searches=[search()],
        failures=[
            FailureCount("a_kernel", "sm90", "NVIDIA H200", "crashed", "an illegal access", 3)
        ],
        experiments=[sample_comparison.document(), scaling()],
        remarks={"journals": ["A journal was left out."]},
        made="2026-01-31",
        version="0.1.0",
    )


def hostile() -> Content:
    """The same with hostile and with very long texts wherever a file may have any text."""
    made = content()
    record = measured(
        device=HOSTILE,
        certificate={**CERTIFICATE, "decision": HOSTILE},
        config={HOSTILE: HOSTILE, LONG: 1},
        provenance=dated("2026-01-31", tunefa=HOSTILE, compiler=LONG),
    )
    kernels = [replace(each, kernel=HOSTILE) for each in search().kernels]
    odd = replace(search(device=LONG, objective=HOSTILE, journal=LONG), kernels=kernels)
    compared = sample_comparison.document()
    compared.rows[0]["scores"][HOSTILE] = compared.rows[0]["scores"]["tunefa"]
    return replace(
        made,
        records=[*made.records, record],
        searches=[*made.searches, odd],
        failures=[
            FailureCount(HOSTILE, "sm90", HOSTILE, HOSTILE, HOSTILE, 1),
            FailureCount(LONG, "sm90", LONG, LONG, LONG, 1),
        ],
        experiments=[compared, scaling(HOSTILE), replace(scaling(LONG), made_with={LONG: HOSTILE})],
        remarks={"store": [HOSTILE, LONG], "journals": [HOSTILE], "experiments": [HOSTILE]},
        made=HOSTILE,
        version=HOSTILE,
    )


def journal(stamp: str, workload: str = "q4096") -> Path:
    """The journal of a search with those trials."""
    return written(stamp, *TRIALS, workload=str(Workload.parse(workload)))
