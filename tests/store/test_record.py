from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from tests.support.sample_records import dated, measured, predicted, records
from tunefa.errors import TunefaError
from tunefa.spec.trial import MODES
from tunefa.store.record import Record


class Level(enum.IntEnum):
    TWO = 2


class Number(float):
    """Stands in for numpy.float64, which is a float too."""


@settings(deadline=None)
@given(records())
def test_from_dict_reads_what_to_dict_wrote(record: Record) -> None:
    assert Record.from_dict(record.to_dict()) == record


def test_to_dict_is_plain_data_in_the_order_of_the_fields() -> None:
    data = measured().to_dict()
    assert list(data)[:6] == ["kernel", "arch", "device", "workload", "config", "objective"]
    assert data["workload"] == "fwd_b1_h32_kv8_q4096_k4096_d128_bf16_causal"
    assert next(iter(data["config"])) == "BLOCK_M"
    assert "certificate" not in data
    assert "device" not in predicted().to_dict()


def test_values_become_builtin_types_and_are_not_shared() -> None:
    config: dict[str, Any] = {"num_warps": Level.TWO, "scale": Number(0.5)}
    record = measured(config=config, certificate={"gaps": (1, 2)}, median_us=Number(3.0))
    config["num_warps"] = 64
    assert record.config == {"num_warps": 2, "scale": 0.5}
    assert [type(value) for value in record.config.values()] == [int, float]
    assert record.certificate == {"gaps": [1, 2]}
    assert type(record.median_us) is float


def test_rank_puts_measured_then_eager_then_step_then_fast_then_new_first() -> None:
    best = measured(provenance=dated("2025-06-02T00:00:00Z"))
    older = measured(provenance=dated("2025-06-01T23:59:00-00:00"))
    slower = measured(median_us=500.0)
    guess, eager = predicted(median_us=1.0), measured(median_us=600.0, mode="eager")
    step = measured(median_us=550.0, mode="step")
    assert sorted([guess, slower, older, step, eager, best], key=lambda r: r.rank) == [
        eager,
        step,
        best,
        older,
        slower,
        guess,
    ]


def test_each_mode_has_a_rank() -> None:
    assert len({measured(mode=mode).rank for mode in MODES}) == len(MODES)


def test_a_date_without_an_offset_is_utc() -> None:
    local, utc = dated("2025-06-01T12:00:00"), dated("2025-06-01T14:00:00+02:00")
    assert measured(provenance=local).rank == measured(provenance=utc).rank


def test_summary_says_where_and_how_fast() -> None:
    assert measured().summary == (
        "attention_fwd_triton on NVIDIA H200 (sm90), measured, 412.5 us, 533.2 TFLOP/s"
    )
    assert "on sm90, no device, predicted" in predicted().summary


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kernel": "../../etc/passwd"}, "kernel '../../etc/passwd'"),
        ({"arch": ".."}, "arch '..'"),
        ({"arch": "sm90\nimport os"}, "one word"),
        ({"device": None}, "a measured record names its device"),
        ({"objective": "predicted"}, "another has none"),
        ({"objective": "guessed"}, "objective 'guessed'"),
        ({"device": "H200\nimport os"}, "printable"),
        ({"device": " "}, "printable"),
        ({"median_us": 0.0}, "median_us 0.0"),
        ({"tflops": float("nan")}, "tflops nan"),
        ({"config": {"BLOCK_M": [128]}}, "config.BLOCK_M must be a number"),
        ({"config": {1: 128}}, "config of a record must have strings as keys"),
        ({"config": 3}, "config of a record must be a mapping"),
        ({"certificate": {"a": {"b": [1, {2}]}}}, "certificate.a.b[1] of a record is a set"),
        ({"provenance": {"date": "2025-01-31"}}, "provenance.source_hash"),
        ({"provenance": dated("yesterday")}, "provenance.date 'yesterday' is not an ISO-8601"),
        ({"provenance": dated("")}, "provenance.date ''"),
        ({"provenance": {"source_hash": "0"}}, "provenance.date None"),
        ({"provenance": dated("2025-01-31", error=float("inf"))}, "provenance.error of a record"),
    ],
)
def test_refuses_what_is_no_result(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TunefaError) as error:
        measured(**changes)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data.pop("kernel"), "best.yaml: key 'kernel' is missing"),
        (lambda data: data.update(medain_us=1.0), "'medain_us': did you mean median_us?"),
        (lambda data: data.update(median_us="fast"), "'median_us' must be"),
        (lambda data: data.update(config=[]), "'config' must be a mapping"),
        (lambda data: data.update(workload="fwd_h32_kv5_q64"), "best.yaml: "),
        (lambda data: data.update(workload="fwd_q64_z9"), "z9"),
        (lambda data: data.update(arch="a/b"), "best.yaml: arch 'a/b'"),
        (lambda data: data["resources"].update(regs=1), "'regs'"),
        (lambda data: data["resources"].update(registers=1.5), "'registers' must be"),
    ],
)
def test_from_dict_names_the_place_and_the_field(
    spoil: Callable[[dict[str, Any]], Any], says: str
) -> None:
    data = measured().to_dict()
    spoil(data)
    with pytest.raises(TunefaError) as error:
        Record.from_dict(data, "best.yaml")
    assert says in str(error.value)
    assert str(error.value).startswith("best.yaml")


def test_a_record_from_before_there_were_modes_was_timed_as_in_a_graph() -> None:
    data = measured(mode="eager").to_dict()
    assert Record.from_dict(data).mode == data.pop("mode") == "eager"
    assert Record.from_dict(data).mode == "graph"
    assert predicted().mode is None and "mode" not in predicted().to_dict()


@pytest.mark.parametrize("record", [measured, predicted])
def test_a_mode_that_cannot_be(record: Callable[..., Record]) -> None:
    with pytest.raises(TunefaError, match="mode 'lazy' of a "):
        record(mode="lazy")
    with pytest.raises(TunefaError, match="mode 'eager' of a predicted record"):
        predicted(mode="eager")
