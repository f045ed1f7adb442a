"""FlashAttention-2 backward in Triton, for every NVIDIA chip from sm80 on.

With s = scale * q @ k^T, P = exp(s - lse) and delta = rowsum(do * out) - dlse:

    dv = P^T @ do,   dS = P * (do @ v^T - delta),   dq = scale * dS @ k,   dk = scale * dS^T @ q

Algorithm: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
arXiv:2307.08691, algorithm 2, with its loop turned both ways, as in PyTorch's FlexAttention
(arXiv:2412.05496). One launch has two kinds of tiles:

    tile of keys:     BLOCK_N1 keys of one KV head. It goes through the query rows of all heads of
                      its group in blocks of BLOCK_M1; dK and dV stay in registers.
    tile of queries:  BLOCK_M2 query rows of one head. It goes through the keys in blocks of
                      BLOCK_N2; dQ stays in registers.

So S and dP are computed twice, seven products in all instead of five, but no sum is ever in memory:
there are no atomics, and every launch on the same tensors gives the same bits.

A preprocess kernel (triton/attention_delta.py) writes delta and lse in units of log2. A row that
sees no key has an infinite one, so that its probabilities are 0; so have rows beyond the last, up
to a multiple of 128, and blocks of query rows need no mask there.

Choices beyond the paper:
* exponentials are base 2 and `scale * log2(e)` enters as `exp2(s * scale - lse)`;
* blocks that no mask touches run in a loop of their own, without a comparison;
* tiles of keys compute scores transposed, so that P and dS are left operands from registers;
* tiles of keys come before tiles of queries, which are shorter, and causal tiles of either kind
  start with the longest, so that the last programs are short.

Causal means bottom-right aligned (FlashAttention >= 2.1): query i sees keys j <= i + seqlen_k -
seqlen_q. With a soft-cap c, scores s become c * tanh(s / c).

This file is the host side. The device code is triton/attention_backward.py, which
`device_function` imports when something is compiled, as a launch needs no compiler.

What each parameter trades:
    BLOCK_M1, BLOCK_N1  tile of keys: reuse of Q and dO against registers and shared memory
    BLOCK_M2, BLOCK_N2  tile of queries: reuse of K and V against registers and shared memory
    num_warps           rows per warp: fewer rows need fewer registers, more warps share each load
    num_stages          blocks of Q and dO, or of K and V, in flight against shared memory
    USE_TMA             0: every thread copies blocks by cp.async; 1: TMA copies them (sm90 on)
    maxnreg             cap on registers per thread (0: none): occupancy against spills
    L2_SECTION_HEADS    heads whose tiles are interleaved: 1 keeps one head's tensors in the L2
                        cache, more heads balance the causal tail better
"""

from __future__ import annotations

import math

from tunefa.spec.rounding import ceil_div, next_pow2, round_up

LOG2_E = math.log2(math.e)
_PADDING = 128
"""Rows of delta and of lse beyond a sequence's last go up to a multiple of this, which all blocks
of query rows divide."""
_ROWS = 32
"""Rows that a program of the preprocess kernel reads at once."""
_MOST_ROWS = 2**30
"""More query rows or keys than there are."""
_PLACED = ("q", "k", "v", "do", "dq", "dk", "dv")
"""The tensors whose strides the kernel takes."""


def _widths(workload):
    """Columns of Q and K, and of V and dO, with padding."""
    widths = [max(16, next_pow2(each)) for each in (workload.head_dim, workload.head_dim_v)]
    # Rows of V narrower than both 128 bytes and K's gave wrong sums: see attention_fwd_triton.py.
    narrowest = min(max(widths), 32 if workload.dtype == "fp32" else 64)
    return [max(narrowest, each) for each in widths]


def _constants(workload, config):
    """Everything the compiler sees as a constant: the head sizes, the mask and the tiles."""
    left, right = workload.band
    pad_d, pad_dv = _widths(workload)
    return {
        "HEAD_DIM": workload.head_dim,
        "HEAD_DIM_V": workload.head_dim_v,
        "PAD_D": pad_d,
        "PAD_DV": pad_dv,
        "GROUP": workload.group,
        "CAUSAL": right is not None,
        "WINDOWED": left is not None,
        "SOFTCAP": workload.softcap,
        "VARLEN": workload.varlen,
        "PADDING": _PADDING,
        "USE_TMA": config["USE_TMA"] == 1,
        # One tf32 product rounds its inputs to 10 bits; three restore fp32's accuracy.
        "PRECISION": "tf32x3" if workload.dtype == "fp32" else "tf32",
        **{name: config[name] for name in ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")},
    }


def _blocks(workload, config):
    """(rows, columns) of the blocks of Q, K, V and dO that a step loads."""
    pad_d, pad_dv = _widths(workload)
    rows, keys = config["BLOCK_M1"], config["BLOCK_N2"]
    return (rows, pad_d), (keys, pad_d), (keys, pad_dv), (rows, pad_dv)


def device_function():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.triton.attention_backward import attention_bwd

    return attention_bwd


def variant(workload, config, aligned=True):
    """Returns what the Triton compiler needs for one config, with no device: a plain dict.

    `aligned`: whether all pointers and strides are multiples of 16, as in contiguous tensors of a
    head_dim that is one. The compiled kernel depends on no batch, head count or length.
    """
    constants = _constants(workload, config)
    kind, blocks = workload.dtype, _blocks(workload, config)
    types = [f"*{kind}"] * 4
    if config["USE_TMA"]:
        types = [f"tensordesc<{kind}[1, 1, {rows}, {columns}]>" for rows, columns in blocks]
    strides = [f"{name}_{axis}" for name in _PLACED for axis in ("batch", "head", "row")]
    sizes = ("heads", "num_heads", "num_heads_kv", "query_tiles", "key_tiles", "section_heads",
             "seqlen_q", "seqlen_k", "bounds", "padded_rows", "reach_left",
             "reach_right")  # fmt: skip
    signature = {
        **{f"{name}_ptr": f"*{kind}" for name in _PLACED[:4]},
        **{f"{name}_blocks": type for name, type in zip(_PLACED[:4], types, strict=True)},
        **{f"{name}_ptr": f"*{kind}" for name in _PLACED[4:]},
        **{"lse_ptr": "*fp32", "delta_ptr": "*fp32"},
        **{"cu_seqlens_q_ptr": "*i32", "cu_seqlens_k_ptr": "*i32"},
        # A long context passes 2^31 elements.
        **{stride: "i64" if stride.endswith("batch") else "i32" for stride in strides},
        **dict.fromkeys(sizes, "i32"),
        **dict.fromkeys(("scale", "scale_log2", "tanh_scale"), "fp32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    pointers = [name for name, kind in signature.items() if kind.startswith("*")]
    return {
        "function": device_function,
        "signature": signature,
        "constants": constants,
        "aligned": [*pointers, *strides] if aligned else ["lse_ptr", "delta_ptr"],
        "options": {
            "num_warps": config["num_warps"],
            "num_stages": config["num_stages"],
            "maxnreg": config["maxnreg"] or None,
        },
    }


def preprocess_function():
    """Returns the preprocess kernel, which imports Triton."""
    from tunefa.kernels.triton.attention_delta import attention_delta

    return attention_delta


def preprocess(workload, config):
    """The variant of the kernel that writes lse and delta, for tensors that are aligned or not."""
    constants = {
        "HEAD_DIM_V": workload.head_dim_v,
        "PAD_DV": _widths(workload)[1],
        "VARLEN": workload.varlen,
        "PADDING": _PADDING,
        "ROWS": _ROWS,
    }
    strides = [f"{name}_{axis}" for name in ("o", "do", "lse", "dlse")
               for axis in ("batch", "head", "row")]  # fmt: skip
    sizes = ("heads", "seqlen_q", "bounds", "padded_rows", "num_tiles", "is_aligned")
    signature = {
        **dict.fromkeys(("out_ptr", "do_ptr"), f"*{workload.dtype}"),
        **dict.fromkeys(("lse_ptr", "dlse_ptr"), "*fp32"),
        "cu_seqlens_q_ptr": "*i32",
        **dict.fromkeys(("lse_log2_ptr", "delta_ptr"), "*fp32"),
        **{stride: "i64" if stride.endswith("batch") else "i32" for stride in strides},
        **dict.fromkeys(sizes, "i32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    return {
        "function": preprocess_function,
        "signature": signature,
        "constants": constants,
        "aligned": ["lse_log2_ptr", "delta_ptr"],
        "options": {"num_warps": 4},
    }


def unordered(workload, config):
    """No output: each is summed by one program, in one order."""
    return ()


def is_aligned(tensors):
    """Whether `variant(..., aligned=True)`, and with it TMA, may read and write these tensors.

    TMA needs 16-byte multiples (CUDA C++ Programming Guide, "Tensor Map"); multiples of 16 elements
    cover that for every dtype and let the compiler load 16 bytes at a time.
    """
    q, k, v, out, _, dout, _, dq, dk, dv = tensors[:10]
    return all(
        tensor.data_ptr() % 16 == 0 and all(step % 16 == 0 for step in tensor.stride()[:-1])
        for tensor in (q, k, v, out, dout, dq, dk, dv)
    )


def scratch(tensors, spec):
    """Shapes and dtypes of lse and delta, as attention_delta.py writes them: each call has its own.

    Packed sequences have room for as many rows and sequences as the next powers of two.
    """
    import torch  # importing it takes seconds, and compiling does not need it

    workload = spec.workload
    if workload.varlen:
        shape = workload.heads, next_pow2(tensors[0].shape[0]) + _PADDING * _sequences(tensors)
    else:
        shape = workload.batch * workload.heads, round_up(workload.seqlen_q, _PADDING)
    return (shape, torch.float32), (shape, torch.float32)


def preprocess_arguments(tensors, spec):
    """The grid and the arguments of the preprocess kernel, for the tensors of `arguments`."""
    _, _, _, out, lse, dout, dlse, *_, lse_log2, delta = tensors
    workload = spec.workload
    tiles, heads = _query_tiles(tensors, workload, _PADDING), _heads(workload)[0]
    strides = [step for tensor in (out, dout) for step in _strides(tensor, workload)]
    # The axes of lse are (batch, heads, rows), packed (heads, rows). Packed, it is contiguous, and
    # one plan serves calls with other numbers of rows.
    strides += (0, (lse, 1), 1) if workload.varlen else lse.stride()
    strides += (0, *dlse.stride())[-3:]
    bounds, cu_seqlens = _bounds(tensors, workload)
    wide = int(all(_starts_at_16_bytes(each) for each in (out, dout)))
    sizes = [workload.heads, workload.seqlen_q, bounds, delta.stride(0), tiles, wide]
    return (tiles * heads, 1, 1), [
        out, dout, lse, dlse, cu_seqlens[0], lse_log2, delta, *strides, *sizes,
        *preprocess(workload, spec.config)["constants"].values(),
    ]  # fmt: skip


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse, dout, dlse, dq, dk, dv, lse_log2, delta): q, dq (batch, heads,
    seqlen_q, head_dim), out, dout (..., head_dim_v), k, dk (batch, heads_kv, seqlen_k, head_dim),
    v, dv (..., head_dim_v), any strides with contiguous rows; lse and dlse (batch, heads,
    seqlen_q), fp32. Packed: (rows, heads, head_dim | head_dim_v), lse and dlse (heads, rows), and
    behind dv cu_seqlens_q and cu_seqlens_k, (batch + 1,), int32. The last two are of `scratch`.
    `scale` multiplies q @ k^T and is positive, as is `softcap`, the bound of the scores where
    `workload.softcap`. A block of rows must be within 2^31 elements.
    """
    q, k, v, _, _, dout, _, dq, dk, dv, *_, lse_log2, delta = tensors
    workload, config, scale = spec.workload, spec.config, spec.scale
    blocks = [q, k, v, dout]
    if config["USE_TMA"]:
        sizes = _blocks(workload, config)
        blocks = [_map(*each, workload) for each in zip(blocks, sizes, strict=True)]
    heads, heads_kv = _heads(workload)
    query_tiles = _query_tiles(tensors, workload, config["BLOCK_M2"])
    key_tiles = _key_tiles(tensors, workload, config["BLOCK_N1"])
    placed = (q, k, v, dout, dq, dk, dv)
    strides = [step for tensor in placed for step in _strides(tensor, workload)]
    bounds, cu_seqlens = _bounds(tensors, workload)
    reach = [_MOST_ROWS if side is None else side for side in workload.band]
    factors = [scale * LOG2_E, 0.0]
    if workload.softcap:
        factors = [spec.softcap * LOG2_E, 2 * LOG2_E * scale / spec.softcap]
    return (query_tiles * heads + key_tiles * heads_kv, 1, 1), [
        q, k, v, dout, *blocks, dq, dk, dv, lse_log2, delta, *cu_seqlens, *strides,
        workload.heads, heads, heads_kv, query_tiles, key_tiles, config["L2_SECTION_HEADS"],
        workload.seqlen_q, workload.seqlen_k, bounds, delta.stride(0), *reach, scale, *factors,
        *_constants(workload, config).values(),
    ]  # fmt: skip


def _map(tensor, size, workload):
    """A tensor as TMA copies it, by so many (rows, columns): dense or packed, (batch, heads, rows,
    columns). Only blocks within a packed sequence are copied, so the number of rows may change."""
    made = {"map": tensor, "box": (1, 1, *size)}
    if workload.varlen:
        _, heads, columns = tensor.shape
        row, head, _ = tensor.stride()
        made |= {"shape": (1, heads, _MOST_ROWS, columns), "strides": (_MOST_ROWS, head, row, 1)}
    return made


def _starts_at_16_bytes(tensor):
    """Whether each row does, so that a thread may load 16 bytes at a time."""
    steps = (tensor.data_ptr(), *(each * tensor.element_size() for each in tensor.stride()[:-1]))
    return all(each % 16 == 0 for each in steps)


def _heads(workload):
    """Query heads and KV heads: of all batches, or of packed sequences."""
    batch = 1 if workload.varlen else workload.batch
    return batch * workload.heads, batch * workload.heads_kv


def _strides(tensor, workload):
    """Strides of batches, heads and rows."""
    if workload.varlen:
        return 0, tensor.stride(1), tensor.stride(0)
    return tensor.stride()[:3]


def _sequences(tensors):
    """Returns for how many packed sequences there is room."""
    return next_pow2(max(1, tensors[10].shape[0] - 1))


def _query_tiles(tensors, workload, block):
    """Tiles of `block` query rows of one head; packed: the most there can be, as each sequence may
    have one that is not full."""
    if workload.varlen:
        return next_pow2(tensors[0].shape[0]) // block + _sequences(tensors)
    return ceil_div(workload.seqlen_q, block)


def _key_tiles(tensors, workload, block):
    """Tiles of `block` keys of one head; packed: the most there can be, however many keys a later
    call with as many query rows has."""
    sequences = _sequences(tensors) if workload.varlen else 1
    return sequences * ceil_div(workload.seqlen_k, block)


def _bounds(tensors, workload):
    """Returns (packed sequences and one more, the two cu_seqlens), unused ones where there are
    none: any pointers do."""
    if workload.varlen:
        return (tensors[10], 0), tensors[10:12]
    return 0, tensors[-2:]
