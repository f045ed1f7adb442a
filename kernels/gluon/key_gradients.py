"""The entry of the dKV pass of attention_bwd_two_pass_gluon_sm90.py, which describes the algorithm.

The producer is in key_producer.py. With up to 128 columns each consumer warpgroup computes dK and
dV of 64 keys (key_consumer.py); with 256, one computes dK and the other dV (key_halves.py).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.key_consumer import consumer
from tunefa.kernels.gluon.key_halves import keys_consumer, p_shape, values_consumer
from tunefa.kernels.gluon.key_producer import producer
from tunefa.kernels.gluon.key_tiles import KeyBuffers, KeyPass
from tunefa.kernels.gluon.pipeline import new_barriers, new_tiles


@gluon.jit
def key_gradients(
    q_desc, k_desc, v_desc, do_desc, dk_desc, dv_desc, lse_desc, delta_desc,
    heads, heads_kv, seqlen_q, seqlen_k, rows, tiles, section_heads,
    window_keys, window_right, table_ptr, scale_log2, scale,
    WARPGROUPS: gl.constexpr, BLOCK_M: gl.constexpr, Q_STAGES: gl.constexpr,
    KV_IN_REGISTERS: gl.constexpr, PREFETCH_S: gl.constexpr, DEFER_ROW_LOADS: gl.constexpr,
    P_BYTES: gl.constexpr, PERSISTENT: gl.constexpr, DEPENDENT_LAUNCH: gl.constexpr,
    COLUMNS: gl.constexpr, PIECES: gl.constexpr, CAUSAL: gl.constexpr, WINDOWED: gl.constexpr,
    AHEAD: gl.constexpr, MASKED: gl.constexpr,
    GROUPED: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Computes dK and dV of one block of keys, or of several one after the other."""
    b = KeyPass(
        heads=heads, heads_kv=heads_kv, seqlen_q=seqlen_q, seqlen_k=seqlen_k, rows=rows,
        tiles=tiles, section_heads=section_heads, window_keys=window_keys,
        window_right=window_right, scale_log2=scale_log2, scale=scale,
        COLUMNS=COLUMNS, PIECES=PIECES, BLOCK_M=BLOCK_M, Q_STAGES=Q_STAGES,
        KV_IN_REGISTERS=KV_IN_REGISTERS, PREFETCH_S=PREFETCH_S, DEFER_ROW_LOADS=DEFER_ROW_LOADS,
        P_BYTES=P_BYTES, PERSISTENT=PERSISTENT, KV_STAGES=2 if PERSISTENT else 1,
        DEPENDENT_LAUNCH=DEPENDENT_LAUNCH,
        CAUSAL=CAUSAL, WINDOWED=WINDOWED, AHEAD=AHEAD, MASKED=MASKED, GROUPED=GROUPED,
    )  # fmt: skip
    inputs = (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc)
    shared = _shared_memory(b, inputs, WARPGROUPS)
    work = (b, shared, (dk_desc, dv_desc), table_ptr)
    loads = (b, shared, inputs, table_ptr)
    R: gl.constexpr = CONSUMER_REGISTERS
    P: gl.constexpr = PRODUCER_REGISTERS
    # Warpgroup 0 runs the first of a list; numbers are the warps and registers of the others.
    if PIECES < WARPGROUPS:
        gl.warp_specialize([
            (values_consumer, (work,)), (keys_consumer, (work,)), (producer, (loads,)),
        ], [4, 1], [R, P])  # fmt: skip
    elif WARPGROUPS == 1:
        gl.warp_specialize([(consumer, (work, 0)), (producer, (loads,))], [1], [P])
    elif WARPGROUPS == 2:
        gl.warp_specialize([
            (consumer, (work, 0)), (consumer, (work, 1)), (producer, (loads,)),
        ], [4, 1], [R, P])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (work, 0)), (consumer, (work, 1)), (consumer, (work, 2)),
            (producer, (loads,)),
        ], [4, 4, 1], [R, R, P])  # fmt: skip


@gluon.jit
def _shared_memory(b, inputs, WARPGROUPS: gl.constexpr):
    """Allocates the buffers and barriers."""
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc = inputs
    empty = new_barriers(b.Q_STAGES, WARPGROUPS)
    p, p_full = empty, empty
    if b.PIECES < WARPGROUPS:
        DTYPE: gl.constexpr = gl.float16 if b.P_BYTES == 2 else gl.float32
        ROWS: gl.constexpr = p_shape(b.BLOCK_M)
        p = gl.allocate_shared_memory(DTYPE, [b.Q_STAGES, ROWS[0], ROWS[1]], contiguous_layout())
        p_full = new_barriers(b.Q_STAGES, 1)
    return KeyBuffers(
        q=new_tiles(q_desc, b.Q_STAGES),
        k=new_tiles(k_desc, b.KV_STAGES * b.PIECES),
        v=new_tiles(v_desc, b.KV_STAGES * b.PIECES),
        do=new_tiles(do_desc, b.Q_STAGES),
        lse=new_tiles(lse_desc, b.Q_STAGES),
        delta=new_tiles(delta_desc, b.Q_STAGES),
        p=p,
        k_full=new_barriers(b.KV_STAGES, 1),
        v_full=new_barriers(b.KV_STAGES, 1),
        kv_empty=new_barriers(b.KV_STAGES, WARPGROUPS),
        q_full=new_barriers(b.Q_STAGES, 1),
        do_full=new_barriers(b.Q_STAGES, 1),
        empty=empty,
        p_full=p_full,
    )


@gluon.constexpr_function
def contiguous_layout():
    """Shared memory of a matrix, row by row, without a swizzle."""
    return gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
