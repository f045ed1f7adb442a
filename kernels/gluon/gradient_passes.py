"""Device code that both passes of the attention backward use."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma
from tunefa.kernels.gluon.layouts import wgmma_layout

P_SHIFT = gl.constexpr(15)
"""With P_BYTES 2 the dKV pass computes probabilities times 2^P_SHIFT: so large is one of 1 in fp16,
whose numbers below 2^-14 have few bits. The dQ pass writes lse less P_SHIFT for this, and delta
times P_DOWN."""
P_DOWN = gl.constexpr(2.0**-15)


@gluon.jit
def diagonal_of(b):
    """Returns d, where row i sees keys up to i + d: that of a bottom-right aligned mask, or of a
    window that reaches further. `b` is a QueryPass or a KeyPass."""
    d = b.seqlen_k - b.seqlen_q
    if b.AHEAD:
        d += b.window_right
    return d


@gluon.jit
def start_transposed(a, rows, COUNT: gl.constexpr):
    """Starts a @ rows^T, (64, COUNT) in fp32; `rows` has COUNT rows."""
    zeros = gl.zeros([64, COUNT], gl.float32, wgmma_layout(COUNT))
    return warpgroup_mma(a, rows.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def unknown_zero(length):
    """Returns 0, as lengths are not negative, which the compiler does not know.

    ptxas 12.8, which Triton 3.6 and 3.7 bring along, computes the descriptors of a wgmma operand
    that two loops read only before the first loop, even where that loop has no steps and is
    skipped: the second loop then reads shared memory at any address. Where an operand's place
    differs by such a zero, each loop gets descriptors of its own.
    """
    return gl.minimum(length, 0)
