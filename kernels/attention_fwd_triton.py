"""FlashAttention-2 forward in Triton, for every NVIDIA chip from sm80 on.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

Algorithm: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
arXiv:2307.08691, algorithm 1: one program owns BLOCK_M query rows of one head and streams K and V
past them in blocks of BLOCK_N keys; row maximum, row sum and output stay in registers.

Three choices beyond the paper:
* exponentials are base 2 and `scale * log2(e)` enters as `exp2(s * scale - max)`, one fused
  multiply-add and one special-function operation per element;
* blocks that no mask touches run in a loop of their own, without a comparison;
* causal tiles are handed out heaviest first, so that the last programs to start are the short ones.

Causal means bottom-right aligned (FlashAttention >= 2.1): query i sees keys j <= i + seqlen_k -
seqlen_q. A row that sees no key gives out = 0 and lse = -inf.

What each parameter trades:
    BLOCK_M, BLOCK_N  reuse of K and V against registers and shared memory
    num_warps         rows per warp: fewer rows need fewer registers, more warps share each load
    num_stages        K and V blocks in flight against shared memory
    USE_TMA           0: every thread copies by cp.async; 1: TMA copies a block at once (sm90 on)
    maxnreg           cap on registers per thread (0: none): occupancy against spills
    L2_SECTION_HEADS  heads whose tiles are interleaved: 1 keeps one head's K and V in the L2 cache,
                      more heads balance the causal tail better
    PACK_GQA          1: a tile holds all query heads of one KV head: K and V are read once a group
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = math.log2(math.e)
LN_2 = tl.constexpr(math.log(2.0))


# ------------------------------------------------------------------------------- device functions


@triton.jit
def _owned_tile(num_tiles, num_heads, section_heads, CAUSAL: tl.constexpr):
    """The (tile, head) of this program: by section of heads, inside one the heaviest tile first."""
    program = tl.program_id(0)
    section = program // (num_tiles * section_heads)
    first_head = section * section_heads
    heads_here = tl.minimum(num_heads - first_head, section_heads)
    rest = program - first_head * num_tiles
    tile = rest // heads_here
    head = first_head + rest % heads_here
    if CAUSAL:
        tile = num_tiles - 1 - tile
    return tile, head


@triton.jit
def _load_rows(
    source, row_stride, start, seqlen, batch, head,
    WIDTH: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
    USE_TMA: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Rows [start, start + ROWS) of one head: (ROWS, PAD), zero beyond WIDTH and beyond seqlen."""
    if USE_TMA:
        block = source.load([batch, head, start, 0]).reshape([ROWS, PAD])  # zero-fills both edges
    else:
        rows = start + tl.arange(0, ROWS)
        cols = tl.arange(0, PAD)
        where = source + rows[:, None].to(tl.int64) * row_stride + cols[None, :]
        if MASK and PAD != WIDTH:
            block = tl.load(
                where, mask=(rows < seqlen)[:, None] & (cols < WIDTH)[None, :], other=0.0
            )
        elif MASK:
            block = tl.load(where, mask=(rows < seqlen)[:, None], other=0.0)
        elif PAD != WIDTH:
            block = tl.load(where, mask=(cols < WIDTH)[None, :], other=0.0)
        else:
            block = tl.load(where)
    return block


@triton.jit
def _key_blocks(
    acc, row_max, row_sum, q, k_source, v_source, k_stride, v_stride, batch, head,
    key_begin, key_end, last_key, seqlen_k, scale_log2,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, USE_TMA: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Streams the keys [key_begin, key_end) past the tile: one pass of algorithm 1's inner loop."""
    for start in tl.range(key_begin, key_end, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = _load_rows(k_source, k_stride, start, seqlen_k, batch, head,
                       HEAD_DIM, PAD_D, BLOCK_N, USE_TMA, MASK)  # fmt: skip
        s = tl.dot(q, k.T, input_precision=PRECISION)  # (BLOCK_M, BLOCK_N), not yet scaled
        if MASK:
            keys = start + tl.arange(0, BLOCK_N)
            s = tl.where(keys[None, :] <= last_key[:, None], s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale_log2)
        shift = new_max
        if MASK:  # a row that has seen no key yet: -inf - -inf would be NaN
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(s * scale_log2 - shift[:, None])
        decay = tl.exp2(row_max - shift)
        row_sum = row_sum * decay + tl.sum(p, 1)
        row_max = new_max
        acc = acc * decay[:, None]
        v = _load_rows(v_source, v_stride, start, seqlen_k, batch, head,
                       HEAD_DIM_V, PAD_DV, BLOCK_N, USE_TMA, MASK)  # fmt: skip
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, row_max, row_sum


# ------------------------------------------------------------------------------------- the kernel


@triton.jit
def attention_fwd(
    q_ptr, k_source, v_source, out_ptr, lse_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
    heads, seqlen_q, seqlen_k, num_tiles, num_heads, section_heads, scale_log2,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, USE_TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PACK_GQA: tl.constexpr,
):  # fmt: skip
    """One tile of BLOCK_M query rows. `num_heads` counts batch * heads (KV heads when packed)."""
    PACKED: tl.constexpr = GROUP if PACK_GQA else 1  # query heads in one tile
    tile, head_index = _owned_tile(num_tiles, num_heads, section_heads, CAUSAL)
    heads_here = heads // PACKED
    batch = head_index // heads_here
    head = (head_index % heads_here) * PACKED  # the first query head of the tile
    head_kv = head // GROUP

    # Row r of a tile is query r // PACKED of head `head + r % PACKED`.
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = rows // PACKED
    row_heads = head + rows % PACKED
    real = queries < seqlen_q
    cols = tl.arange(0, PAD_D)
    q_base = q_ptr + batch.to(tl.int64) * q_batch
    q_rows = queries.to(tl.int64) * q_row + row_heads.to(tl.int64) * q_head
    q = tl.load(
        q_base + q_rows[:, None] + cols[None, :],
        mask=real[:, None] & (cols < HEAD_DIM)[None, :],
        other=0.0,
    )

    if not USE_TMA:
        k_source += batch.to(tl.int64) * k_batch + head_kv.to(tl.int64) * k_head
        v_source += batch.to(tl.int64) * v_batch + head_kv.to(tl.int64) * v_head

    # Keys [0, clear) are seen by every row of the tile, keys [clear, end) only by some.
    last_key = seqlen_k - 1 + tl.zeros([BLOCK_M], tl.int32)
    clear = seqlen_k
    end = seqlen_k
    if CAUSAL:
        offset = seqlen_k - seqlen_q
        last_key = queries + offset
        last_query = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // PACKED, seqlen_q - 1)
        clear = tl.minimum(tl.maximum((tile * BLOCK_M) // PACKED + 1 + offset, 0), seqlen_k)
        end = tl.minimum(tl.maximum(last_query + 1 + offset, 0), seqlen_k)
        last_key = tl.minimum(last_key, seqlen_k - 1)
    clear = clear // BLOCK_N * BLOCK_N

    acc = tl.zeros([BLOCK_M, PAD_DV], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc, row_max, row_sum = _key_blocks(
        acc, row_max, row_sum, q, k_source, v_source, k_row, v_row, batch, head_kv,
        0, clear, last_key, seqlen_k, scale_log2,
        HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, BLOCK_N, USE_TMA, False, PRECISION)  # fmt: skip
    acc, row_max, row_sum = _key_blocks(
        acc, row_max, row_sum, q, k_source, v_source, k_row, v_row, batch, head_kv,
        clear, end, last_key, seqlen_k, scale_log2,
        HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, BLOCK_N, USE_TMA, True, PRECISION)  # fmt: skip

    seen = row_sum > 0.0
    acc = acc / tl.where(seen, row_sum, 1.0)[:, None]
    lse = tl.where(seen, row_max * LN_2 + tl.log(row_sum), float("-inf"))
    lse_rows = (batch * heads + row_heads).to(tl.int64) * seqlen_q + queries
    tl.store(lse_ptr + lse_rows, lse, mask=real)
    cols_v = tl.arange(0, PAD_DV)
    out_base = out_ptr + batch.to(tl.int64) * o_batch
    out_rows = queries.to(tl.int64) * o_row + row_heads.to(tl.int64) * o_head
    tl.store(
        out_base + out_rows[:, None] + cols_v[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=real[:, None] & (cols_v < HEAD_DIM_V)[None, :],
    )


# -------------------------------------------------------------------------------------- host side


def _constants(workload, config):
    """Everything the compiler sees as a constant: the head sizes, the mask and the tile."""
    pad_d = max(16, triton.next_power_of_2(workload.head_dim))
    # Rows of V narrower than both 128 bytes and K's rows gave wrong sums, or faults, on an H200
    # with Triton 3.6.0 wherever V was not loaded ahead (head_dim 64, head_dim_v 32, one stage).
    narrowest = min(pad_d, 32 if workload.dtype == "fp32" else 64)
    return {
        "HEAD_DIM": workload.head_dim,
        "HEAD_DIM_V": workload.head_dim_v,
        "PAD_D": pad_d,
        "PAD_DV": max(narrowest, triton.next_power_of_2(workload.head_dim_v)),
        "GROUP": workload.group,
        "CAUSAL": workload.causal,
        "USE_TMA": config["USE_TMA"] == 1,
        # One tf32 product rounds its inputs to 10 bits; three restore fp32's accuracy.
        "PRECISION": "tf32x3" if workload.dtype == "fp32" else "tf32",
        "BLOCK_M": config["BLOCK_M"],
        "BLOCK_N": config["BLOCK_N"],
        "PACK_GQA": config["PACK_GQA"],
    }


def variant(workload, config, aligned=True):
    """What the Triton compiler needs for one config, with no device present: a plain dict.

    `aligned`: whether all pointers and strides are multiples of 16, as in contiguous tensors of a
    head_dim that is one. The compiled kernel depends on no batch, head count or length.
    """
    constants = _constants(workload, config)
    kind = workload.dtype
    types = {"q_ptr": f"*{kind}", "out_ptr": f"*{kind}", "lse_ptr": "*fp32", "scale_log2": "fp32"}
    if constants["USE_TMA"]:
        block = f"1, 1, {config['BLOCK_N']}"
        types["k_source"] = f"tensordesc<{kind}[{block}, {constants['PAD_D']}]>"
        types["v_source"] = f"tensordesc<{kind}[{block}, {constants['PAD_DV']}]>"
    else:
        types |= {"k_source": f"*{kind}", "v_source": f"*{kind}"}
    types |= dict.fromkeys(constants, "constexpr")
    types |= {f"{tensor}_batch": "i64" for tensor in "qkvo"}  # a long context passes 2^31 elements
    pointers = [name for name, kind in types.items() if kind.startswith("*")]
    strides = [f"{tensor}_{axis}" for tensor in "qkvo" for axis in ("batch", "head", "row")]
    return {
        "function": attention_fwd,
        "signature": {name: types.get(name, "i32") for name in attention_fwd.arg_names},
        "constants": constants,
        "aligned": [*pointers, *strides] if aligned else [],
        "options": {
            "num_warps": config["num_warps"],
            "num_stages": config["num_stages"],
            "maxnreg": config["maxnreg"] or None,
        },
    }


def is_aligned(tensors):
    """Whether `variant(..., aligned=True)`, and with it TMA, may read these tensors.

    TMA needs 16-byte multiples (CUDA C++ Programming Guide, "Tensor Map"); multiples of 16 elements
    cover that for every dtype and let the compiler load 16 bytes at a time.
    """
    return all(
        tensor.data_ptr() % 16 == 0 and all(step % 16 == 0 for step in tensor.stride()[:3])
        for tensor in tensors[:4]
    )


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse): q, out (batch, heads, seqlen_q, head_dim | head_dim_v); k, v
    (batch, heads_kv, seqlen_k, head_dim | head_dim_v), any strides with contiguous rows; lse
    (batch, heads, seqlen_q), fp32, contiguous. `scale` multiplies q @ k^T and is positive.
    """
    q, k, v, out, lse = tensors
    workload, config = spec.workload, spec.config
    constants = _constants(workload, config)
    packed = workload.group if config["PACK_GQA"] else 1
    num_tiles = triton.cdiv(workload.seqlen_q * packed, config["BLOCK_M"])
    num_heads = workload.batch * workload.heads // packed
    k_source, v_source = k, v
    if constants["USE_TMA"]:
        shape = [1, 1, config["BLOCK_N"]]
        k_source = TensorDescriptor(k, k.shape, k.stride(), [*shape, constants["PAD_D"]])
        v_source = TensorDescriptor(v, v.shape, v.stride(), [*shape, constants["PAD_DV"]])
    strides = [step for tensor in (q, k, v, out) for step in tensor.stride()[:3]]
    sizes = [workload.heads, workload.seqlen_q, workload.seqlen_k, num_tiles, num_heads]
    grid = (num_tiles * num_heads, 1, 1)
    return grid, [q, k_source, v_source, out, lse, *strides, *sizes, config["L2_SECTION_HEADS"],
                  spec.scale * LOG2_E, *constants.values()]  # fmt: skip
