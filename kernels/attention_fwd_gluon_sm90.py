r"""FlashAttention forward for Hopper in Gluon: warp-specialised, persistent, TMA and WGMMA.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

Algorithm: Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and
Low-precision", arXiv:2407.08608. One CTA runs on each SM and works through several tiles. A tile is
64 * WARPGROUPS query rows of one head, or of PACK_GQA heads together:

                             keys, in blocks of BLOCK_N
                         <--- from the last to the first ----
                         block 0     block 1     block 2
                       +-----------+-----------+-----------+
    warpgroup 0        | x x x x x | x \       |           |   64 rows. It skips block 2, which is
                       +-----------+-----------+-----------+   above its diagonal
    warpgroup 1        | x x x x x | x x x x x | x \       |   64 rows. It masks block 2, which its
                       +-----------+-----------+-----------+   diagonal crosses

Every warpgroup goes through all blocks of the tile, as it has to release those that it skips.

The producer is one warp, each consumer is a warpgroup of four. A pipeline of Q, one of K and one of
V connect them: each stage has a barrier `full`, for which a consumer waits, and a barrier `empty`,
for which the producer waits. TMA arrives at `full` when all bytes are there; every consumer of the
stage arrives at `empty`. A stage of Q belongs to one warpgroup, a stage of K or V to all of them.

    producer                         consumer warpgroup, for each tile
    --------                         ---------------------------------
    Q: wait empty, copy -- full -->  wait for Q
    for each block j, last first:    for each block j, last first:
    K: wait empty, copy -- full -->    wait for K of j; wait at the scheduler barrier (PING_PONG)
                                       start s = q @ k^T of block j
    V: wait empty, copy -- full -->    wait for V of block j + 1; start acc += p @ v of block j + 1
                                       let the next warpgroup pass the scheduler barrier
                        <- empty --    s is finished: release K of block j
                                       p = softmax(s), while acc is still being multiplied
                        <- empty --    acc is finished: release V of block j + 1
                                     acc += p @ v of block 0; write lse
                        <- empty --  output: registers -> shared memory -> TMA; release Q

The last block, which comes first, has no block j + 1: it starts with its scores alone.

With PING_PONG and two warpgroups, the softmax of one runs during the products of the other:

    warpgroup 0   | products | softmax  | products | softmax  |
    warpgroup 1              | products | softmax  | products | softmax

Choices beyond the paper:
* a table from the host says which CTA computes which tile: longest tiles first, each for the CTA
  with the least work so far. There is no atomic counter, and the order is the same every time. For
  packed sequences, a preprocess kernel lists the tiles, and CTAs take tiles from the list by a tile
  counter (see gluon/host/packed_tiles.py). The producer passes them on as work info;
* a warpgroup skips the blocks above its own diagonal, although others of the tile need them;
* the output leaves through the buffer that the tile's queries came in, by TMA, while the next
  tile's queries arrive in another.

With e4m3, a preprocess kernel writes V^T (see gluon/e4m3.py); scores and outputs are multiplied by
scales of each KV head, and the output is bf16. The output is accumulated on two levels: p @ v of
each block by the tensor cores, and the sum of the blocks in fp32. There are registers for this up
to 128 columns.

Causal means bottom-right aligned (FlashAttention >= 2.1): query i sees keys j <= i + seqlen_k -
seqlen_q. A window that reaches `window_right` keys beyond this diagonal is a causal mask with a
diagonal further to the right, where each query sees the last `window_keys` keys. A row that sees
no key gives out = 0 and lse = -inf. With a soft-cap c, scores s become c * tanh(s / c), by the
hardware's tanh.

This file is the host side. The device code is gluon/attention_forward.py, which `device_function`
imports when something is compiled, as a launch needs no compiler.

What each parameter trades:
    WARPGROUPS            rows per tile against registers per thread
    PACK_GQA              query heads of a KV head that share a tile, so that few queries fill it
    BLOCK_N               fewer, longer steps against registers and shared memory
    num_stages            blocks of K and of V in flight against shared memory
    LOAD_K_FIRST          1: the next block of K is copied before V of this one, in the order in
                          which they are used
    Q_STAGES              2: the next tile's queries arrive early, for shared memory
    EPILOGUE_SUBTILE      0: the output leaves through the queries' buffer; 1, 2: through a buffer
                          of its own, in one or two parts
    PING_PONG             1: consumers use the tensor cores one after the other
    DEFER_ROW_SUM         1: row sums stay spread over lanes until the end of a tile
    RESCALE_THRESHOLD     powers of two by which scores may exceed their row's maximum before the
                          maximum is raised; a warp whose maxima all stay does not rescale its
                          output
    EX2_EMULATION_FREQ    e4m3, whose exponentials take as long as its products: 4, 8: one
                          exponential in 4 or 8 is computed by multiplications; 0: none
    SPLIT_DIAGONAL_BLOCK  1: of a causal tile's first block, only the half that its rows see is
                          multiplied
    L2_SECTION_MB         masked or packed: MiB of K and V of the heads whose tiles are worked on
                          together, so that they stay in the L2 cache
"""

import math

from tunefa.kernels.gluon.host import packed_tiles, tma_blocks, transposition
from tunefa.kernels.hopper import tile_table, transposed_v
from tunefa.kernels.hopper.tile_table import specialize  # noqa: F401 - a part of the contract
from tunefa.kernels.hopper.tma import is_aligned  # noqa: F401 - a part of the contract

LOG2_E = math.log2(math.e)
_DESCALES = ("q_descale_ptr", "k_descale_ptr", "v_descale_ptr")
_REGISTERS = {1: (240, 24, 255), 2: (240, 24, 168), 3: (160, 32, 128), 4: (112, 24, 96)}
"""By WARPGROUPS: registers per thread of a consumer, of the producer, and of all threads at the
launch, before setmaxnreg moves registers from the producer to the consumers: 65,536 in all."""


def _blocks(workload, config):
    """(heads, rows, columns, rest) of the tiles of q, k, v (V^T with e4m3) and out."""
    columns, rest = tma_blocks.split(workload.head_dim)
    columns_v, rest_v = tma_blocks.split(workload.head_dim_v)
    o_columns = columns_v // max(1, config["EPILOGUE_SUBTILE"])
    q, k = (config["PACK_GQA"], 64 // config["PACK_GQA"]), (1, config["BLOCK_N"])
    v_block = (*k, columns_v, rest_v)
    if _is_e4m3(workload):
        v_block = (1, columns_v, config["BLOCK_N"], 0)
    return (*q, columns, rest), (*k, columns, rest), v_block, (*q, o_columns, rest_v)


def _dtypes(workload):
    """The dtypes of the tiles of q, k, v and out."""
    kind = workload.dtype
    return kind, kind, kind, "bf16" if _is_e4m3(workload) else kind


def _is_e4m3(workload):
    return workload.dtype == "e4m3"


def _constants(workload, config):
    consumer_registers, producer_registers, _ = _REGISTERS[config["WARPGROUPS"]]
    names = ("WARPGROUPS", "PACK_GQA", "BLOCK_N", "num_stages", "LOAD_K_FIRST", "Q_STAGES",
             "EPILOGUE_SUBTILE", "PING_PONG", "DEFER_ROW_SUM", "RESCALE_THRESHOLD",
             "EX2_EMULATION_FREQ", "SPLIT_DIAGONAL_BLOCK")  # fmt: skip
    return {
        **{name: config[name] for name in names},
        "CAUSAL": workload.band != (None, None),
        "WINDOWED": workload.window_left is not None,
        "AHEAD": not workload.causal and workload.band != (None, None),
        "SOFTCAP": workload.softcap,
        "RAGGED": _is_ragged(workload, config),
        "E4M3": _is_e4m3(workload),
        "VARLEN": workload.varlen,
        "REST": tma_blocks.split(workload.head_dim)[1],
        "REST_V": tma_blocks.split(workload.head_dim_v)[1],
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }


def _is_ragged(workload, config):
    """Whether more than a tile's first block may need a mask, or a row may see no key."""
    if workload.varlen:
        return True
    if workload.band == (None, None):
        return workload.seqlen_k % config["BLOCK_N"] != 0
    offset = workload.seqlen_k - workload.seqlen_q
    return workload.band != (None, 0) or offset < 0 or offset % 64 != 0


def device_function():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.gluon.attention_forward import attention_fwd

    return attention_fwd


def variant(workload, config, aligned=True):
    """What the compiler needs for one config, with no device present: a plain dict.

    The compiled kernel depends on no batch, head count or length. TMA reads `aligned` tensors only.
    """
    constants = _constants(workload, config)
    blocks = _blocks(workload, config)
    signature = tma_blocks.types("qkvo", _dtypes(workload), blocks, workload.varlen)
    signature |= {"lse_ptr": "*fp32", **dict.fromkeys(_DESCALES, "*fp32"), "heads_kv": "i32"}
    signature |= {"schedule_ptr": "*i32", "tiles_ptr": "*i32"}
    sizes = ("heads", "seqlen_q", "seqlen_k", "window_keys", "window_right")
    signature |= dict.fromkeys(sizes, "i32")
    signature |= {"scale_log2": "fp32", "tanh_scale": "fp32"}
    if not _is_e4m3(workload):
        constants |= dict.fromkeys([*_DESCALES, "heads_kv"])
    return {
        "function": device_function,
        "signature": signature | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "aligned": ["lse_ptr", "schedule_ptr", "tiles_ptr"],
        "options": {"num_warps": 4, "maxnreg": _REGISTERS[config["WARPGROUPS"]][2]},
    }


def preprocess(workload, config):
    """The variant that writes V^T for 8-bit operands, or the list of packed tiles."""
    if _is_e4m3(workload):
        return transposition.preprocess(workload.head_dim_v)
    return packed_tiles.preprocess(workload, config)


def scratch(tensors, spec):
    """The memory for what `preprocess` writes."""
    if _is_e4m3(spec.workload):
        return transposed_v.scratch(spec.workload)
    return packed_tiles.scratch(tensors, spec)


def preprocess_arguments(tensors, spec):
    """The grid and the arguments of `preprocess`."""
    if _is_e4m3(spec.workload):
        return transposition.preprocess_arguments(tensors[2], tensors[-1])
    return packed_tiles.preprocess_arguments(tensors, spec)


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse): q, out (batch, heads, seqlen_q, head_dim | head_dim_v); k, v
    (batch, heads_kv, seqlen_k, head_dim | head_dim_v), aligned, rows contiguous; lse (batch, heads,
    seqlen_q), fp32, contiguous. Packed: (rows, heads, head_dim | head_dim_v) each, lse (heads,
    rows), then cu_seqlens_q and cu_seqlens_k, (batch + 1,), int32. With e4m3 the descales of q, k
    and v follow, each (batch, heads_kv), fp32, contiguous, or empty for 1. The memory of `scratch`
    comes last. `scale` multiplies q @ k^T and is positive, as is `softcap`, the bound of the
    scores where `workload.softcap`.
    """
    q, k, v, out, lse, *more = tensors
    w, config, scale, softcap = spec.workload, spec.config, spec.scale, spec.softcap
    rows, descales = w.seqlen_q, [None] * 4
    if _is_e4m3(w):
        *descales, v = more
        descales.append(w.heads_kv)
    if w.varlen:
        schedule, tiles = more[-2:]
        rows, ctas = (lse, 1), packed_tiles.ctas(tiles, spec)
    else:
        schedule, tiles = tile_table.tables(spec, lse.device)
        ctas = len(schedule) - 1
    descriptors = tma_blocks.descriptors((q, k, v, out), _blocks(w, config))
    window_right, window_keys = tile_table.edges(w)
    scales = (scale * LOG2_E, 0.0) if softcap is None else (softcap * LOG2_E, scale / softcap)
    sizes = [w.heads, rows, w.seqlen_k, window_keys or 0, window_right, *scales]
    constants = _constants(w, config).values()
    return (ctas, 1, 1), [
        *descriptors, lse, *descales, schedule, tiles, *sizes, *constants,
    ]  # fmt: skip
