"""The tiles that a persistent CTA works on: from a table, or from a list with a tile counter."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.api import aggregate, barrier
from tunefa.kernels.gluon.host.packed_tiles import COLUMNS

FIELDS = gl.constexpr(COLUMNS)
"""Fields of a tile of packed sequences."""
WORK_INFO_STAGES = gl.constexpr(4)
"""Tiles that the work info has room for: at least one more than there are stages of queries."""
_LANES = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))


@gluon.jit
def first_and_count(schedule):
    """Returns where the tiles of this CTA begin in the table, and how many there are."""
    cta = gl.program_id(0)
    first = gl.load(schedule + cta)
    return first, gl.load(schedule + cta + 1) - first


@aggregate
class Tile:
    """The query rows of one head from `row` on, and where they and their keys are in memory."""

    batch: gl.tensor
    head: gl.tensor
    head_kv: gl.tensor
    row: gl.tensor
    q_begin: gl.tensor
    seqlen_q: gl.tensor
    k_begin: gl.tensor
    seqlen_k: gl.tensor
    VARLEN: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, of_heads, row, queries, keys, VARLEN):
        self.batch, self.head, self.head_kv = of_heads
        self.row = row
        self.q_begin, self.seqlen_q = queries
        self.k_begin, self.seqlen_k = keys
        self.VARLEN = gl.constexpr(VARLEN)

    @gluon.jit
    def queries(self):
        """Returns the place of its queries, for `tma_coordinates`."""
        place = (self.batch, self.head)
        if self.VARLEN:
            place = (self.head, self.q_begin, self.seqlen_q)
        return place

    @gluon.jit
    def keys(self):
        """Returns the place of its keys, for `tma_coordinates`."""
        place = (self.batch, self.head_kv)
        if self.VARLEN:
            place = (self.head_kv, self.k_begin, self.seqlen_k)
        return place

    @gluon.jit
    def exists(self):
        """Returns whether it is a tile and not the end of the list of packed sequences' tiles."""
        return self.row >= 0


@gluon.jit
def scheduled(a, tiles, i):
    """Returns tile number i. All its fields are in memory, so that the device divides nothing."""
    if a.VARLEN:
        entry = tiles + i * FIELDS
        of_heads = (0, gl.load(entry), gl.load(entry + 1))
        queries = (gl.load(entry + 3), gl.load(entry + 4))
        keys = (gl.load(entry + 5), gl.load(entry + 6))
        tile = Tile(of_heads, gl.load(entry + 2), queries, keys, True)
    else:
        entry = tiles + i * 4
        of_heads = (gl.load(entry), gl.load(entry + 1), gl.load(entry + 2))
        everything = (0, 0)
        tile = Tile(of_heads, gl.load(entry + 3), everything, everything, False)
    return tile


# ------------------------------------------------------- the tile counter, and the work info


@gluon.jit
def advance_tile_counter(schedule):
    """Producer: starts to take the next tile from the list; `next_tile_number` waits for it."""
    lanes, one = gl.arange(0, 32, _LANES), gl.full([32], 1, gl.int32, _LANES)
    return gl.atomic_add(schedule + lanes, one, mask=lanes == 0, sem="relaxed")


@gluon.jit
def next_tile_number(counted):
    """Returns the tile that `advance_tile_counter` took. The counter starts behind the first tiles,
    as each CTA begins with the tile of its own number."""
    counted = gl.where(gl.arange(0, 32, _LANES) == 0, counted, 0)
    return gl.num_programs(0) + gl.max(counted, 0)


@gluon.jit
def listed(a, pipelines, number, total):
    """Returns tile number `number` of the list, or the entry that ends it after `total` tiles."""
    return scheduled(a, pipelines.tiles, gl.minimum(number, total))


@gluon.jit
def new_work_info():
    """Allocates the shared memory in which the producer passes tiles to the consumers."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return gl.allocate_shared_memory(gl.int32, [WORK_INFO_STAGES, FIELDS], layout)


@gluon.jit
def write_work_info(pipelines, work_idx, tile):
    """Producer: writes tile number `work_idx` of this CTA to the work info.

    It does so before it loads the tile's queries: their barrier tells the consumers that both are
    there. Consumers have read what was there before, as they have released its queries.
    """
    values = (
        tile.head, tile.head_kv, tile.row, tile.q_begin, tile.seqlen_q, tile.k_begin, tile.seqlen_k
    )  # fmt: skip
    layout: gl.constexpr = _in_each_thread(1)
    fields = gl.full([FIELDS], 0, gl.int32, layout)
    for i in gl.static_range(len(values)):
        fields = gl.where(gl.arange(0, FIELDS, layout) == i, values[i], fields)
    pipelines.work_info.index(work_idx % WORK_INFO_STAGES).store(fields)
    barrier()  # one thread arrives at the queries' barrier for the whole warp


@gluon.jit
def read_work_info(pipelines, work_idx):
    """Consumer: returns tile number `work_idx` of this CTA, whose queries have arrived."""
    fields = pipelines.work_info.index(work_idx % WORK_INFO_STAGES).load(_in_each_thread(4))
    of_heads = (0, _field(fields, 0), _field(fields, 1))
    queries = (_field(fields, 3), _field(fields, 4))
    keys = (_field(fields, 5), _field(fields, 6))
    return Tile(of_heads, _field(fields, 2), queries, keys, True)


@gluon.jit
def _field(fields, i: gl.constexpr):
    """Returns one of the fields, all of which each thread has: this takes no instruction."""
    return gl.sum(gl.where(gl.arange(0, FIELDS, fields.type.layout) == i, fields, 0), 0)


@gluon.constexpr_function
def _in_each_thread(warps):
    """The layout in which each thread has all fields of a tile."""
    return gl.BlockedLayout([COLUMNS], [32], [warps], [0])
