"""Which program works on which tile: made on the host, read by persistent kernels."""

import heapq

import numpy as np
import torch
import triton

_TILE_COST = 0.5
"""What a tile costs beside its blocks, in blocks: queries in, output out."""


def tables(workload, config, device):
    """(schedule, tiles): the tiles of program i are rows schedule[i] to schedule[i + 1] of `tiles`,
    each (batch, query head, KV head, first query row); one row more is read, and not used."""
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    lists = schedule(workload, config, sms)
    ends = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    order = np.array([tile for tiles in lists for tile in tiles] + [0])
    head, tile = np.divmod(order, triton.cdiv(workload.seqlen_q, 64 * config["WARPGROUPS"]))
    batch, head = np.divmod(head, workload.heads)
    rows = np.stack([batch, head, head // workload.group, tile * 64 * config["WARPGROUPS"]], axis=1)
    return (
        torch.from_numpy(ends).to(device),
        torch.from_numpy(rows.astype(np.int32)).to(device),
    )


def schedule(workload, config, sms):
    """The tiles of each program: lists of tile + tiles per head * (query heads of all batches).

    Longest processing time first (Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J.
    Appl. Math. 17(2), 1969) inside sections of heads whose K and V the L2 cache holds together.
    """
    rows = 64 * config["WARPGROUPS"]
    tiles, heads = triton.cdiv(workload.seqlen_q, rows), workload.batch * workload.heads
    programs = min(tiles * heads, sms)
    lists = [[] for _ in range(programs)]
    if not workload.causal:
        programs = triton.cdiv(tiles * heads, triton.cdiv(tiles * heads, programs))
        return [list(range(i, tiles * heads, programs)) for i in range(programs)]
    element = 1 if workload.dtype == "e4m3" else 2
    kv_bytes = element * workload.seqlen_k * (workload.head_dim + workload.head_dim_v)
    section = max(1, int(config["SECTION_MB"] * 2**20 / kv_bytes)) * workload.group
    cost = [_tile_cost(workload, config, rows, tile) for tile in range(tiles)]
    order = sorted(range(tiles), key=lambda tile: -cost[tile])
    heap = [(0.0, i) for i in range(programs)]
    for start in range(0, heads, section):
        for tile in order:
            for head in range(start, min(heads, start + section)):
                busy, i = heapq.heappop(heap)
                lists[i].append(tile + head * tiles)
                heapq.heappush(heap, (busy + cost[tile], i))
    return lists


def _tile_cost(workload, config, rows, tile):
    """Blocks of a tile, and what it costs beside them."""
    n, offset = config["BLOCK_N"], workload.seqlen_k - workload.seqlen_q
    seen = min(rows * (tile + 1), workload.seqlen_q) + offset
    first = 0
    if workload.window is not None:
        first = max(0, rows * tile + offset - workload.window + 1) // n
    return _TILE_COST + max(1, triton.cdiv(max(seen, 1), n) - first)
