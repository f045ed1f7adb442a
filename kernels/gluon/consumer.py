"""A consumer warpgroup of the attention forward: it computes 64 rows of each tile of its CTA."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from tunefa.kernels.gluon.e4m3 import descale
from tunefa.kernels.gluon.epilogue import write_lse, write_out
from tunefa.kernels.gluon.key_blocks import first_block, skip, step
from tunefa.kernels.gluon.products import (
    as_operand,
    no_output,
    rescale_output,
    scale_output,
    start_outputs,
    wait_outputs,
)
from tunefa.kernels.gluon.tiles import first_and_count, read_work_info, scheduled


@gluon.jit
def consumer(work, WG: gl.constexpr):
    """Computes the rows of warpgroup WG in all tiles of this CTA.

    `work` is (attention, pipelines, outputs, descales): `outputs` are descriptors and buffers of
    the output, and lse; `descales` are those of q, k and v, and heads_kv.
    """
    a, pipelines, outputs, descales = work
    block = 0  # blocks that went through the pipelines, over all tiles
    if a.VARLEN:
        work_idx = 0
        tile = _wait_tile(a, pipelines, work_idx, WG)
        while tile.exists():
            block = _compute_tile(a, pipelines, tile, work_idx, block, outputs, descales, WG)
            work_idx += 1
            tile = _wait_tile(a, pipelines, work_idx, WG)
    else:
        first, count = first_and_count(pipelines.schedule)
        tile = scheduled(a, pipelines.tiles, first)
        for work_idx in range(0, count):
            here = tile
            tile = scheduled(a, pipelines.tiles, first + work_idx + 1)
            block = _compute_tile(a, pipelines, here, work_idx, block, outputs, descales, WG)
    tma.store_wait(0)


@gluon.jit
def _wait_tile(a, pipelines, work_idx, WG: gl.constexpr):
    """Returns tile number `work_idx` of this CTA, when its queries have arrived."""
    stage, uses = a.q_stage(work_idx, WG)
    pipelines.q.wait(stage, uses)
    return read_work_info(pipelines, work_idx)


@gluon.jit
def _compute_tile(
    attention, pipelines, tile, work_idx, block, outputs, descales, WG: gl.constexpr
):  # fmt: skip
    """Computes 64 rows of a tile from their queries to their output; returns the next block."""
    o_descs, o_tiles, lse_ptr = outputs
    q_descale, k_descale, v_descale, heads_kv = descales
    a = attention.for_tile(tile)
    if attention.E4M3:
        at = tile.batch * heads_kv + tile.head_kv
        a = attention.with_scale(descale(q_descale, at) * descale(k_descale, at))
    row = tile.row + a.ROWS * WG
    tile_begin, tile_end = a.blocks(tile.row, a.ROWS * a.WARPGROUPS)
    begin, end = a.blocks(row, a.ROWS)
    if a.CAUSAL:
        block = skip(pipelines, block, tile_end - end, WG)
    stage, uses = a.q_stage(work_idx, WG)
    if not a.VARLEN:  # `_wait_tile` has waited for them
        pipelines.q.wait(stage, uses)
    acc, row_max, row_sum, block = _attend(
        a, pipelines, work_idx, stage, block, row, begin, end, WG
    )
    if a.WINDOWED:
        block = skip(pipelines, block, begin - tile_begin, WG)
    rows_before = attention.rows_before(tile)
    share = write_lse(a, lse_ptr + rows_before, row, row_max, row_sum)
    if a.E4M3:
        share *= descale(v_descale, at)
    out = scale_output(acc, share, pipelines.v)
    write_out(a, out, pipelines, stage, o_descs, o_tiles, tile.queries(), row, WG)
    return block


@gluon.jit
def _attend(a, pipelines, work_idx, stage, block, row, begin, end, WG: gl.constexpr):
    """Attends with 64 rows to the key blocks [begin, end), from the last to the first.

    Returns (sum of p @ v, row_max, row_sum, next block).
    """
    q, k, v = pipelines.q, pipelines.k, pipelines.v
    k.wait(block % k.num_stages, block // k.num_stages)
    pipelines.scheduler.wait(block, WG)
    p32, row_max, row_sum = first_block(a, pipelines, stage, block, row, end - 1, WG)
    p = as_operand(p32, v)
    acc = no_output(v)
    if a.EPILOGUE_SUBTILE == 0 and a.Q_STAGES > 1:
        if work_idx > 0:  # the output of the tile before leaves through its queries' memory
            tma.store_wait(0)
            free, _ = a.q_stage(work_idx - 1, WG)
            q.release(free)
    block += 1
    state = (acc, p, row_max, row_sum, gl.full_like(row_max, 1.0))
    for j in range(0, end - 1 - begin):
        state = step(a, pipelines, stage, state, block, row, end - 2 - j, WG)
        block += 1
    if a.EPILOGUE_SUBTILE > 0:
        q.release(stage)
    acc, p, row_max, row_sum, row_scale = state
    before = block - 1
    v.wait(before % v.num_stages, before // v.num_stages)
    if a.RESCALE_THRESHOLD:
        acc = rescale_output(acc, row_scale, v)
    acc = wait_outputs(start_outputs(p, v, before % v.num_stages, acc), row_scale, v)
    v.release(before % v.num_stages)
    return acc, row_max, row_sum, block
