"""The blocks of keys that a consumer warpgroup of the attention forward goes through."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait
from tunefa.kernels.gluon.e4m3 import p_log2
from tunefa.kernels.gluon.layouts import row_layout, side_by_side, wgmma_layout
from tunefa.kernels.gluon.products import (
    as_operand,
    rescale_output,
    scale_output,
    start_outputs,
    start_scores,
    wait_outputs,
    wait_scores,
)
from tunefa.kernels.gluon.softmax import no_row_sum, online_softmax


@gluon.jit
def first_block(a, pipelines, q_stage, block, row, key_block, WG: gl.constexpr):
    """Returns (p, row_max, row_sum) of a tile's first block: scores and softmax.

    With SPLIT_DIAGONAL_BLOCK, a block whose second half is above the diagonal is only half
    multiplied.
    """
    N: gl.constexpr = a.BLOCK_N
    if a.CAUSAL and a.SPLIT_DIAGONAL_BLOCK:
        seen = row + a.ROWS + a.diagonal()
        if seen <= key_block * N + N // 2:
            p, row_max, row_sum = _first_keys(
                a, pipelines, q_stage, block, row, key_block, N // 2, WG
            )
            p = _widened(p, N)
            row_max = gl.convert_layout(row_max, row_layout(N), assert_trivial=True)
            if not a.DEFER_ROW_SUM:
                row_sum = gl.convert_layout(row_sum, row_layout(N), assert_trivial=True)
        else:
            p, row_max, row_sum = _first_keys(a, pipelines, q_stage, block, row, key_block, N, WG)
    else:
        p, row_max, row_sum = _first_keys(a, pipelines, q_stage, block, row, key_block, N, WG)
    return p, row_max, row_sum


@gluon.jit
def _first_keys(
    a, pipelines, q_stage, block, row, key_block, N: gl.constexpr, WG: gl.constexpr
):  # fmt: skip
    """Returns (p, row_max, row_sum) of the first N keys of a tile's first block."""
    k = pipelines.k
    GUARD: gl.constexpr = a.RAGGED and (a.CAUSAL or a.VARLEN)
    s_token = start_scores(pipelines.q, q_stage, k, block % k.num_stages, N)
    pipelines.scheduler.arrive(WG)
    s = warpgroup_mma_wait(0, [s_token])
    s = gl.convert_layout(s, wgmma_layout(N), assert_trivial=True)
    k.release(block % k.num_stages)
    s = a.capped(s)
    if a.CAUSAL or a.RAGGED:
        s = a.masked(s, row, key_block * a.BLOCK_N)
    row_max = gl.full([64], -float("inf"), gl.float32, row_layout(N))
    row_sum = no_row_sum(N, a.DEFER_ROW_SUM)
    p, row_max, row_sum, _ = _softmax(a, s, row_max, row_sum, GUARD, 0)
    return p, row_max, row_sum


@gluon.jit
def _widened(p, N: gl.constexpr):
    """Returns (64, N // 2) as (64, N) with zeros on the right; this moves no register."""
    whole = side_by_side(p, gl.zeros_like(p))
    return gl.convert_layout(whole, wgmma_layout(N), assert_trivial=True)


@gluon.jit
def step(a, pipelines, q_stage, state, block, row, key_block, WG: gl.constexpr):
    """Computes scores and softmax of block number `block`, and p @ v of the block before it.

    The products of both are issued together. The softmax waits only for the scores, and runs while
    p @ v is still being multiplied.

    `state` is (output, p, row_max, row_sum, row_scale) after the block before; its p @ v is still
    missing in the output, which has to be multiplied by row_scale first. Returns the new state.
    """
    GUARD: gl.constexpr = a.CAUSAL and a.RAGGED
    acc, p, row_max, row_sum, row_scale = state
    k, v, scheduler = pipelines.k, pipelines.v, pipelines.scheduler
    k.wait(block % k.num_stages, block // k.num_stages)
    scheduler.wait(block, WG)
    s = start_scores(pipelines.q, q_stage, k, block % k.num_stages, a.BLOCK_N)
    before = block - 1
    if a.RESCALE_THRESHOLD:
        # Here and not at the end of the step: a branch there would keep the exponentials from
        # running during the wait for p @ v.
        acc = rescale_output(acc, row_scale, v)
    v.wait(before % v.num_stages, before // v.num_stages)
    acc = start_outputs(p, v, before % v.num_stages, acc)
    scheduler.arrive(WG)
    s = wait_scores(s, v)
    k.release(block % k.num_stages)
    s = a.capped(s)
    if GUARD:
        if a.crosses(row, key_block):
            s = a.masked(s, row, key_block * a.BLOCK_N)
    p32, row_max, row_sum, new_scale = _softmax(a, s, row_max, row_sum, GUARD, a.RESCALE_THRESHOLD)
    # ptxas moves most exponentials below this wait. Forbidding that costs 2 to 6 %.
    acc = wait_outputs(acc, row_scale, v)
    v.release(before % v.num_stages)
    p = as_operand(p32, v)
    if not (a.RESCALE_THRESHOLD or a.E4M3):  # `wait_outputs` rescales e4m3
        acc = scale_output(acc, new_scale, v)
    return acc, p, row_max, row_sum, new_scale


@gluon.jit
def _softmax(a, s, row_max, row_sum, GUARD: gl.constexpr, RESCALE_THRESHOLD: gl.constexpr):
    """Calls `online_softmax` with what the config says; GUARD: a row may have seen no key yet."""
    return online_softmax(
        s, row_max, row_sum, a.scale_log2, GUARD, a.DEFER_ROW_SUM, RESCALE_THRESHOLD,
        p_log2(a.E4M3), a.EX2_EMULATION_FREQ,
    )  # fmt: skip


@gluon.jit
def skip(pipelines, block, count, WG: gl.constexpr):
    """Releases `count` blocks that other warpgroups of the tile need and this one does not.

    Returns the number of the next block.
    """
    k, v, scheduler = pipelines.k, pipelines.v, pipelines.scheduler
    for _ in range(0, count):
        scheduler.wait(block, WG)
        scheduler.arrive(WG)
        k.wait(block % k.num_stages, block // k.num_stages)
        k.release(block % k.num_stages)
        v.wait(block % v.num_stages, block // v.num_stages)
        v.release(block % v.num_stages)
        block += 1
    return block
