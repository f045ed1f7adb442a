"""What a persistent program reads of the tables that say which tiles it works on."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.api import aggregate


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
def scheduled(a, tiles, i):
    """Tile number i: no division on the device."""
    if a.VARLEN:
        entry = tiles + i * 8
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
