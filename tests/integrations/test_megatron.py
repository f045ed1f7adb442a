"""tunefa as core_attention of Megatron-core, beside fp64 and in one of its layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.exact_attention import close, exact

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the packages that Megatron-core would like to have
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.spec_utils import ModuleSpec, build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

    from tunefa.integrations import megatron as integration

HEADS, HEADS_KV, HEAD_DIM = 4, 2, 16
Mask = AttnMaskType


@pytest.fixture(autouse=True, scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Megatron-core asks for groups of processes, of which there is one here."""
    place = (tmp_path_factory.mktemp("ranks") / "place").as_uri()
    torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def config_of(**more: Any) -> Any:
    sizes = {
        "num_layers": 2,
        "hidden_size": HEADS * HEAD_DIM,
        "num_attention_heads": HEADS,
        "num_query_groups": HEADS_KV,
        "use_cpu_initialization": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }
    return TransformerConfig(**{**sizes, **more})


def built(kind: Any = Mask.causal, layer: int = 1, **config: Any) -> Any:
    named = {"attn_mask_type": kind, "attention_type": "self", "cp_comm_type": None}
    return integration.CoreAttention(config_of(**config), layer, **named)


def inputs(rows: int = 7, keys: int = 7, batch: int = 2) -> list[Tensor]:
    shapes = (rows, batch, HEADS), (keys, batch, HEADS_KV), (keys, batch, HEADS_KV)
    return [torch.randn(*shape, HEAD_DIM, requires_grad=True) for shape in shapes]


def right_of(given: list[Tensor], **mask: Any) -> Tensor:
    out, _ = exact(*(x.transpose(0, 1) for x in given), **mask)
    return out.transpose(0, 1).flatten(2)


CASES: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (Mask.causal, {}, {"causal": True}),
    (Mask.no_mask, {}, {}),
    (Mask.causal, {"window_size": (3, 0)}, {"causal": True, "sides": (3, 0)}),
    (Mask.no_mask, {"window_size": (3, 2)}, {"sides": (3, 2)}),
    (Mask.causal, {"softmax_scale": 0.3}, {"causal": True}),
    (
        Mask.causal,
        {"apply_query_key_layer_scaling": True, "attention_softmax_in_fp32": True},
        {"causal": True},
    ),
]


@pytest.mark.parametrize(("kind", "config", "mask"), CASES, ids=str)
def test_it_is_attention(kind: Any, config: dict[str, Any], mask: dict[str, Any]) -> None:
    given = inputs()
    out = built(kind, layer=2, **config)(*given, None)
    right = right_of(given, **mask)
    close(out, right)
    grads = torch.autograd.grad(out.cos().sum(), given)
    close(grads, torch.autograd.grad(right.cos().sum(), given))


def test_the_scale_and_the_mask_of_a_call() -> None:
    named = {"attn_mask_type": Mask.causal, "attention_type": "self", "softmax_scale": 0.3}
    core, given = integration.CoreAttention(config_of(), 1, **named, v_channels=HEAD_DIM), inputs()
    close(core(*given, None), right_of(given, causal=True, scale=0.3))
    found = core(*given, None, attn_mask_type=Mask.no_mask)
    close(found, right_of(given, scale=0.3))
    step = inputs(rows=1)
    close(core(*step, None), right_of(step, scale=0.3))


def test_windows_may_leave_layers_out() -> None:
    given = inputs()
    config: dict[str, Any] = {"window_size": (2, 0), "window_attn_skip_freq": 2}
    close(built(layer=2, **config)(*given, None), right_of(given, causal=True))
    windowed = right_of(given, causal=True, sides=(2, 0))
    close(built(layer=1, **config)(*given, None), windowed)


@pytest.mark.parametrize("kind", ["off-by-one", "learnable"])
def test_softmax_offsets_are_sinks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    core, given = built(softmax_type=kind), inputs()
    offset = core.softmax_offset
    assert isinstance(offset, torch.nn.Parameter) is (kind == "learnable")
    assert set(core.state_dict()) == ({"softmax_offset"} if kind == "learnable" else set())
    right = right_of(given, causal=True, sinks=offset)
    out = core(*given, None)
    close(out, right)
    if kind == "learnable":
        (found,) = torch.autograd.grad(out.cos().sum(), offset)
        close(found, torch.autograd.grad(right.cos().sum(), offset)[0])


def packed(kind: Any = Mask.padding_causal, **more: Any) -> tuple[Any, list[Tensor], Any]:
    """The attention of sequences of 3 and 4 rows, which follow one another, and their tensors."""
    given = [x[:, 0] for x in inputs()]
    starts = torch.tensor([0, 3, 7], dtype=torch.int32)
    named = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts, **more}
    params = PackedSeqParams(qkv_format="thd", **named)
    core = built(kind)
    return core(*given, None, attn_mask_type=kind, packed_seq_params=params), given, core


@pytest.mark.parametrize("kind", [Mask.padding_causal, Mask.padding, Mask.causal])
def test_packed_sequences(kind: Any) -> None:
    for longest in ({}, {"max_seqlen_q": 4, "max_seqlen_kv": torch.tensor(4)}):
        out, given, _ = packed(kind, **longest)
        parts = [[x[part][:, None] for x in given] for part in (slice(0, 3), slice(3, 7))]
        right = [right_of(part, causal=kind != Mask.padding)[:, 0] for part in parts]
        close(out, torch.cat(right))


def test_padding_behind_packed_sequences() -> None:
    shorter = torch.tensor([0, 2, 5], dtype=torch.int32)
    padded = torch.tensor([0, 3, 7], dtype=torch.int32)
    named = {"cu_seqlens_q": shorter, "cu_seqlens_kv": shorter}
    named |= {"cu_seqlens_q_padded": padded, "cu_seqlens_kv_padded": padded}
    out, given, _ = packed(**named)
    for start, count in ((0, 2), (3, 3)):
        part = slice(start, start + count)
        close(out[part], right_of([x[part][:, None] for x in given], causal=True)[:, 0])
    with pytest.raises(tunefa.TunefaError, match="cu_seqlens_q_padded is given, and attention"):
        packed(Mask.padding, **named)


REFUSED = [
    ({"attention_dropout": 0.1}, "attention_dropout is set .*set attention_dropout=0.0"),
    ({"qk_clip": True}, "qk_clip is set"),
    ({"log_max_attention_logit": True}, "log_max_attention_logit is set"),
]


@pytest.mark.parametrize(("config", "said"), REFUSED, ids=str)
def test_settings_that_tunefa_has_not_are_named(config: dict[str, Any], said: str) -> None:
    with pytest.raises(tunefa.TunefaError, match=said):
        built(**config)


def test_masks_that_tunefa_has_not_are_named() -> None:
    core, given = built(), inputs()
    for kind in (Mask.padding, Mask.arbitrary, Mask.padding_causal):
        with pytest.raises(tunefa.TunefaError, match=f"attn_mask_type is {kind.name}, which"):
            core(*given, None, attn_mask_type=kind)
    with pytest.raises(tunefa.TunefaError, match="attention_bias is given"):
        core(*given, None, attention_bias=torch.zeros(1))
    mask = torch.ones(1, 1, 7, 7, dtype=torch.bool)
    with pytest.warns(UserWarning, match="attention_mask is not used: tunefa's mask is causal"):
        close(core(*given, mask), right_of(given, causal=True))


def layer_of(spec: Any, **config: Any) -> Any:
    tensor_parallel.random.initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
    torch.manual_seed(5)
    return build_module(spec, config=config_of(**config), layer_number=1)


def test_a_layer_computes_the_same_with_tunefa(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = get_gpt_layer_local_spec()
    mine, own = layer_of(integration.with_tunefa(spec)), layer_of(spec)
    assert type(own.self_attention.core_attention) is DotProductAttention
    assert type(mine.self_attention.core_attention) is integration.CoreAttention
    mine.load_state_dict(own.state_dict())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")  # of its buffer of scores
    own.eval(), mine.eval()
    hidden = torch.randn(7, 2, HEADS * HEAD_DIM)
    mask = torch.ones(7, 7, dtype=torch.bool).triu(1)[None, None]
    right, _ = own(hidden, attention_mask=mask)
    found, _ = mine(hidden, attention_mask=None)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.how == "pytorch"
    close(found, right)


def test_specs_of_other_things_are_refused() -> None:
    with pytest.raises(tunefa.TunefaError, match="has no submodules"):
        integration.with_tunefa(ModuleSpec(module=torch.nn.Linear))
