"""Host side of the pass that computes dQ (gluon/query_gradients.py)."""

import math

from tunefa.kernels.gluon.host import gradient_tiles
from tunefa.kernels.hopper import tile_table

from tunefa.spec.rounding import ceil_div, next_pow2, round_up

LOG2_E = math.log2(math.e)
_ROWS = 128
"""Rows of a head in the scratch tensors come in multiples of this, which all blocks of the pass
that computes dK and dV divide."""
_REGISTERS = {1: (232, 24, 128), 2: (240, 24, 168), 3: (160, 24, 128)}
"""By warpgroups: registers per thread of a consumer, of the producer, and of all threads at the
launch, before setmaxnreg moves registers from the producer to the consumers."""
_TILE_COST = 1
"""The cost of a tile beside its key blocks, in blocks: Q, dO, out in, dQ out. An estimate."""
_PARAMETERS = ("WARPGROUPS", "BLOCK_N", "Q_STAGES", "K_STAGES", "V_STAGES", "PREFETCH_S",
               "Q_IN_REGISTERS", "PERSISTENT")  # fmt: skip
"""Parameters of this pass, whose names end in 2 in a config."""
_STRIDES = [f"{name}_{axis}" for name in ("out", "dlse") for axis in ("batch", "head", "row")]
SIZES = ("heads", "heads_kv", "seqlen_q", "seqlen_k", "rows", "tiles", "section_heads",
          "window_keys", "window_right")  # fmt: skip


def rows(workload):
    """Returns the rows of a query head in the scratch tensors."""
    return round_up(workload.seqlen_q, _ROWS)


def columns(workload):
    """Returns head_dim with its padding."""
    return max(64, next_pow2(workload.head_dim))


def mask(workload):
    """Returns what the compiler needs to know of the mask."""
    left, right = workload.band
    return {
        "CAUSAL": workload.band != (None, None),
        "WINDOWED": left is not None,
        "AHEAD": right != 0 and workload.band != (None, None),
    }


def edges(workload):
    """Returns [window_keys, window_right], see `tile_table.edges`."""
    right, keys = tile_table.edges(workload)
    return [keys or 0, right]


def _boxes(workload, config):
    """Returns the shape of what TMA copies at once, by the name of the descriptor."""
    of_rows, of_keys = ((1, 1, n, columns(workload)) for n in (64, config["BLOCK_N2"]))
    names = ("q", "k", "v", "do", "dq")
    shapes = (of_rows, of_keys, of_keys, of_rows, of_rows)
    return {f"{name}_desc": box for name, box in zip(names, shapes, strict=True)}


def _constants(workload, config):
    block, offset = config["BLOCK_N2"], workload.seqlen_k - workload.seqlen_q
    banded = workload.band != (None, None)
    consumer_registers, producer_registers, _ = _REGISTERS[config["WARPGROUPS2"]]
    return {
        **{name: config[f"{name}2"] for name in _PARAMETERS},
        "DEPENDENT_LAUNCH": config["DEPENDENT_LAUNCH"],
        "P_BYTES": config["P_BYTES1"],
        "HEAD_DIM": workload.head_dim,
        "COLUMNS": columns(workload),
        **mask(workload),
        "MASKED": banded or workload.seqlen_k % block != 0,
        # The diagonal crosses only one block of 64 rows, if blocks begin where it does.
        "MASK_LOOP": banded and (workload.band[1] != 0 or offset % 64 != 0),
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }


def device_function():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.gluon.query_gradients import query_gradients

    return query_gradients


def variant(workload, config, aligned=True):
    """Returns what the compiler needs for one config: see `variant` of the kernel."""
    constants = _constants(workload, config)
    boxes = _boxes(workload, config).items()
    signature = {name: f"tensordesc<{workload.dtype}{list(box)}>" for name, box in boxes}
    signature |= {"out_ptr": f"*{workload.dtype}"}
    pointers = ("lse_ptr", "dlse_ptr", "lse_log2_ptr", "delta_ptr")
    signature |= dict.fromkeys(pointers, "*fp32") | dict.fromkeys(_STRIDES, "i64")
    signature |= dict.fromkeys(SIZES, "i32") | {"table_ptr": "*i32"}
    signature |= {"scale_log2": "fp32", "scale": "fp32"}
    if not config["PERSISTENT2"]:
        constants |= {"table_ptr": None}
    return {
        "function": device_function,
        "signature": signature | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "aligned": ["out_ptr", "lse_log2_ptr", "delta_ptr"],
        "options": {"num_warps": 4, "maxnreg": _REGISTERS[config["WARPGROUPS2"]][2]},
    }


def arguments(tensors, spec):
    """Returns the grid and the arguments, in the order of the signature.

    `tensors` are those of a call, followed by lse in powers of two and delta: see `arguments` of
    the kernel.
    """
    q, k, v, out, lse, dout, dlse, dq, _, _, lse_log2, delta = tensors
    w, config, scale = spec.workload, spec.config, spec.scale
    boxes = _boxes(w, config).values()
    maps = [{"map": t, "box": box} for t, box in zip((q, k, v, dout, dq), boxes, strict=True)]
    strides = [*(step // 8 for step in out.stride()[:3]), *dlse.stride()]
    tiles = w.batch * w.heads * ceil_div(rows(w), 64 * config["WARPGROUPS2"])
    sizes = [w.heads, w.heads_kv, w.seqlen_q, w.seqlen_k, rows(w), tiles]
    sizes += [config["L2_SECTION_HEADS"], *edges(w)]
    ctas, table = tiles, None
    if config["PERSISTENT2"]:
        ctas = min(tiles, spec.sms)
        table = gradient_tiles.table(_costs(w, config), ctas, q.device)
    return (ctas, 1, 1), [
        *maps, out, lse, dlse, lse_log2, delta, *strides, *sizes, table, scale * LOG2_E, scale,
        *_constants(w, config).values(),
    ]  # fmt: skip


def _costs(workload, config):
    """Returns the key blocks of each tile, the last rows first, and what it costs beside them."""
    tile_rows, block = 64 * config["WARPGROUPS2"], config["BLOCK_N2"]
    last, window_keys = tile_table.edges(workload)
    last += workload.seqlen_k - workload.seqlen_q  # the last key that row 0 sees
    of_block = []
    for row in reversed(range(0, rows(workload), tile_rows)):
        end = min(min(row + tile_rows, workload.seqlen_q) + last, workload.seqlen_k)
        first = 0 if window_keys is None else max(0, row + last - window_keys + 1)
        blocks = ceil_div(max(end, 1), block) - first // block
        of_block.append(_TILE_COST + (blocks if row < workload.seqlen_q else 1))
    heads = workload.batch * workload.heads
    return gradient_tiles.costs(of_block, heads, config["L2_SECTION_HEADS"] * workload.group)
