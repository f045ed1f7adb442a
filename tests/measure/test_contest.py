"""tunefa/measure/contest.py: real contests between real calls, on the CPU."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tunefa.errors import TunefaError
from tunefa.measure import contest, peers
from tunefa.measure.contest import Contest, Score, Settings, Step
from tunefa.measure.peer import Call, Tensors, Unserved
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("b2_h4_kv2_q96_d32_bf16_causal")
ON_THE_HOST = Settings("eager", rounds=4, device="cpu")
SCORE = Score((10.0, 20.0, 12.0, 11.0, 13.0), 2e-3, 4e-3, True)


def makers(*names: str) -> dict[str, contest.Maker]:
    return {name: peers.load(name).make for name in names}


def test_a_contest_between_peers() -> None:
    steps: list[Step] = []
    found = contest.run(WORKLOAD, makers("sdpa", "math", "operators"), ON_THE_HOST, steps.append)
    assert list(found.scores) == ["sdpa", "math", "operators"] and not found.left_out
    for score in found.scores.values():
        assert len(score.samples_us) == 4 and min(score.samples_us) > 0
        assert 0 < score.error < 8e-3 and score.error < score.worst_row < 0.1
        assert not score.captured
    assert [(step.stage, step.contestant, step.done) for step in steps] == [
        *(("check", "sdpa", 0), ("check", "math", 1), ("check", "operators", 2)),
        *(("time", "", place) for place in range(3, 7)),
    ]
    assert {step.total for step in steps} == {7}


def test_times_are_those_of_the_calls() -> None:
    def waits(seconds: float) -> contest.Maker:
        def make(workload: Workload, tensors: Tensors) -> Call:
            out = peers.load("sdpa").make(workload, tensors)()

            def call() -> torch.Tensor:
                time.sleep(seconds)
                return out  # type: ignore[no-any-return]

            return call

        return make

    found = contest.run(WORKLOAD, {"quick": waits(0.001), "slow": waits(0.02)}, ON_THE_HOST)
    quick, slow = found.scores["quick"].median_us, found.scores["slow"].median_us
    assert 1_000 < quick < slow
    assert 20_000 < slow < 60_000


def test_all_have_the_same_tensors_which_the_seed_makes() -> None:
    seen: list[torch.Tensor] = []

    def looks(workload: Workload, tensors: Tensors) -> Call:
        seen.append(tensors[0].clone())
        return peers.load("sdpa").make(workload, tensors)

    for seed in (0, 0, 1):
        contest.run(WORKLOAD, {"a": looks, "b": looks}, replace(ON_THE_HOST, rounds=1, seed=seed))
    assert all(torch.equal(seen[0], other) for other in seen[1:4])
    assert not torch.equal(seen[0], seen[4]) and torch.equal(seen[4], seen[5])


def wrong(workload: Workload, tensors: Tensors) -> Call:
    q, k, v = tensors[:3]
    return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)  # without its mask


def raises(workload: Workload, tensors: Tensors) -> Call:
    raise AssertionError("head_dim\nand more")


def raises_when_called(workload: Workload, tensors: Tensors) -> Call:
    return lambda: tensors[0] @ tensors[0]


def leaves(workload: Workload, tensors: Tensors) -> Call:
    sys.exit("a library gives up")


def says_nothing(workload: Workload, tensors: Tensors) -> Call:
    raise MemoryError


def does_not_serve(workload: Workload, tensors: Tensors) -> Call:
    raise Unserved("it has no bf16")


def returns_another_shape(workload: Workload, tensors: Tensors) -> Call:
    return lambda: tensors[0].transpose(1, 2)


@pytest.mark.parametrize(
    ("maker", "why"),
    [
        (wrong, "its relative error is "),
        (raises, "head_dim"),
        (raises_when_called, "Expected size"),
        (leaves, "a library gives up"),
        (says_nothing, "MemoryError"),
        (does_not_serve, "it has no bf16"),
        (returns_another_shape, "its output has the shape (2, 96, 4, 32), not (2, 4, 96, 32)"),
    ],
)
def test_a_contestant_that_fails_loses_only_its_row(maker: contest.Maker, why: str) -> None:
    found = contest.run(WORKLOAD, {"bad": maker, **makers("sdpa")}, ON_THE_HOST)
    assert list(found.scores) == ["sdpa"]
    assert found.left_out.keys() == {"bad"}
    assert found.left_out["bad"].startswith(why) and "\n" not in found.left_out["bad"]


def test_where_all_fail_there_are_no_times() -> None:
    found = contest.run(WORKLOAD, {"bad": raises}, ON_THE_HOST)
    assert not found.scores and found.left_out == {"bad": "head_dim"}


@pytest.mark.parametrize(
    "text", ["b2_h4_q64_d32_e4m3_causal", "b3_h4_q64_d32_varlen", "h4_q64_d32_softcap"]
)
def test_kinds_of_workloads(text: str) -> None:
    from tunefa.experiments import ours

    found = contest.run(Workload.parse(text), {"tunefa": ours.maker()}, ON_THE_HOST)
    assert found.scores.keys() == {"tunefa"}, found.left_out


def test_packed_sequences_in_e4m3_keep_their_lengths() -> None:
    seen: list[int] = []

    def make(workload: Workload, tensors: Tensors) -> Call:
        seen.extend(tensors[3].tolist())
        raise Unserved("it looks at the lengths only")

    contest.run(Workload.parse("b3_h4_q64_d32_e4m3_varlen"), {"looks": make}, ON_THE_HOST)
    assert len(seen) == 4 and max(seen) > 64


def test_a_contest_is_read_as_it_was_written() -> None:
    found = contest.run(WORKLOAD, {**makers("sdpa", "operators"), "bad": raises}, ON_THE_HOST)
    data = json.loads(json.dumps(found.to_data()))
    assert Contest.from_data(data) == found
    data["scores"]["sdpa"]["samples_us"] = [1.0, 2.0, 9.0]
    changed = Contest.from_data(data)
    assert changed.scores["sdpa"].median_us == 2.0
    assert changed.scores["operators"].median_us == statistics.median(
        found.scores["operators"].samples_us
    )


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("scores",), 3, "missing or wrong fields"),
        (("workload",), "q0", "workload 'q0'"),
        (("scores", "tunefa", "samples_us"), [], "the samples of tunefa"),
        (("scores", "tunefa", "samples_us"), [-1.0], "the samples of tunefa"),
        (("scores", "tunefa", "samples_us"), ["long"], "missing or wrong fields"),
        (("scores", "tunefa"), {}, "missing or wrong fields"),
    ],
)
def test_a_damaged_contest_is_a_users_mistake(
    path: tuple[str, ...], value: object, says: str
) -> None:
    data = Contest(WORKLOAD, "graph", {"tunefa": SCORE}).to_data()
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(TunefaError, match=says):
        Contest.from_data(data)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"mode": "fast"}, "mode 'fast' is none of eager, graph, step"),
        ({"rounds": 0}, "rounds is 0: give at least 1"),
        ({"device": "cpu"}, "mode graph needs a CUDA device"),
    ],
)
def test_settings_that_fit_nothing(words: dict[str, object], says: str) -> None:
    with pytest.raises(TunefaError, match=says):
        Settings(**words)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_said() -> None:
    with pytest.raises(TunefaError, match="this machine has no GPU"):
        contest.run(WORKLOAD, makers("sdpa"), Settings())
