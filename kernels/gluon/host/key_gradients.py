"""Host side of the dKV pass of the two-pass attention backward (gluon/key_gradients.py)."""

import math

from tunefa.kernels.gluon.host import gradient_tiles
from tunefa.kernels.gluon.host.query_gradients import SIZES, columns, edges, mask, rows
from tunefa.kernels.hopper import tile_table

from tunefa.spec.rounding import ceil_div

LOG2_E = math.log2(math.e)
_REGISTERS = {1: (232, 24, 128), 2: (240, 24, 168), 3: (160, 32, 128)}
"""By WARPGROUPS1: registers per thread of a consumer, of the producer, and of all threads at the
launch, before setmaxnreg moves registers from the producer to the consumers: 65,536 in all, for one
warpgroup in two CTAs."""
_TILE_COST = 2
"""The cost of a tile beside its steps, in steps: K and V in, dK and dV out. An estimate."""
_PARAMETERS = ("WARPGROUPS", "BLOCK_M", "Q_STAGES", "KV_IN_REGISTERS", "PREFETCH_S",
               "DEFER_ROW_LOADS", "P_BYTES", "PERSISTENT")  # fmt: skip
"""Parameters of this pass, whose names end in 1 in a config."""


def device_function():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.gluon.key_gradients import key_gradients

    return key_gradients


def variant(workload, config, aligned=True):
    """Returns what the compiler needs for one config, with no device: a plain dict.

    The compiled kernel depends on no batch, head count or length, but on whether there are groups
    and whether blocks divide the keys. TMA reads `aligned` tensors only.
    """
    constants = _constants(workload, config)
    boxes = _boxes(workload, config).items()
    signature = {name: f"tensordesc<{dtype}{list(box)}>" for name, (dtype, box) in boxes}
    signature |= dict.fromkeys(SIZES, "i32") | {"table_ptr": "*i32"}
    signature |= {"scale_log2": "fp32", "scale": "fp32"}
    if not config["PERSISTENT1"]:
        constants |= {"table_ptr": None}
    return {
        "function": device_function,
        "signature": signature | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "aligned": [],
        "options": {
            "num_warps": 4,
            "maxnreg": _REGISTERS[config["WARPGROUPS1"]][2],
            "launch_pdl": config["DEPENDENT_LAUNCH"] == 1,
        },
    }


def arguments(tensors, spec):
    """Returns the grid and the kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse, dout, dlse, dq, dk, dv, lse in powers of two, delta): q, dout
    (batch, heads, seqlen_q, head_dim), k, v, dk, dv (batch, heads_kv, seqlen_k, head_dim), aligned,
    rows contiguous; the last two have `rows` numbers for each head, as the dQ pass writes them.
    """
    q, k, v, _, _, dout, _, _, dk, dv, lse_log2, delta = tensors
    w, config, scale = spec.workload, spec.config, spec.scale
    mapped = (q, k, v, dout, dk, dv, lse_log2, delta)
    boxes = _boxes(w, config).values()
    maps = [{"map": t, "box": box} for t, (_, box) in zip(mapped, boxes, strict=True)]
    tiles = w.batch * w.heads_kv * ceil_div(w.seqlen_k, 64 * _pieces(w, config))
    sizes = [w.heads, w.heads_kv, w.seqlen_q, w.seqlen_k, rows(w), tiles]
    ctas, table = tiles, None
    if config["PERSISTENT1"]:
        ctas = min(tiles, spec.sms)
        table = gradient_tiles.table(_costs(w, config), ctas, q.device)
    sizes += [config["L2_SECTION_HEADS"], *edges(w), table, scale * LOG2_E, scale]
    return (ctas, 1, 1), [*maps, *sizes, *_constants(w, config).values()]


def _costs(workload, config):
    """Returns the query blocks of each tile, and what it costs beside them."""
    rows_of_key, block_m = 64 * _pieces(workload, config), config["BLOCK_M1"]
    last, window_keys = tile_table.edges(workload)
    last += workload.seqlen_k - workload.seqlen_q  # the last key that row 0 sees
    of_block = []
    for key in range(0, workload.seqlen_k, rows_of_key):
        first, end = max(0, key - last) // block_m, workload.seqlen_q
        if window_keys is not None:
            end = min(end, min(key + rows_of_key, workload.seqlen_k) + window_keys - last - 1)
        blocks = max(1, ceil_div(end, block_m) - first)
        of_block.append(workload.group * blocks + _TILE_COST)
    heads = workload.batch * workload.heads_kv
    return gradient_tiles.costs(of_block, heads, config["L2_SECTION_HEADS"])


def _pieces(workload, config):
    """Returns how many times 64 keys a CTA has. With 256 columns two warpgroups share 64 keys."""
    return config["WARPGROUPS1"] if columns(workload) < 256 else 1


def _boxes(workload, config):
    """Returns dtype and shape of what TMA copies at once, by the name of the descriptor."""
    block_m, width = config["BLOCK_M1"], columns(workload)
    queries = workload.dtype, (1, 1, block_m, width)
    keys = workload.dtype, (1, 1, 64, width)
    row = "fp32", (block_m,)
    names = ("q", "k", "v", "do", "dk", "dv", "lse", "delta")
    boxes = (queries, keys, keys, queries, keys, keys, row, row)
    return {f"{name}_desc": box for name, box in zip(names, boxes, strict=True)}


def _constants(workload, config):
    """Returns the kernel's constexpr arguments."""
    consumer_registers, producer_registers, _ = _REGISTERS[config["WARPGROUPS1"]]
    pieces = _pieces(workload, config)
    return {
        **{name: config[f"{name}1"] for name in _PARAMETERS},
        "DEPENDENT_LAUNCH": config["DEPENDENT_LAUNCH"],
        "COLUMNS": columns(workload),
        "PIECES": pieces,
        **mask(workload),
        "MASKED": workload.band != (None, None) or workload.seqlen_k % (64 * pieces) != 0,
        "GROUPED": workload.group > 1,
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }
