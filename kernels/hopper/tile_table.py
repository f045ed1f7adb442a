"""The table of which CTA works on which tile: made on the host, read by persistent kernels."""

import functools
import heapq
import math

import numpy as np

from tunefa.spec.rounding import ceil_div, round_up

_TILE_COST = 0.5
"""What a tile costs beside its blocks, in blocks: queries in, output out."""
_UNEVEN = 1.03
"""How much longer than with larger sections the last CTA may be busy: sections keep K and V in the
L2, which is worth some percent."""
_MOST_MB = 32
"""The largest sections that were measured."""
_FEW_TILES = 16
"""Tiles of each CTA up to which a table is changed for a workload: with more of them CTAs end at
the same time in any case, and tables take longer to make."""


def tables(spec, device):
    """Returns (schedule, tiles): the tiles of CTA i are rows schedule[i] to schedule[i + 1] of
    `tiles`, each (batch, first query head, KV head, first query row). One row more is read, and not
    used.

    Where the tiles of a KV head do not fill its clusters, the last ones begin behind the last query
    row.
    """
    workload, config = spec.workload, spec.config
    return spec.table(_key(workload, config, spec.sms), lambda: _tables(spec, device))


def _key(workload, config, sms):
    """Returns what decides the tables: workloads with other lengths may need the same ones."""
    decides = _decides(workload, config, sms)
    if workload.band == (None, None):
        return decides
    return *decides, _section(workload, config, config["L2_SECTION_MB"])


def _decides(workload, config, sms):
    """Returns what decides the tiles, what they cost, and how many programs there are."""
    rows, n = _rows(config), config["BLOCK_N"]
    decides = [sms, rows, ceil_div(workload.seqlen_q, rows), config.get("PACK_GQA", 1)]
    decides += [_cluster_size(config), workload.batch, workload.heads, workload.heads_kv]
    if workload.band != (None, None):
        # Blocks of n keys are counted from starts that are multiples of this number, and an offset.
        step = math.gcd(rows, n)
        window_right, window_keys = edges(workload)
        offset = workload.seqlen_k - workload.seqlen_q + window_right
        decides += [n, ceil_div(offset, step), ceil_div(workload.seqlen_k, n)]
        decides += [None if window_keys is None else (offset - window_keys + 1) // step]
    return tuple(decides)


def _tables(spec, device):
    """Returns new `tables`."""
    import torch  # importing it takes seconds, and compiling does not need it

    workload, config = spec.workload, spec.config
    lists = schedule(workload, config, spec.sms)
    ends = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    order = np.array([tile for tiles in lists for tile in tiles] + [0])
    rows, packed = _rows(config), config.get("PACK_GQA", 1)
    tiles = ceil_div(workload.seqlen_q, rows)
    if _cluster_size(config) == 1:
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
    """Returns the tiles of each CTA: a list of tile + tiles per head * head for each, where heads
    are the packs of query heads of all batches.

    In clusters, the CTAs of one cluster work on tiles of one KV head at the same time. Tiles are
    then tile + tiles per KV head * KV head, with the KV heads of all batches. The tiles of a KV
    head are in the order of their rows, then of their query heads, so that the tiles of a cluster
    see the same keys, or the last one some more; there are as many as fill whole clusters. The CTAs
    of a cluster are neighbours, with lists of one length.
    """
    cluster, (shares, _) = _cluster_size(config), _shares(workload, config, sms)
    if cluster == 1:
        return shares
    return [
        [item * cluster + rank for item in items] for items in shares for rank in range(cluster)
    ]


def specialize(workload, config, sms):
    """Returns what to change in a config that is best for another workload: {"L2_SECTION_MB": 16},
    say, where with the config's sections some CTAs would still be busy when most have finished.
    """
    sections = [config["L2_SECTION_MB"]]
    while 2 * sections[-1] <= _MOST_MB:
        sections.append(2 * sections[-1])
    tiles = ceil_div(workload.seqlen_q, _rows(config)) * workload.batch * workload.heads
    if workload.varlen or workload.band == (None, None) or tiles > _FEW_TILES * sms:
        return {}
    sizes = tuple([_section(workload, config, mb) for mb in sections])
    if sizes[0] == sizes[-1]:
        return {}  # larger sections are no other ones
    best = _best_section(_Asked(workload, config, (*_decides(workload, config, sms), sizes)))
    return {"L2_SECTION_MB": sections[best]} if best else {}


class _Asked:
    """A workload and a config, equal to all others with the same key."""

    def __init__(self, workload, config, key):
        self.workload, self.config, self.key = workload, config, key

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return self.key == other.key


@functools.lru_cache(maxsize=4096)  # the next lengths have the same tiles and sections
def _best_section(asked):
    """Returns the place of the best of an `_Asked`'s sections, whose sizes are last in its key; 0
    for the config's own."""
    workload, config = asked.workload, asked.config
    sms, *_, sizes = asked.key
    costs, heads = sorted(_costs(workload, config), reverse=True), _heads(workload, config)
    if costs[0] == costs[-1]:
        return 0  # no tile is longer than another
    workers = min(len(costs) * heads, sms // _cluster_size(config))
    least = max(costs[0], sum(costs) * heads / workers)  # no schedule ends earlier
    busy = {sizes[0]: _longest(costs, heads, sizes[0], workers)}
    if busy[sizes[0]] <= _UNEVEN * least:
        return 0
    busy |= {size: _longest(costs, heads, size, workers) for size in {*sizes[1:]} - {sizes[0]}}
    longest = [busy[size] for size in sizes]
    return 0 if longest[0] <= _UNEVEN * min(longest) else longest.index(min(longest))


def _longest(costs, heads, section, workers):
    """Returns how long the last worker of `_shares` is busy. `costs` are in their order there."""
    busy, replace = [0.0] * workers, heapq.heapreplace
    for start in range(0, heads, section):
        width = min(section, heads - start)
        for cost in costs:
            for _ in range(width):
                replace(busy, busy[0] + cost)
    return max(busy)


def _shares(workload, config, sms):
    """Returns (which worker has which items, how long each is busy). A worker is a CTA, or a
    cluster of them; an item is a tile, or the tiles of a cluster.

    Items are item + items per head * head, where heads are those that `schedule` counts. Busy is in
    blocks, and empty where all tiles are alike.

    Longest processing time first (Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J.
    Appl. Math. 17(2), 1969) inside sections of heads whose K and V the L2 cache holds together.
    """
    costs = _costs(workload, config)
    items, heads = len(costs), _heads(workload, config)
    workers = min(items * heads, sms // _cluster_size(config))
    if workload.band == (None, None):
        workers = ceil_div(items * heads, ceil_div(items * heads, workers))
        return [list(range(i, items * heads, workers)) for i in range(workers)], []
    section = _section(workload, config, config["L2_SECTION_MB"])
    order = sorted(range(items), key=lambda item: -costs[item])
    lists = [[] for _ in range(workers)]
    heap = [(0.0, i) for i in range(workers)]
    for start in range(0, heads, section):
        for item in order:
            for head in range(start, min(heads, start + section)):
                busy, i = heap[0]
                lists[i].append(item + head * items)
                heapq.heapreplace(heap, (busy + costs[item], i))
    return lists, [busy for busy, _ in heap]


def _section(workload, config, mb):
    """Returns the heads of an L2 section of so many MiB, as `_shares` counts heads; at most all of
    them."""
    group = 1 if _cluster_size(config) > 1 else workload.group
    packed = config.get("PACK_GQA", 1)
    element = 1 if workload.dtype == "e4m3" else 2
    kv_bytes = element * workload.seqlen_k * (workload.head_dim + workload.head_dim_v)
    section = max(1, int(mb * 2**20 / kv_bytes)) * group // packed
    return min(section, _heads(workload, config))


def _heads(workload, config):
    """Returns the heads that `schedule` counts, of all batches."""
    group = 1 if _cluster_size(config) > 1 else workload.group
    return workload.batch * workload.heads_kv * group // config.get("PACK_GQA", 1)


def _costs(workload, config):
    """Returns what each item of a head costs, in blocks: a cluster takes as long as its last
    tile."""
    cluster, count = _cluster_size(config), ceil_div(workload.seqlen_q, _rows(config))
    tiles = range(count)
    if cluster > 1:
        ends = range(cluster - 1, _tiles_of_head_kv(workload, config, count), cluster)
        tiles = [min(end // workload.group, count - 1) for end in ends]
    return [_tile_cost(workload, config, _rows(config), tile) for tile in tiles]


def edges(workload):
    """Returns (window_right, window_keys). Row i sees the last window_keys keys (None: all) up to
    its last key, which is window_right keys beyond the bottom-right diagonal. Without a limit to
    the right, window_right is large enough that every row's last key is the last of all.
    """
    left, right = workload.band
    window_right = workload.seqlen_q - 1 if right is None else right
    return window_right, None if left is None else left + 1 + window_right


def _rows(config):
    """Returns the query rows of a tile."""
    return 64 * config["WARPGROUPS"] // config.get("PACK_GQA", 1)


def _cluster_size(config):
    """Returns how many CTAs share K and V."""
    return config.get("CLUSTER_SIZE", 1)


def _tiles_of_head_kv(workload, config, tiles):
    """Returns the tiles of a KV head in whole clusters; each of its query heads has `tiles`."""
    return round_up(workload.group * tiles, _cluster_size(config))


def _tile_cost(workload, config, rows, tile):
    """Returns the blocks of a tile, and what it costs beside them."""
    window_right, window_keys = edges(workload)
    n, offset = config["BLOCK_N"], workload.seqlen_k - workload.seqlen_q + window_right
    seen = min(min(rows * (tile + 1), workload.seqlen_q) + offset, workload.seqlen_k)
    first = 0
    if window_keys is not None:
        first = max(0, rows * tile + offset - window_keys + 1) // n
    return _TILE_COST + max(1, ceil_div(max(seen, 1), n) - first)
