"""FlashAttention-2, -3 and -4 from their own packages.

All three take (batch, seqlen, heads, head_dim) tensors, align causal masks to the bottom right, and
have windows that do not count the query's own key.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from tunefa.measure.check import softcap
from tunefa.measure.peer import Call, Peer, Tensors, Unserved, require, sequences_first
from tunefa.spec.workload import Workload

_HALF = ("bf16", "fp16")
_MASKS = ("window", "window on both sides", "lower right", "softcap", "varlen", "grouped heads")
_FA2 = "flash_attn.flash_attn_interface"
_FA3 = ("flash_attn_interface", "fa3_fwd_interface")
"""The modules of FlashAttention-3: built from its sources, and of the wheel fa3-fwd, which has the
forward pass alone."""
_FA3_CONFIG = {"flash_attn_interface": "flash_attn_config", "fa3_fwd_interface": "fa3_fwd_config"}
"""The module that says which parts of FlashAttention-3 were left out when it was built."""


def _called(module: str, unlimited: Any, workload: Workload, tensors: Tensors, **more: Any) -> Call:
    """The call of a module's `flash_attn_func`, or of its function for packed sequences.

    `unlimited` stands for a side of the window without a limit.
    """
    functions: Any = importlib.import_module(module)
    left, right = (unlimited if side is None else side for side in workload.band)
    if workload.causal and workload.window_left is None:
        right = unlimited  # the flag for a causal mask says it
    options = {
        "causal": workload.causal,
        "window_size": (left, right),
        "softcap": softcap(workload) or 0.0,
        **({"deterministic": True} if workload.deterministic else {}),
        **more,
    }
    if workload.varlen:
        q, k, v, *starts = tensors
        lengths = workload.seqlen_q, workload.seqlen_k
        names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
        options |= dict(zip(names, (*starts, *lengths), strict=True))
        return lambda: _output(functions.flash_attn_varlen_func(q, k, v, **options))
    q, k, v = sequences_first(tensors)
    return lambda: _output(functions.flash_attn_func(q, k, v, **options)).transpose(1, 2)


def _output(made: Any) -> Any:
    """The output, which some versions return with the logsumexp behind it."""
    return made[0] if isinstance(made, tuple) else made


def fa2(workload: Workload, tensors: Tensors) -> Call:
    """FlashAttention-2, from the package flash-attn."""
    require(workload, _MASKS, _HALF)
    return _called(_FA2, -1, workload, tensors)


def fa3(workload: Workload, tensors: Tensors) -> Call:
    """FlashAttention-3, for Hopper."""
    flags: dict[str, bool] = {}
    module = _fa3_module()
    if importlib.util.find_spec(_FA3_CONFIG[module]) is not None:
        config = importlib.import_module(_FA3_CONFIG[module]).CONFIG
        flags = config.get("build_flags", {})
    _require_built(workload, flags)
    if workload.dtype != "e4m3" or workload.varlen:  # packed sequences have no descales
        return _called(module, -1, workload, tensors)
    if workload.head_dim % 16:
        raise Unserved("its head_dim must be a multiple of 16 for e4m3")
    names = ("q_descale", "k_descale", "v_descale")
    return _called(module, -1, workload, tensors, **dict(zip(names, tensors[3:], strict=True)))


def _require_built(workload: Workload, flags: dict[str, bool]) -> None:
    """Raises Unserved for what FlashAttention-3 does not have, or what was left out of this build.

    The widths of V beside those of Q are in the checks of hopper/flash_api.cpp.
    """

    def is_left_out(part: str) -> bool:
        return bool(flags.get(f"FLASHATTENTION_DISABLE_{part}"))

    has = [*_MASKS, "unequal head dims"]
    if is_left_out("LOCAL"):
        has = [name for name in has if not name.startswith("window")]
    missing = [name for name in ("softcap", "varlen") if is_left_out(name.upper())]
    dtypes = ["bf16", *([] if is_left_out("FP16") else ["fp16"])]
    dtypes += [] if is_left_out("FP8") else ["e4m3"]
    require(workload, [name for name in has if name not in missing], dtypes)
    wide, wide_v = workload.head_dim, workload.head_dim_v
    pairs = (wide <= 64, 128 < wide <= 192 and 96 < wide_v <= 128, wide == wide_v)
    if not any(pairs):
        raise Unserved(f"it has no head_dim {wide} with head_dim_v {wide_v}")


def fa4(workload: Workload, tensors: Tensors) -> Call:
    """FlashAttention-4, in CuTe DSL. Its functions take no descales, so it has no e4m3 here."""
    require(workload, (*_MASKS, "unequal head dims"), _HALF)
    return _called("flash_attn.cute", None, workload, tensors)


def _fa3_module() -> str:
    """The module that is installed; that of the sources if none is."""
    there = (name for name in _FA3 if importlib.util.find_spec(name) is not None)
    return next(there, _FA3[0])


PEERS = (
    Peer("flash_attn2", "flash-attn 2", fa2, _FA2, "flash-attn", "ordered"),
    Peer("fa3", "FlashAttention-3", fa3, _fa3_module(), "fa3-fwd"),
    Peer("fa4", "flash-attn-4", fa4, "flash_attn.cute", "flash-attn-4", "ordered"),
)
