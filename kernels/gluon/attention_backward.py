"""The entry of attention_bwd_gluon_sm90.py, which describes the algorithm.

The producer is in backward_producer.py, the consumers are in backward_consumer.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.backward import Backward, Shared
from tunefa.kernels.gluon.backward_consumer import consumer
from tunefa.kernels.gluon.backward_producer import producer
from tunefa.kernels.gluon.pipeline import new_barriers, new_tiles


@gluon.jit
def attention_bwd(
    q_desc, k_desc, v_desc, do_desc, dk_desc, dv_desc, lse_desc, delta_desc, dq_desc,
    heads, heads_kv, seqlen_q, seqlen_k, rows, section_heads, scale_log2, scale,
    WARPGROUPS: gl.constexpr, BLOCK_M: gl.constexpr, Q_STAGES: gl.constexpr,
    DS_STAGES: gl.constexpr, DQ_STAGES: gl.constexpr, DQ_SPLIT: gl.constexpr,
    KV_IN_REGISTERS: gl.constexpr, PREFETCH_S: gl.constexpr, DEFER_ROW_LOADS: gl.constexpr,
    STAGGER: gl.constexpr, COLUMNS: gl.constexpr, UNIT: gl.constexpr, CAUSAL: gl.constexpr,
    MASKED: gl.constexpr, PEELED: gl.constexpr, MASK_LOOP: gl.constexpr, GROUPED: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Computes dK and dV of one block of keys, and adds what it gives to dQ."""
    b = Backward(
        heads=heads, heads_kv=heads_kv, seqlen_q=seqlen_q, seqlen_k=seqlen_k, rows=rows,
        section_heads=section_heads, scale_log2=scale_log2, scale=scale,
        COLUMNS=COLUMNS, WARPGROUPS=WARPGROUPS, BLOCK_M=BLOCK_M, UNIT=UNIT, Q_STAGES=Q_STAGES,
        DS_STAGES=DS_STAGES, DQ_STAGES=DQ_STAGES, DQ_SPLIT=DQ_SPLIT,
        KV_IN_REGISTERS=KV_IN_REGISTERS, PREFETCH_S=PREFETCH_S, DEFER_ROW_LOADS=DEFER_ROW_LOADS,
        STAGGER=STAGGER, CAUSAL=CAUSAL, MASKED=MASKED, PEELED=PEELED,
        MASK_LOOP=MASK_LOOP, GROUPED=GROUPED,
    )  # fmt: skip
    inputs = (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc)
    outputs = (dq_desc, dk_desc, dv_desc)
    shared = _shared_memory(b, inputs, dq_desc)
    work, loads = (b, shared, outputs), (b, shared, inputs)
    R: gl.constexpr = CONSUMER_REGISTERS
    P: gl.constexpr = PRODUCER_REGISTERS
    # Warpgroup 0 runs the first of a list; numbers are the warps and registers of the others.
    if WARPGROUPS == 1:
        gl.warp_specialize([(consumer, (work, 0)), (producer, (loads,))], [1], [P])
    else:
        gl.warp_specialize([
            (consumer, (work, 0)), (consumer, (work, 1)), (producer, (loads,)),
        ], [4, 1], [R, P])  # fmt: skip


@gluon.jit
def _shared_memory(b, inputs, dq_desc):
    """Allocates the buffers and barriers."""
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc = inputs
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, b.BLOCK_M], q_desc.dtype)
    ds_shape: gl.constexpr = [b.DS_STAGES * b.WARPGROUPS, 64, b.BLOCK_M]
    return Shared(
        q=new_tiles(q_desc, b.Q_STAGES),
        k=new_tiles(k_desc, b.WARPGROUPS),
        v=new_tiles(v_desc, b.WARPGROUPS),
        do=new_tiles(do_desc, b.Q_STAGES),
        lse=new_tiles(lse_desc, b.Q_STAGES),
        delta=new_tiles(delta_desc, b.Q_STAGES),
        ds=gl.allocate_shared_memory(q_desc.dtype, ds_shape, ds_layout),
        dq=new_tiles(dq_desc, b.DQ_STAGES * b.WARPGROUPS),
        k_full=new_barriers(1, 1),
        v_full=new_barriers(1, 1),
        q_full=new_barriers(b.Q_STAGES, 1),
        do_full=new_barriers(b.Q_STAGES, 1),
        q_empty=new_barriers(b.Q_STAGES, b.WARPGROUPS),
        ds_full=new_barriers(b.DS_STAGES, b.WARPGROUPS),
    )
