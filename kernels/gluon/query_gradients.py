"""The entry of the pass that computes dQ in attention_bwd_two_pass_gluon_sm90.py.

The producer is in query_producer.py, the consumers are in query_consumer.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.pipeline import new_barriers, new_tiles
from tunefa.kernels.gluon.query_consumer import consumer
from tunefa.kernels.gluon.query_producer import producer
from tunefa.kernels.gluon.query_tiles import QueryPass, QueryShared


@gluon.jit
def query_gradients(
    q_desc, k_desc, v_desc, do_desc, dq_desc, out_ptr, lse_ptr, dlse_ptr, lse_log2_ptr, delta_ptr,
    out_batch, out_head, out_row, dlse_batch, dlse_head, dlse_row,
    heads, heads_kv, seqlen_q, seqlen_k, rows, tiles, section_heads,
    window_keys, window_right, table_ptr, scale_log2, scale,
    WARPGROUPS: gl.constexpr, BLOCK_N: gl.constexpr, Q_STAGES: gl.constexpr,
    K_STAGES: gl.constexpr, V_STAGES: gl.constexpr, PREFETCH_S: gl.constexpr,
    Q_IN_REGISTERS: gl.constexpr, PERSISTENT: gl.constexpr, DEPENDENT_LAUNCH: gl.constexpr,
    P_BYTES: gl.constexpr, HEAD_DIM: gl.constexpr, COLUMNS: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOWED: gl.constexpr, AHEAD: gl.constexpr,
    MASKED: gl.constexpr, MASK_LOOP: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Computes dQ of the tiles of this CTA. Strides of out are in units of eight elements, those
    of dlse in elements."""
    b = QueryPass(
        heads=heads, heads_kv=heads_kv, seqlen_q=seqlen_q, seqlen_k=seqlen_k, rows=rows,
        tiles=tiles, section_heads=section_heads, window_keys=window_keys,
        window_right=window_right, scale_log2=scale_log2, scale=scale,
        COLUMNS=COLUMNS, WARPGROUPS=WARPGROUPS, BLOCK_N=BLOCK_N, Q_STAGES=Q_STAGES,
        K_STAGES=K_STAGES, V_STAGES=V_STAGES, PREFETCH_S=PREFETCH_S,
        Q_IN_REGISTERS=Q_IN_REGISTERS, PERSISTENT=PERSISTENT,
        DEPENDENT_LAUNCH=DEPENDENT_LAUNCH, P_BYTES=P_BYTES,
        CAUSAL=CAUSAL, WINDOWED=WINDOWED, AHEAD=AHEAD, MASKED=MASKED, MASK_LOOP=MASK_LOOP,
    )  # fmt: skip
    inputs = (q_desc, k_desc, v_desc, do_desc)
    shared = _shared_memory(b, inputs)
    out = (out_ptr, out_batch, out_head, out_row)
    dlse = (dlse_ptr, dlse_batch, dlse_head, dlse_row)
    sums = (out, dlse, lse_ptr, lse_log2_ptr, delta_ptr)
    work = (b, shared, sums, dq_desc, table_ptr)
    loads = (b, shared, inputs, table_ptr)
    R: gl.constexpr = CONSUMER_REGISTERS
    P: gl.constexpr = PRODUCER_REGISTERS
    # Warpgroup 0 runs the first of a list; numbers are the warps and registers of the others.
    if WARPGROUPS == 1:
        gl.warp_specialize([(consumer, (work, 0, HEAD_DIM)), (producer, (loads,))], [1], [P])
    elif WARPGROUPS == 2:
        gl.warp_specialize([
            (consumer, (work, 0, HEAD_DIM)), (consumer, (work, 1, HEAD_DIM)), (producer, (loads,)),
        ], [4, 1], [R, P])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (work, 0, HEAD_DIM)), (consumer, (work, 1, HEAD_DIM)),
            (consumer, (work, 2, HEAD_DIM)), (producer, (loads,)),
        ], [4, 4, 1], [R, R, P])  # fmt: skip


@gluon.jit
def _shared_memory(b, inputs):
    """Allocates the buffers and barriers."""
    q_desc, k_desc, v_desc, do_desc = inputs
    return QueryShared(
        q=new_tiles(q_desc, b.Q_STAGES * b.WARPGROUPS),
        do=new_tiles(do_desc, b.Q_STAGES * b.WARPGROUPS),
        k=new_tiles(k_desc, b.K_STAGES),
        v=new_tiles(v_desc, b.V_STAGES),
        q_full=new_barriers(b.Q_STAGES * b.WARPGROUPS, 1),
        do_full=new_barriers(b.Q_STAGES * b.WARPGROUPS, 1),
        q_empty=new_barriers(b.Q_STAGES * b.WARPGROUPS, 1),
        k_full=new_barriers(b.K_STAGES, 1),
        v_full=new_barriers(b.V_STAGES, 1),
        k_empty=new_barriers(b.K_STAGES, b.WARPGROUPS),
        v_empty=new_barriers(b.V_STAGES, b.WARPGROUPS),
    )
