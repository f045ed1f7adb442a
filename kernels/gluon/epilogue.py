"""The way out of 64 finished rows of the attention forward: logsumexp and output."""

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from tunefa.kernels.gluon.api import barrier, copy_out
from tunefa.kernels.gluon.layouts import as_matrix, row_layout, wgmma_layout
from tunefa.kernels.gluon.pipeline import tma_coordinates
from tunefa.kernels.gluon.softmax import whole_row_sum

LN_2 = gl.constexpr(math.log(2.0))


@gluon.jit
def write_lse(a, lse_ptr, row, row_max, row_sum):
    """Writes logsumexp of 64 rows; returns 1 / row_sum, 0 for a row that saw no key."""
    row_sum = whole_row_sum(row_sum, a.BLOCK_N, a.DEFER_ROW_SUM)
    seen = row_sum != 0.0  # NaN stays NaN
    rows, heads = a.rows(row, row_layout(a.BLOCK_N))
    lse = gl.where(seen, (row_max + gl.log2(row_sum)) * LN_2, -float("inf"))
    if a.PACK_GQA > 1:
        lse_ptr += heads * a.seqlen_q
    gl.store(lse_ptr + rows, lse, mask=rows < a.seqlen_q)
    return gl.where(seen, 1.0 / row_sum, 0.0)


@gluon.jit
def write_out(a, out, pipelines, q_stage, o_descs, o_tiles, place, row, WG: gl.constexpr):
    """Sends 64 finished rows to memory by TMA, which leaves out the rows beyond seqlen_q.

    Without EPILOGUE_SUBTILE they leave through the shared memory of their queries, which were read
    for the last time. With one stage of queries the stage is released here, with more of them
    during the next tile, when the output has left.
    """
    out, rest = out
    q, v = pipelines.q, pipelines.v
    o_desc, o_rest_desc = o_descs
    dtype: gl.constexpr = o_desc.dtype
    COLUMNS: gl.constexpr = out.shape[1]
    if a.EPILOGUE_SUBTILE == 0:
        q.matrix(q_stage).store(out.to(dtype))
        if v.REST:
            q.rest(q_stage).store(rest.to(dtype))
        fence_async_shared()
        copy_out(o_desc, tma_coordinates(place, row, 0), q.tiles.index(q_stage))
        if v.REST:
            copy_out(o_rest_desc, tma_coordinates(place, row, COLUMNS), q.rests.index(q_stage))
        if a.Q_STAGES == 1:
            tma.store_wait(0)
            q.release(q_stage)
    elif a.EPILOGUE_SUBTILE == 1:
        tile, rest_tile = o_tiles
        _send(out.to(dtype), o_desc, tile.index(WG), place, row, 0)
        if v.REST:
            _send(rest.to(dtype), o_rest_desc, rest_tile.index(WG), place, row, COLUMNS)
    else:
        half: gl.constexpr = wgmma_layout(COLUMNS // 2)
        left, right = out.to(dtype).reshape([64, 2, COLUMNS // 2]).permute((0, 2, 1)).split()
        tile, _ = o_tiles
        _send(gl.convert_layout(left, half), o_desc, tile.index(WG), place, row, 0)
        right = gl.convert_layout(right, half)
        _send(right, o_desc, tile.index(WG), place, row, COLUMNS // 2)


@gluon.jit
def _send(part, o_desc, tile, place, row, column):
    """Sends columns of the output through a buffer, once its former content has left."""
    tma.store_wait(0)
    barrier()
    as_matrix(tile).store(part)
    fence_async_shared()
    copy_out(o_desc, tma_coordinates(place, row, column), tile)
