"""Which tiles a persistent CTA of the attention backward works on, of a number of tiles."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def tile_count(tiles):
    """Returns how many tiles this CTA works on."""
    rounds = (tiles + gl.num_programs(0) - 1) // gl.num_programs(0)
    return gl.where(tile_number(rounds - 1) < tiles, rounds, rounds - 1)


@gluon.jit
def tile_number(i):
    """Returns the number of tile `i` of this CTA.

    In every other round the last CTA comes first. Otherwise, where a section has about as many
    tiles as there are CTAs, the first CTA would get the longest tile of each.
    """
    last = gl.num_programs(0) - 1
    return i * (last + 1) + gl.where((i & 1) == 1, last - gl.program_id(0), gl.program_id(0))
