"""The tiles of a persistent CTA of the two-pass backward: host/gradient_tiles.py has its table."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def first_tile(table):
    """Returns (first, count, number): where the tiles of this CTA begin in the table, how many
    there are, and the first one's number."""
    first = gl.load(table + gl.program_id(0))
    count = gl.load(table + gl.program_id(0) + 1) - first
    return first, count, gl.load(table + first)
