"""The entry of attention_fwd_gluon_sm90.py, which describes the algorithm.

The producer is in producer.py, the consumers are in consumer.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.attention import Attention, Pipelines
from tunefa.kernels.gluon.consumer import consumer
from tunefa.kernels.gluon.pipeline import SchedulerBarrier, new_barriers, new_pipeline, new_tiles
from tunefa.kernels.gluon.producer import producer
from tunefa.kernels.gluon.tiles import new_work_info


@gluon.jit
def attention_fwd(
    q_desc, k_desc, v_desc, o_desc, q_rest_desc, k_rest_desc, v_rest_desc, o_rest_desc,
    lse_ptr, q_descale_ptr, k_descale_ptr, v_descale_ptr, heads_kv, schedule_ptr, tiles_ptr,
    heads, seqlen_q, seqlen_k, window_keys, window_right, scale_log2, tanh_scale,
    WARPGROUPS: gl.constexpr, PACK_GQA: gl.constexpr, BLOCK_N: gl.constexpr,
    num_stages: gl.constexpr, LOAD_K_FIRST: gl.constexpr, Q_STAGES: gl.constexpr,
    EPILOGUE_SUBTILE: gl.constexpr, PING_PONG: gl.constexpr, DEFER_ROW_SUM: gl.constexpr,
    RESCALE_THRESHOLD: gl.constexpr, EX2_EMULATION_FREQ: gl.constexpr,
    SPLIT_DIAGONAL_BLOCK: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, AHEAD: gl.constexpr, SOFTCAP: gl.constexpr,
    RAGGED: gl.constexpr, E4M3: gl.constexpr, VARLEN: gl.constexpr,
    REST: gl.constexpr, REST_V: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Computes the tiles that the table gives to this CTA, or that it takes from the list."""
    a = Attention(
        heads=heads, seqlen_q=seqlen_q, seqlen_k=seqlen_k, window_keys=window_keys,
        window_right=window_right,
        scale_log2=scale_log2, tanh_scale=tanh_scale, WARPGROUPS=WARPGROUPS, PACK_GQA=PACK_GQA,
        ROWS=64 // PACK_GQA, BLOCK_N=BLOCK_N, Q_STAGES=Q_STAGES, EPILOGUE_SUBTILE=EPILOGUE_SUBTILE,
        DEFER_ROW_SUM=DEFER_ROW_SUM, RESCALE_THRESHOLD=RESCALE_THRESHOLD,
        SPLIT_DIAGONAL_BLOCK=SPLIT_DIAGONAL_BLOCK, LOAD_K_FIRST=LOAD_K_FIRST,
        EX2_EMULATION_FREQ=EX2_EMULATION_FREQ, CAUSAL=CAUSAL, WINDOWED=WINDOWED, AHEAD=AHEAD,
        SOFTCAP=SOFTCAP, RAGGED=RAGGED, E4M3=E4M3, VARLEN=VARLEN,
    )  # fmt: skip
    descs = (q_desc, q_rest_desc), (k_desc, k_rest_desc), (v_desc, v_rest_desc)
    o_descs = (o_desc, o_rest_desc)
    q = new_pipeline(descs[0], REST, Q_STAGES * WARPGROUPS, 1)
    k = new_pipeline(descs[1], REST, num_stages, WARPGROUPS)
    v = new_pipeline(descs[2], REST_V, num_stages, WARPGROUPS, E4M3)
    o_tiles = _output_tiles(q, o_descs, WARPGROUPS, EPILOGUE_SUBTILE, REST_V)
    scheduler = SchedulerBarrier(new_barriers(WARPGROUPS, 1), WARPGROUPS, PING_PONG)
    work_info = _work_info(scheduler.barriers, VARLEN)
    pipelines = Pipelines(q, k, v, scheduler, schedule_ptr, tiles_ptr, work_info)
    descales = (q_descale_ptr, k_descale_ptr, v_descale_ptr, heads_kv)
    work, loads = (a, pipelines, (o_descs, o_tiles, lse_ptr), descales), (a, pipelines, descs)
    R: gl.constexpr = CONSUMER_REGISTERS
    P: gl.constexpr = PRODUCER_REGISTERS
    # Warpgroup 0 runs the first of a list; numbers are the warps and registers of the others.
    if WARPGROUPS == 1:
        gl.warp_specialize([(consumer, (work, 0)), (producer, (loads,))], [1], [P])
    elif WARPGROUPS == 2:
        gl.warp_specialize([
            (consumer, (work, 0)), (consumer, (work, 1)), (producer, (loads,)),
        ], [4, 1], [R, P])  # fmt: skip
    elif WARPGROUPS == 3:
        gl.warp_specialize([
            (consumer, (work, 0)), (consumer, (work, 1)), (consumer, (work, 2)),
            (producer, (loads,)),
        ], [4, 4, 1], [R, R, P])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (work, 0)), (consumer, (work, 1)), (consumer, (work, 2)),
            (consumer, (work, 3)), (producer, (loads,)),
        ], [4, 4, 4, 1], [R, R, R, P])  # fmt: skip


@gluon.jit
def _output_tiles(
    q, o_descs, WARPGROUPS: gl.constexpr, EPILOGUE_SUBTILE: gl.constexpr, REST_V: gl.constexpr
):
    """Returns the buffers through which the output leaves, for its columns and for their rest.

    Without EPILOGUE_SUBTILE it leaves through the queries' memory.
    """
    o_tiles = (q.tiles, q.tiles)
    if EPILOGUE_SUBTILE > 0:
        o_desc, o_rest_desc = o_descs
        o_tile = new_tiles(o_desc, WARPGROUPS)
        o_rest_tile = o_tile
        if REST_V:
            o_rest_tile = new_tiles(o_rest_desc, WARPGROUPS)
        o_tiles = (o_tile, o_rest_tile)
    return o_tiles


@gluon.jit
def _work_info(unused, VARLEN: gl.constexpr):
    """Returns the memory of the work info, which only packed sequences have; else `unused`."""
    work_info = unused
    if VARLEN:
        work_info = new_work_info()
    return work_info
