"""Which program works on which tile: made on the host, read by persistent kernels."""

import heapq

import numpy as np

_TILE_COST = 0.5
"""What a tile costs beside its blocks, in blocks: queries in, output out."""
_UNEVEN = 1.03
"""How much longer than with larger sections the last program may be busy: sections keep K and V in
the L2, which is worth some percent."""
_MOST_MB = 32
"""The largest sections that were measured."""
_FEW_TILES = 16
"""For each program: with more of them they end together in any case, and tables take longer."""


def tables(spec, device):
    """(schedule, tiles): the tiles of program i are rows schedule[i] to schedule[i + 1] of `tiles`,
    each (batch, first query head, KV head, first query row); one row more is read, and not used.

    A tile that a cluster has too much begins behind the last query row.
    """
    import torch  # takes seconds, which compiling does without

    workload, config = spec.workload, spec.config
    lists = schedule(workload, config, spec.sms)
    ends = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    order = np.array([tile for tiles in lists for tile in tiles] + [0])
    rows, packed = _rows(config), config.get("PACK_GQA", 1)
    tiles = _ceil_div(workload.seqlen_q, rows)
    if _cluster(config) == 1:
        head, tile = np.divmod(order, tiles)
    else:
        head_kv, tile = np.divmod(order, _tiles_of_head_kv(workload, config, tiles))
        tile, head = np.divmod(tile, workload.group)
        head += head_kv * workload.group
    batch, head = np.divmod(head * packed, workload.heads)
    table = np.stack([batch, head, head // workload.group, tile * rows], axis=1)
    return (
        torch.from_numpy(ends).to(device),
        torch.from_numpy(table.astype(np.int32)).to(device),
    )


def schedule(workload, config, sms):
    """The tiles of each program: lists of tile + tiles per head * (packs of query heads of all
    batches).

    With a CLUSTER_SIZE of programs, which work on tiles of one KV head at the same time, these are
    tile + tiles per KV head * (KV heads of all batches). A KV head's are in order of their rows,
    then of query heads, so that those of a cluster see the same keys, or the last some more; they
    are made up to whole clusters. Programs of a cluster are neighbours, with lists of one length.
    """
    cluster, (shares, _) = _cluster(config), _shares(workload, config, sms)
    if cluster == 1:
        return shares
    return [
        [turn * cluster + rank for turn in turns] for turns in shares for rank in range(cluster)
    ]


def specialize(workload, config, sms):
    """What to change in a config that is best for another workload: {"L2_SECTION_MB": 16}, say,
    where with the config's sections some programs would still be busy when most are done.
    """
    sections = [config["L2_SECTION_MB"]]
    while 2 * sections[-1] <= _MOST_MB:
        sections.append(2 * sections[-1])
    tiles = _ceil_div(workload.seqlen_q, _rows(config)) * workload.batch * workload.heads
    if workload.varlen or workload.band == (None, None) or tiles > _FEW_TILES * sms:
        return {}
    longest = [max(_shares(workload, {**config, "L2_SECTION_MB": mb}, sms)[1]) for mb in sections]
    if longest[0] <= _UNEVEN * min(longest):
        return {}
    return {"L2_SECTION_MB": sections[longest.index(min(longest))]}


def _shares(workload, config, sms):
    """(who works on what, for how long): for each program, or cluster of them, a list of
    turn + turns per head * head, where heads are those that `schedule` counts, and the blocks of
    all its turns; none where all tiles are alike.

    Longest processing time first (Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J.
    Appl. Math. 17(2), 1969) inside sections of heads whose K and V the L2 cache holds together.
    """
    cluster, count = _cluster(config), _ceil_div(workload.seqlen_q, _rows(config))
    tiles = range(count)  # what each turn costs as much as
    if cluster > 1:
        ends = range(cluster - 1, _tiles_of_head_kv(workload, config, count), cluster)
        tiles = [min(turn // workload.group, count - 1) for turn in ends]
    turns, group = len(tiles), 1 if cluster > 1 else workload.group
    packed = config.get("PACK_GQA", 1)
    heads = workload.batch * workload.heads_kv * group // packed
    workers = min(turns * heads, sms // cluster)
    lists = [[] for _ in range(workers)]
    if workload.band == (None, None):
        workers = _ceil_div(turns * heads, _ceil_div(turns * heads, workers))
        return [list(range(i, turns * heads, workers)) for i in range(workers)], []
    element = 1 if workload.dtype == "e4m3" else 2
    kv_bytes = element * workload.seqlen_k * (workload.head_dim + workload.head_dim_v)
    section = max(1, int(config["L2_SECTION_MB"] * 2**20 / kv_bytes)) * group // packed
    cost = [_tile_cost(workload, config, _rows(config), tile) for tile in tiles]
    order = sorted(range(turns), key=lambda turn: -cost[turn])
    heap = [(0.0, i) for i in range(workers)]
    for start in range(0, heads, section):
        for turn in order:
            for head in range(start, min(heads, start + section)):
                busy, i = heapq.heappop(heap)
                lists[i].append(turn + head * turns)
                heapq.heappush(heap, (busy + cost[turn], i))
    return lists, [busy for busy, _ in heap]


def edges(workload):
    """(ahead, window): how far beyond the bottom-right diagonal the last key of a row lies, and how
    many keys back from there it sees, None for all; the last of all keys where there is no limit.
    """
    left, right = workload.band
    ahead = workload.seqlen_q - 1 if right is None else right
    return ahead, None if left is None else left + 1 + ahead


def _rows(config):
    """Query rows of a tile."""
    return 64 * config["WARPGROUPS"] // config.get("PACK_GQA", 1)


def _cluster(config):
    """Programs that share K and V."""
    return config.get("CLUSTER_SIZE", 1)


def _tiles_of_head_kv(workload, config, tiles):
    """Tiles of a KV head, whose query heads have so many each, in whole clusters."""
    return _ceil_div(workload.group * tiles, _cluster(config)) * _cluster(config)


def _tile_cost(workload, config, rows, tile):
    """Blocks of a tile, and what it costs beside them."""
    ahead, window = edges(workload)
    n, offset = config["BLOCK_N"], workload.seqlen_k - workload.seqlen_q + ahead
    seen = min(min(rows * (tile + 1), workload.seqlen_q) + offset, workload.seqlen_k)
    first = 0
    if window is not None:
        first = max(0, rows * tile + offset - window + 1) // n
    return _TILE_COST + max(1, _ceil_div(max(seen, 1), n) - first)


def _ceil_div(a, b):
    return -(-a // b)
