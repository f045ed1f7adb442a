"""The device code of attention_prefill_triton.py, which describes the algorithm.

One Triton program computes one tile: BLOCK_M query rows of one head, or of all query heads of one
KV head (PACK_GQA), against the keys that they see in the pages of their sequence.
"""

import math

import triton
import triton.language as tl
from tunefa.kernels.triton.packed_sequences import bounds_of_sequence, tile_of_sequence

LN_2 = tl.constexpr(math.log(2.0))
LOG2_E = tl.constexpr(math.log2(math.e))


# --------------------------------------------------------------------------------------- the kernel


@triton.jit
def attention_prefill(
    q_ptr, k_source, v_source, out_ptr, lse_ptr, cu_seqlens_ptr, seqlens_ptr, table_ptr, sinks_ptr,
    k_descale_ptr, v_descale_ptr,
    q_row, q_head, k_page, k_head, k_slot, v_page, v_head, v_slot, o_row, o_head,
    kd_sequence, kd_head, vd_sequence, vd_head, table_row, rows, bounds, table_pages,
    num_tiles, num_heads, section_heads, window_left, window_right, scale_log2, tanh_scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr, E4M3_CACHE: tl.constexpr, PAGE_SIZE: tl.constexpr, USE_TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PACK_GQA: tl.constexpr,
):  # fmt: skip
    """Computes one tile, or nothing where the sequences have fewer tiles than were launched.

    `rows` are those of q, `bounds` is the number of sequences plus one, `table_pages` the number of
    columns of the block table. `num_heads` counts heads, or KV heads with PACK_GQA. LEFT and RIGHT
    say whether `window_left` and `window_right` limit the keys before and after the diagonal.
    """
    PACKED: tl.constexpr = GROUP if PACK_GQA else 1  # query heads in one tile
    QUERIES: tl.constexpr = BLOCK_M // PACKED  # the rest of the rows is idle
    tile, head_index = _tile_of_program(num_tiles, num_heads, section_heads)
    sequence, tile = tile_of_sequence(tile, cu_seqlens_ptr, bounds, QUERIES)
    if sequence < bounds - 1:
        first_row, seqlen_q = bounds_of_sequence(cu_seqlens_ptr, sequence, bounds)
        seqlen_k = tl.load(seqlens_ptr + sequence)
        seqlen_k = tl.minimum(tl.maximum(seqlen_k, 0), table_pages * PAGE_SIZE)
        head = head_index * PACKED  # the first query head of the tile
        head_kv = head // GROUP
        each = tl.arange(0, BLOCK_M)
        queries = tile * QUERIES + each // PACKED
        row_heads = head + each % PACKED
        real = (each < QUERIES * PACKED) & (queries < seqlen_q)
        q_rows = (first_row + queries).to(tl.int64) * q_row + row_heads.to(tl.int64) * q_head
        cols = tl.arange(0, PAD_D)
        q = tl.load(q_ptr + q_rows[:, None] + cols[None, :],
                    mask=real[:, None] & (cols < HEAD_DIM)[None, :], other=0.0)  # fmt: skip
        k_descale = 1.0
        v_descale = 1.0
        if E4M3_CACHE:
            k_descale = tl.load(k_descale_ptr + sequence * kd_sequence + head_kv * kd_head)
            v_descale = tl.load(v_descale_ptr + sequence * vd_sequence + head_kv * vd_head)
        if SOFTCAP:
            tanh_scale = tanh_scale * k_descale
        else:
            scale_log2 = scale_log2 * k_descale
        if not USE_TMA:
            k_source += head_kv.to(tl.int64) * k_head
            v_source += head_kv.to(tl.int64) * v_head
        acc, row_max, row_sum = _attend(
            q, k_source, k_page, k_slot, v_source, v_page, v_slot,
            table_ptr + sequence.to(tl.int64) * table_row, head_kv, tile * QUERIES, seqlen_q,
            seqlen_k, queries, window_left, window_right, scale_log2, tanh_scale,
            HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, LEFT, RIGHT, SOFTCAP, PAGE_SIZE, USE_TMA,
            BLOCK_M, BLOCK_N, QUERIES)  # fmt: skip
        if SINKS:
            row_max, row_sum, acc = _with_sinks(row_max, row_sum, acc, sinks_ptr + row_heads, real)
        _store(acc, row_max, row_sum, v_descale, out_ptr, o_row, o_head, lse_ptr, rows,
               first_row + queries, row_heads, real, HEAD_DIM_V, PAD_DV)  # fmt: skip


@triton.jit
def _tile_of_program(num_tiles, num_heads, section_heads):
    """Returns (tile, head) of this program.

    Heads are worked on section by section. Inside a section the last tiles come first: of a
    sequence under a causal mask, they have most keys.
    """
    program = tl.program_id(0)
    section = program // (num_tiles * section_heads)
    first_head = section * section_heads
    heads_here = tl.minimum(num_heads - first_head, section_heads)
    rest = program - first_head * num_tiles
    return num_tiles - 1 - rest // heads_here, first_head + rest % heads_here


# ----------------------------------------------------------------------------- the keys of a tile


@triton.jit
def _attend(
    q, k_source, k_page, k_slot, v_source, v_page, v_slot, table_ptr, head_kv, first_query,
    seqlen_q, seqlen_k, queries, window_left, window_right, scale_log2, tanh_scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, PAGE_SIZE: tl.constexpr,
    USE_TMA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Attends a tile's rows to all keys that they see. Returns (acc, row_max, row_sum); row_max is
    in log2 units.

    The blocks that every row sees whole run in a loop without masks; those before it, which a
    window cuts, and those after it are masked.
    """
    diagonal = seqlen_k - seqlen_q + queries
    first = seqlen_k - seqlen_q + first_query  # the diagonal of the first row, and of the last one
    last = seqlen_k - seqlen_q + tl.minimum(first_query + QUERIES, seqlen_q) - 1
    begin = 0
    begin_clear = 0
    end_clear = seqlen_k // BLOCK_N * BLOCK_N
    end = seqlen_k
    if RIGHT:
        end = tl.minimum(tl.maximum(last + window_right + 1, 0), seqlen_k)
        end_clear = tl.minimum(tl.maximum(first + window_right + 1, 0), seqlen_k)
        end_clear = end_clear // BLOCK_N * BLOCK_N
    if LEFT:
        begin = tl.maximum(first - window_left, 0) // BLOCK_N * BLOCK_N
        begin_clear = tl.maximum(last - window_left, 0) + BLOCK_N - 1
        begin_clear = begin_clear // BLOCK_N * BLOCK_N
    acc = tl.zeros([BLOCK_M, PAD_DV], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    if LEFT:
        acc, row_max, row_sum = _key_blocks(
            acc, row_max, row_sum, q, k_source, k_page, k_slot, v_source, v_page, v_slot,
            table_ptr, head_kv, begin, tl.minimum(begin_clear, end), diagonal,
            window_left, window_right, scale_log2, tanh_scale,
            HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, LEFT, RIGHT, SOFTCAP, PAGE_SIZE, USE_TMA,
            BLOCK_N, True)  # fmt: skip
    acc, row_max, row_sum = _key_blocks(
        acc, row_max, row_sum, q, k_source, k_page, k_slot, v_source, v_page, v_slot,
        table_ptr, head_kv, begin_clear, end_clear, diagonal,
        window_left, window_right, scale_log2, tanh_scale,
        HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, LEFT, RIGHT, SOFTCAP, PAGE_SIZE, USE_TMA,
        BLOCK_N, False)  # fmt: skip
    acc, row_max, row_sum = _key_blocks(
        acc, row_max, row_sum, q, k_source, k_page, k_slot, v_source, v_page, v_slot,
        table_ptr, head_kv, tl.maximum(begin_clear, end_clear), end, diagonal,
        window_left, window_right, scale_log2, tanh_scale,
        HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, LEFT, RIGHT, SOFTCAP, PAGE_SIZE, USE_TMA,
        BLOCK_N, True)  # fmt: skip
    return acc, row_max, row_sum


@triton.jit
def _key_blocks(
    acc, row_max, row_sum, q, k_source, k_page, k_slot, v_source, v_page, v_slot, table_ptr,
    head_kv, key_begin, key_end, diagonal, window_left, window_right, scale_log2, tanh_scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, PAGE_SIZE: tl.constexpr,
    USE_TMA: tl.constexpr, BLOCK_N: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Attends to the keys [key_begin, key_end): the inner loop. Returns the updated (acc, row_max,
    row_sum). What lies from `key_end` on in the last block may be anything.

    A step loads the page numbers of the next one: so the copies of K and V wait for none.
    """
    next_pages = _pages(table_ptr, key_begin, key_end, PAGE_SIZE, BLOCK_N)
    for start in tl.range(key_begin, key_end, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        keys = start + tl.arange(0, BLOCK_N)
        pages = next_pages
        next_pages = _pages(table_ptr, start + BLOCK_N, key_end, PAGE_SIZE, BLOCK_N)
        k = _load_keys(k_source, k_page, k_slot, pages, head_kv, start, keys, key_end,
                       HEAD_DIM, PAD_D, PAGE_SIZE, USE_TMA, BLOCK_N, MASK)  # fmt: skip
        s = tl.dot(q, k.to(q.dtype).T)  # (BLOCK_M, BLOCK_N), not yet scaled
        if SOFTCAP:
            s = _tanh(s * tanh_scale)
        if MASK:
            sees = (keys < key_end)[None, :]
            if RIGHT:
                sees = sees & (keys[None, :] <= diagonal[:, None] + window_right)
            if LEFT:
                sees = sees & (keys[None, :] >= diagonal[:, None] - window_left)
            s = tl.where(sees, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale_log2)
        shift = new_max
        if MASK:  # a row that has seen no key yet: -inf - -inf would be NaN
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(s * scale_log2 - shift[:, None])
        row_scale = tl.exp2(row_max - shift)
        row_sum = row_sum * row_scale + tl.sum(p, 1)
        row_max = new_max
        acc = acc * row_scale[:, None]
        v = _load_keys(v_source, v_page, v_slot, pages, head_kv, start, keys, key_end,
                       HEAD_DIM_V, PAD_DV, PAGE_SIZE, USE_TMA, BLOCK_N, MASK)  # fmt: skip
        if MASK and USE_TMA:  # TMA copies the slots from `key_end` on too, and 0 * NaN is NaN
            v = tl.where((keys < key_end)[:, None], v, 0.0)
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc)
    return acc, row_max, row_sum


@triton.jit
def _store(
    acc, row_max, row_sum, v_descale, out_ptr, o_row, o_head, lse_ptr, rows, own_rows, row_heads,
    real, HEAD_DIM_V: tl.constexpr, PAD_DV: tl.constexpr,
):  # fmt: skip
    """Writes the output and the logsumexp of a tile's rows. Of a row that saw no key, they are 0
    and -inf."""
    seen = row_sum > 0.0
    out = acc / tl.where(seen, row_sum, 1.0)[:, None] * v_descale
    lse = tl.where(seen, (row_max + tl.log2(row_sum)) * LN_2, float("-inf"))
    tl.store(lse_ptr + row_heads.to(tl.int64) * rows + own_rows, lse, mask=real)
    places = own_rows.to(tl.int64) * o_row + row_heads.to(tl.int64) * o_head
    cols = tl.arange(0, PAD_DV)
    tl.store(out_ptr + places[:, None] + cols[None, :], out.to(out_ptr.dtype.element_ty),
             mask=real[:, None] & (cols < HEAD_DIM_V)[None, :])  # fmt: skip


# ------------------------------------------------------------------------------------------ pages


@triton.jit
def _pages(table_ptr, start, key_end, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Returns the number of the page that has the block of keys from `start` on, or one number for
    each key. No entry of the table is read for keys from `key_end` on."""
    if PAGE_SIZE % BLOCK_N == 0:
        pages = tl.load(table_ptr + start // PAGE_SIZE, mask=start < key_end, other=0)
    else:
        keys = start + tl.arange(0, BLOCK_N)
        pages = tl.load(table_ptr + keys // PAGE_SIZE, mask=keys < key_end, other=0)
    return pages


@triton.jit
def _load_keys(
    source, page_stride, slot_stride, pages, head, start, keys, key_end,
    WIDTH: tl.constexpr, PAD: tl.constexpr, PAGE_SIZE: tl.constexpr, USE_TMA: tl.constexpr,
    BLOCK_N: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Loads BLOCK_N rows of K or V: (BLOCK_N, PAD), zero beyond WIDTH.

    `source` is a TMA descriptor with USE_TMA, else a pointer to the head in the first page; rows
    from `key_end` on are zero then.
    """
    if USE_TMA:
        block = source.load([pages, head, start % PAGE_SIZE, 0]).reshape([BLOCK_N, PAD])
    else:
        rows = pages.to(tl.int64) * page_stride + keys % PAGE_SIZE * slot_stride
        cols = tl.arange(0, PAD)
        where = source + rows[:, None] + cols[None, :]
        real = (keys < key_end)[:, None]
        if MASK and PAD != WIDTH:
            block = tl.load(where, mask=real & (cols < WIDTH)[None, :], other=0.0)
        elif MASK:
            block = tl.load(where, mask=real, other=0.0)
        elif PAD != WIDTH:
            block = tl.load(where, mask=(cols < WIDTH)[None, :], other=0.0)
        else:
            block = tl.load(where)
    return block


# ----------------------------------------------------------------------------------------- scores


@triton.jit
def _tanh(x):
    """Returns tanh(x) by exp2: Triton has no tanh that both compiles and is interpreted."""
    power = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    size = (1.0 - power) / (1.0 + power)
    return tl.where(x < 0.0, -size, size)


@triton.jit
def _with_sinks(row_max, row_sum, acc, sinks_ptr, real):
    """Returns (row_max, row_sum, acc) of rows with one more logit each, which has no value."""
    sink = tl.load(sinks_ptr, mask=real, other=float("-inf")) * LOG2_E
    new_max = tl.maximum(row_max, sink)
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    row_scale = tl.exp2(row_max - shift)
    return new_max, row_sum * row_scale + tl.exp2(sink - shift), acc * row_scale[:, None]
