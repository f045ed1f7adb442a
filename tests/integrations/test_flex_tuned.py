"""The pass that gives FlexAttention the options of records, in Inductor on the CPU."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._guards import detect_fake_mode
from torch._inductor import compile_fx, config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.virtualized import V
from torch.nn.attention.flex_attention import flex_attention

from tests.support.flex_on_cpu import H200, calls, given, lowered, on_cuda
from tests.support.sample_records import measured
from tunefa.integrations import flex, flex_calls, flex_kernels, flex_pass, flex_tuned
from tunefa.integrations.flex_calls import FlexCall
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload
from tunefa.store.record import Record
from tunefa.store.results import Store, write


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors on the CPU pass for tensors on an H200."""
    monkeypatch.setattr(flex_tuned, "_target", lambda call: H200)
    yield
    flex.use_defaults()


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[FlexCall]:
    return calls(monkeypatch)


def record(call: FlexCall, place: int = 0, **changes: Any) -> Record:
    """A record of a call's functions, with the config at a place of their space."""
    workload = flex_calls.workload_of(call)
    assert workload is not None
    kernel = flex_kernels.kernel_of(call)
    chosen = Case(kernel, workload, H200).feasible().configs[place]
    made = measured(str(workload), kernel=kernel.name, config=chosen)
    return replace(made, **changes)


def stored(path: Path, *records: Record) -> Store:
    write(path / "own.yaml", records)
    return Store([path / "own.yaml"])


def test_the_options_are_those_of_the_functions(both: list[FlexCall], tmp_path: Path) -> None:
    made = flex_tuned.TunedOptions(stored(tmp_path, record(both[0], 7), record(both[1], 3)))
    for call, place in zip(both, (7, 3), strict=True):
        choice = made.choice(call)
        assert choice is not None and choice.how == "exact"
        assert choice.config == record(call, place).config
        chosen = call.with_options({"num_warps": 8})
        assert made.choice(chosen) is None, "a user's own options come first"


def test_other_functions_have_pytorch_s_own(
    both: list[FlexCall], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = flex_tuned.TunedOptions(stored(tmp_path, record(both[0])))
    q, k, v, _, block_mask = given()
    for call in calls(monkeypatch, q, k, v, lambda s, *_: 2 * s, block_mask):
        assert made.choice(call) is None
    assert made.choice(both[1]) is None


def test_the_nearest_lengths_count(both: list[FlexCall], tmp_path: Path) -> None:
    def at(length: int, place: int) -> Record:
        workload = Workload.parse(f"fwd_b2_h4_kv2_q{length}_d64_fp32_full")
        return record(both[0], place, workload=workload)

    made = flex_tuned.TunedOptions(stored(tmp_path, at(1024, 2), at(4096, 5), at(8192, 6)))
    choice = made.choice(both[0])
    assert choice is not None and choice.how == "nearest"
    assert choice.config == record(both[0], 2).config
    far = flex_tuned.TunedOptions(stored(tmp_path, at(8192, 6)))
    assert far.choice(both[0]) is None


def test_another_block_size_has_pytorch_s_own(both: list[FlexCall], tmp_path: Path) -> None:
    made = flex_tuned.TunedOptions(stored(tmp_path, record(both[0])))
    mask = (*both[0].block_mask[:-3], 64, 64, both[0].block_mask[-1])
    other = FlexCall("fwd", (*both[0].arguments[:4], mask, *both[0].arguments[5:]))
    assert made.choice(other) is None


def test_options_are_set_in_what_inductor_compiles(
    both: list[FlexCall], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through `torch.compile`, as a later process does: nothing but the store is shared."""
    own = record(both[0], 4)
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    count = flex.use_records()
    Store([tmp_path / "results"]).add(own)
    assert flex.use_records() == count + 1
    seen: list[dict[str, Any]] = []
    module: Any = __import__("torch._inductor.kernel.flex.flex_attention", fromlist=["lower_cpu"])
    inner = module.lower_cpu

    def lower_cpu(*arguments: Any) -> Any:
        seen.append(dict(arguments[6]))
        return inner(*arguments)

    monkeypatch.setattr(module, "lower_cpu", lower_cpu)
    q, k, v, score_mod, block_mask = given()
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    torch.compiler.reset()
    with config.patch(force_disable_caches=True):
        out = compiled(q, k, v, score_mod, block_mask, enable_gqa=True)
    ((options),) = seen
    assert {name: options[name] for name in flex_kernels.options(own.config)} == (
        flex_kernels.options(own.config)
    )
    (op,) = flex.last_choices()
    assert op == "fwd" and flex.last_choices()["fwd"].why.startswith("exact: measured on")
    right = flex_attention(q, k, v, score_mod, block_mask, enable_gqa=True)
    torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-4)
    torch.compiler.reset()


def test_graphs_are_known_again_after_inductor_s_passes(
    both: list[FlexCall], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions are hashed before Inductor's passes in a search, and after some of them here:
    forward and backward."""
    from torch.nn.attention import flex_attention as interface

    from tests.support.flex_on_cpu import eager

    monkeypatch.setattr(interface, "_validate_device", lambda *_: None)
    flex_tuned.use(stored(tmp_path, record(both[0], 7), record(both[1], 3)))
    found: list[FlexCall] = []

    def inner(module: Any, *_: Any, **__: Any) -> Any:
        mode: Any = detect_fake_mode([node.meta.get("val") for node in module.graph.nodes])
        with V.set_fake_mode(mode):
            compile_fx._recursive_post_grad_passes(module)
        found.extend(call for _, call in flex_calls.calls_in(module.graph))

        def run(tensors: Any) -> Any:
            return torch.fx.Interpreter(module).run(*tensors)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    backend = functools.partial(compile_fx.compile_fx, inner_compile=inner)
    q, k, v, score_mod, block_mask = given()
    torch.compiler.reset()
    compiled: Any = torch.compile(flex_attention, backend=backend, dynamic=False)
    own = [each.requires_grad_() for each in (q, k, v)]
    out = compiled(*own, score_mod, block_mask, enable_gqa=True)
    torch.autograd.grad(out.sum(), own)
    torch.compiler.reset()
    for call, place in zip(found, (7, 3), strict=True):
        options = flex_kernels.options(record(both[call.op == "bwd"], place).config)
        assert {name: call.options[name] for name in options} == options
    assert eager(both[0])[0].shape == out.shape


def test_what_is_chosen_reaches_pytorch_s_template(both: list[FlexCall], tmp_path: Path) -> None:
    made = flex_tuned.TunedOptions(stored(tmp_path, record(both[0], 7), record(both[1], 3)))
    for call in both:
        choice = made.choice(call)
        assert choice is not None
        options = flex_kernels.options(choice.config)
        given = lowered(on_cuda(call), options)
        own = {name: value for name, value in options.items() if name != "USE_TMA"}
        assert {name: given[name] for name in own} == own


class Other(CustomGraphPass):
    """A user's own pass."""

    def __init__(self, name: str | None = "other") -> None:
        self.name, self.seen = name, 0

    def __call__(self, graph: Any) -> None:
        self.seen += 1

    def uuid(self) -> Any:
        return self.name


def test_a_user_s_own_pass_stays(both: list[FlexCall], tmp_path: Path) -> None:
    own, store = Other(), stored(tmp_path, record(both[0]))
    with config.patch(post_grad_custom_pre_pass=own):
        assert flex_tuned.use(store) == flex_tuned.use(store) == 1
        made: Any = config.post_grad_custom_pre_pass
        made(torch.fx.Graph())
        assert own.seen == 1 and made.earlier is own
        assert made.uuid() != flex_tuned.TunedOptions(store).uuid()
        assert flex_tuned.TunedOptions(store, Other(None)).uuid() is None
        flex_pass.end()
        assert config.post_grad_custom_pre_pass is own
        flex_pass.end()


def test_caches_know_the_records(both: list[FlexCall], tmp_path: Path) -> None:
    keys = [
        flex_tuned.TunedOptions(stored(tmp_path, *records)).uuid()
        for records in ([record(both[0])], [record(both[0], 1)], [record(both[0])], [])
    ]
    assert keys[0] == keys[2] and len(set(keys)) == 3


def test_other_threads_are_left_alone(both: list[FlexCall], tmp_path: Path) -> None:
    flex_tuned.use(stored(tmp_path, record(both[0])))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(config.post_grad_custom_pre_pass))
    thread.start()
    thread.join()
    assert found == [None]


def test_other_records_are_no_options_of_functions(both: list[FlexCall], tmp_path: Path) -> None:
    """And those of functions are not tried for others."""
    store = stored(tmp_path, measured(), record(both[0]))
    assert flex_tuned.use(store) == 1
    assert [each.functions for each in flex.RecordedChoices(store).records] == [""]
