"""The producer warp of the attention forward: it copies Q, K and V to shared memory by TMA."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.tiles import (
    advance_tile_counter,
    first_and_count,
    listed,
    next_tile_number,
    scheduled,
    write_work_info,
)


@gluon.jit
def producer(loads):
    """Loads, for each tile of this CTA, its queries, then K and V of its blocks, the last first.

    `loads` is (attention, pipelines, descriptors of q, of k and of v).
    """
    a, pipelines, descs = loads
    v = pipelines.v
    _, _, v_descs = descs
    loaded = 0  # blocks of keys, over all tiles
    if a.VARLEN:
        work_idx = 0
        total = gl.load(pipelines.schedule + 1)
        tile = listed(a, pipelines, gl.program_id(0), total)
        while tile.exists():
            counted = advance_tile_counter(pipelines.schedule)
            write_work_info(pipelines, work_idx, tile)
            loaded, keys, key = _load_tile(a, pipelines, tile, work_idx, loaded, descs)
            tile = listed(a, pipelines, next_tile_number(counted), total)
            v.load(loaded % v.num_stages, loaded // v.num_stages, v_descs, keys, key)
            loaded += 1
            work_idx += 1
        write_work_info(pipelines, work_idx, tile)  # the end of the list, which consumers wait for
        for wg in gl.static_range(a.WARPGROUPS):
            stage, uses = a.q_stage(work_idx, wg)
            pipelines.q.signal_end(stage, uses)
    else:
        first, count = first_and_count(pipelines.schedule)
        tile = scheduled(a, pipelines.tiles, first)
        for work_idx in range(0, count):
            here = tile
            tile = scheduled(a, pipelines.tiles, first + work_idx + 1)  # long before it is needed
            loaded, keys, key = _load_tile(a, pipelines, here, work_idx, loaded, descs)
            v.load(loaded % v.num_stages, loaded // v.num_stages, v_descs, keys, key)
            loaded += 1


@gluon.jit
def _load_tile(attention, pipelines, tile, work_idx, loaded, descs):
    """Loads a tile but for V of its first block of keys, which is the last to be used.

    Returns (blocks loaded, place of the keys, first key of the block whose V is missing).
    """
    q, k, v = pipelines.q, pipelines.k, pipelines.v
    q_descs, k_descs, v_descs = descs
    WARPGROUPS: gl.constexpr = attention.WARPGROUPS
    a, row = attention.for_tile(tile), tile.row
    queries, keys = tile.queries(), tile.keys()
    begin, end = a.blocks(row, a.ROWS * WARPGROUPS)
    for wg in gl.static_range(WARPGROUPS):
        stage, uses = attention.q_stage(work_idx, wg)
        q.load(stage, uses, q_descs, queries, row + a.ROWS * wg)
        if wg == 0:  # the first scores need only these queries and this block
            key = (end - 1) * attention.BLOCK_N
            k.load(loaded % k.num_stages, loaded // k.num_stages, k_descs, keys, key)
    for block in range(1, end - begin):
        key = (end - 1 - block) * attention.BLOCK_N
        before = key + attention.BLOCK_N
        if attention.LOAD_K_FIRST:
            k.load((loaded + 1) % k.num_stages, (loaded + 1) // k.num_stages, k_descs, keys, key)
            v.load(loaded % v.num_stages, loaded // v.num_stages, v_descs, keys, before)
        else:
            v.load(loaded % v.num_stages, loaded // v.num_stages, v_descs, keys, before)
            k.load((loaded + 1) % k.num_stages, (loaded + 1) // k.num_stages, k_descs, keys, key)
        loaded += 1
    return loaded, keys, begin * attention.BLOCK_N
