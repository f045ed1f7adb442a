"""Which tiles a persistent program works on: those of a table, or those it draws from a list."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.api import aggregate, barrier
from tunefa.kernels.gluon.packed_tiles import COLUMNS

FIELDS = gl.constexpr(COLUMNS)
"""Of a tile of packed sequences."""
PLACES = gl.constexpr(4)
"""Of a tray: at least one more than there are stages of queries."""
_LANES = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))


@gluon.jit
def first_and_count(schedule):
    """Where the tiles of this program begin in the schedule, and how many there are."""
    program = gl.program_id(0)
    first = gl.load(schedule + program)
    return first, gl.load(schedule + program + 1) - first


@aggregate
class Tile:
    """Query rows of one head, from `row` on, and where they and their keys are."""

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
        """The place of its queries, for `at`."""
        place = (self.batch, self.head)
        if self.VARLEN:
            place = (self.head, self.q_begin, self.seqlen_q)
        return place

    @gluon.jit
    def keys(self):
        """The place of its keys, for `at`."""
        place = (self.batch, self.head_kv)
        if self.VARLEN:
            place = (self.head_kv, self.k_begin, self.seqlen_k)
        return place

    @gluon.jit
    def exists(self):
        """Whether it is one: what ends the list of packed sequences' tiles is not."""
        return self.row >= 0


@gluon.jit
def scheduled(a, tiles, i):
    """Tile number i: no division on the device."""
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


# ------------------------------------------------------------------------------ drawn from a list


@gluon.jit
def draw(schedule):
    """Producer: starts to take the number of a tile that nobody has; `drawn` waits for it."""
    lanes, one = gl.arange(0, 32, _LANES), gl.full([32], 1, gl.int32, _LANES)
    return gl.atomic_add(schedule + lanes, one, mask=lanes == 0, sem="relaxed")


@gluon.jit
def drawn(number):
    """What `draw` took. The first numbers are not drawn: each program begins with its own."""
    number = gl.where(gl.arange(0, 32, _LANES) == 0, number, 0)
    return gl.num_programs(0) + gl.max(number, 0)


@gluon.jit
def listed(a, pipes, number, total):
    """Tile of the list, or what ends it after `total`."""
    return scheduled(a, pipes.tiles, gl.minimum(number, total))


@gluon.jit
def new_tray():
    """Shared memory in which tiles go from the producer, who draws them, to the consumers."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return gl.allocate_shared_memory(gl.int32, [PLACES, FIELDS], layout)


@gluon.jit
def hand(pipes, turn, tile):
    """Producer: lays the tile of a turn on the tray before its queries set out, whose barrier tells
    the consumers of both. What lay there has been read: they have freed its queries."""
    values = (
        tile.head, tile.head_kv, tile.row, tile.q_begin, tile.seqlen_q, tile.k_begin, tile.seqlen_k
    )  # fmt: skip
    layout: gl.constexpr = _in_each_thread(1)
    fields = gl.full([FIELDS], 0, gl.int32, layout)
    for i in gl.static_range(len(values)):
        fields = gl.where(gl.arange(0, FIELDS, layout) == i, values[i], fields)
    pipes.tray.index(turn % PLACES).store(fields)
    barrier()  # one thread says for all that it is there


@gluon.jit
def handed(pipes, turn):
    """Consumer: the tile of a turn whose queries are there."""
    fields = pipes.tray.index(turn % PLACES).load(_in_each_thread(4))
    of_heads = (0, _field(fields, 0), _field(fields, 1))
    queries = (_field(fields, 3), _field(fields, 4))
    keys = (_field(fields, 5), _field(fields, 6))
    return Tile(of_heads, _field(fields, 2), queries, keys, True)


@gluon.jit
def _field(fields, i: gl.constexpr):
    """One of the fields that each thread has: no instruction."""
    return gl.sum(gl.where(gl.arange(0, FIELDS, fields.type.layout) == i, fields, 0), 0)


@gluon.constexpr_function
def _in_each_thread(warps):
    """All fields of a tile."""
    return gl.BlockedLayout([COLUMNS], [32], [warps], [0])
