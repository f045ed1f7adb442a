"""tunefa/cli/sweep_workloads.py: the workloads of a sweep."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tunefa.cli.sweep_workloads import chosen, merged, sizes
from tunefa.errors import TunefaError
from tunefa.spec.workload import Workload

NONE: dict[str, str | None] = {"batch": None, "seqlen": None, "ops": None}


def grid(model: str = "llama3-8b", **lists: str) -> dict[Workload, float]:
    return chosen(None, [model], [], {**NONE, **lists})


def test_a_grid_of_a_model() -> None:
    found = grid(batch="1,8", seqlen="1k..4k", ops="fwd,bwd,decode")
    assert len(found) == 2 * 3 * 3 and set(found.values()) == {1.0}
    assert {each.op for each in found} == {"fwd", "bwd", "decode"}
    decode = Workload.parse("decode_b8_h32_kv8_k4096_d128")
    assert decode in found and Workload.parse("b8_h32_kv8_q4096_d128") in found


def test_the_kinds_of_layers_count_by_their_number() -> None:
    found = grid("gemma2-9b", seqlen="8k")
    assert len(found) == 2 and sum(found.values()) == pytest.approx(1.0)
    short = grid("gemma2-9b", seqlen="512")  # the window hides nothing: one workload
    assert list(short.values()) == [pytest.approx(1.0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1k,4k,32k", [1024, 4096, 32768]), ("1k..8k", [1024, 2048, 4096, 8192]),
     ("1000..4k,1000", [1000, 2000, 4000]), ("7", [7])],
)  # fmt: skip
def test_lists_of_sizes(text: str, expected: list[int]) -> None:
    assert sizes(text, "--seqlen") == expected


@pytest.mark.parametrize("text", ["", "1k,", "8k..1k", "1k..", "x", "-1", "0"])
def test_what_is_no_list_of_sizes(text: str) -> None:
    with pytest.raises((click.UsageError, TunefaError)):
        sizes(text, "--seqlen")


def test_a_file_with_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "workloads:\n- {workload: q512, weight: 2}\n- {workload: bwd_q512, weight: 0}\n"
    )
    assert chosen(path, [], [], NONE) == {Workload.parse("q512"): 2.0}
    assert "1 with a weight of 0 are left out" in capsys.readouterr().err
    path.write_text("workloads:\n- {workload: q512, weight: 0}\n")
    with pytest.raises(TunefaError, match="every weight is 0"):
        chosen(path, [], [], NONE)


def test_workloads_as_words() -> None:
    assert chosen(None, [], ["q512", "bwd_q512"], NONE) == {
        Workload.parse("q512"): 1.0, Workload.parse("bwd_q512"): 1.0,
    }  # fmt: skip


def test_one_way_only(tmp_path: Path) -> None:
    for path, models, texts in (
        (None, [], []),
        (tmp_path, ["llama3-8b"], []),
        (None, ["a"], ["q5"]),
    ):
        with pytest.raises(click.UsageError, match="in one way"):
            chosen(path, models, texts, NONE)
    with pytest.raises(click.UsageError, match="--batch makes workloads of a model"):
        chosen(tmp_path, [], [], {**NONE, "batch": "1"})
    with pytest.raises(click.UsageError, match="--model needs lengths"):
        grid(batch="8")
    with pytest.raises(TunefaError, match="unknown op 'forward'"):
        grid(seqlen="1k", ops="forward")


def test_workloads_that_share_a_config_are_one() -> None:
    usual, small = (Workload.parse(f"decode_b{n}_h32_kv8_k8192") for n in (16, 1))
    few, dense = Workload.parse("b1_q1_k4096"), Workload.parse("q4096")
    found, others = merged({small: 1.0, usual: 2.0, dense: 3.0, few: 4.0}, 132)
    assert found == {usual: 7.0, dense: 3.0}
    assert others == {usual: [small, few]}
    assert merged({few: 1.0}, 15) == ({few: 1.0}, {}), "it leaves no SM idle"


def test_layers_with_a_window_keep_it_over_a_short_cache() -> None:
    found, others = merged(grid("gemma2-9b", seqlen="2k,8k", ops="decode"), 0)
    usual = Workload.parse("decode_b16_h16_kv8_k8192_d256_softcap")
    window = Workload.parse("decode_b16_h16_kv8_k8192_d256_softcap_w4096")
    assert found == {usual: pytest.approx(1.0), window: pytest.approx(1.0)}
    assert others.keys() == {usual}, "a search of theirs is named as it is"
