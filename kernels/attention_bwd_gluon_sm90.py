r"""placeholder"""

import math

from tunefa.spec.rounding import ceil_div, round_up

LOG2_E = math.log2(math.e)
_REGISTERS = {1: (232, 24, 128), 2: (240, 24, 168)}
"""By WARPGROUPS: registers per thread of a consumer, of the producer, and of all threads at the
launch, before setmaxnreg moves registers from the producer to the consumers: 65,536 in all."""
_SPLIT_COLUMNS, _TAKE_TURNS = 0, 1
"""Values of DQ_SPLIT."""
_ROWS = 64
"""Rows of a program of `prepare_rows`, and of `write_dq`."""


def _columns(workload):
    """Returns head_dim with its padding: TMA reads zeros beyond head_dim, and writes nothing."""
    return 64 if workload.head_dim <= 64 else 128


def _unit(config):
    """Returns the query rows that all loops of the kernel advance by."""
    return config["BLOCK_M"] * (config["WARPGROUPS"] if config["DQ_SPLIT"] == _TAKE_TURNS else 1)


def _dq_columns(workload, config):
    """Returns the columns of dQ that a warpgroup adds at once."""
    parts = config["WARPGROUPS"] if config["DQ_SPLIT"] == _SPLIT_COLUMNS else 1
    return _columns(workload) // parts


def _rows(workload, config):
    """Returns the rows of a query head in the scratch tensors: whole units."""
    unit = _unit(config)
    return round_up(workload.seqlen_q, unit * _peeled(workload, config))


def _peeled(workload, config):
    """Returns how many units the kernel masks before its loop, so that the loop masks none.

    That are those on the diagonal, if the diagonal crosses every tile of keys alike.
    """
    keys, unit = 64 * config["WARPGROUPS"], _unit(config)
    if not _is_square(workload, config):
        return 1
    return max(1, keys // unit)


def _is_square(workload, config):
    """Returns whether the diagonal crosses every tile of keys alike, and each has one head."""
    keys, unit = 64 * config["WARPGROUPS"], _unit(config)
    offset = workload.seqlen_k - workload.seqlen_q
    return workload.causal and workload.group == 1 and keys % unit == offset % keys == 0


def _boxes(workload, config):
    """Returns the blocks that TMA copies, by the name of the descriptor: their dtype and shape."""
    queries = workload.dtype, (1, 1, config["BLOCK_M"], _columns(workload))
    keys = workload.dtype, (1, 1, 64, _columns(workload))
    row = "fp32", (config["BLOCK_M"],)
    dq = "fp32", (_dq_columns(workload, config) // 4, 256)
    names = ("q", "k", "v", "do", "dk", "dv", "lse", "delta", "dq")
    boxes = (queries, keys, keys, queries, keys, keys, row, row, dq)
    return {f"{name}_desc": box for name, box in zip(names, boxes, strict=True)}


def _constants(workload, config):
    consumer_registers, producer_registers, _ = _REGISTERS[config["WARPGROUPS"]]
    names = ("WARPGROUPS", "BLOCK_M", "Q_STAGES", "DS_STAGES", "DQ_STAGES", "DQ_SPLIT",
             "KV_IN_REGISTERS", "PREFETCH_S", "DEFER_ROW_LOADS", "STAGGER")  # fmt: skip
    masked = workload.causal or workload.seqlen_k % (64 * config["WARPGROUPS"]) != 0
    return {
        **{name: config[name] for name in names},
        "COLUMNS": _columns(workload),
        "UNIT": _unit(config),
        "CAUSAL": workload.causal,
        "MASKED": masked,
        "PEELED": _peeled(workload, config),
        "MASK_LOOP": masked and not _is_square(workload, config),
        "GROUPED": workload.group > 1,
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }


def device_function():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.gluon.attention_backward import attention_bwd

    return attention_bwd


def variant(workload, config, aligned=True):
    """What the compiler needs for one config, with no device present: a plain dict.

    The compiled kernel depends on no batch, head count or length. TMA reads `aligned` tensors only.
    """
    constants = _constants(workload, config)
    boxes = _boxes(workload, config).items()
    signature = {name: f"tensordesc<{dtype}{list(box)}>" for name, (dtype, box) in boxes}
    sizes = ("heads", "heads_kv", "seqlen_q", "seqlen_k", "rows", "section_heads")
    signature |= dict.fromkeys(sizes, "i32") | {"scale_log2": "fp32", "scale": "fp32"}
    return {
        "function": device_function,
        "signature": signature | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "aligned": [],
        "options": {"num_warps": 4, "maxnreg": _REGISTERS[config["WARPGROUPS"]][2]},
    }


def _prepare_rows():
    from tunefa.kernels.triton.backward_rows import prepare_rows

    return prepare_rows


def _write_dq():
    from tunefa.kernels.triton.backward_rows import write_dq

    return write_dq


def preprocess(workload, config):
    """The variant that writes lse and delta of the rows, and zeros to dQ's accumulator."""
    dtype = f"*{workload.dtype}"
    types = {"out_ptr": dtype, "do_ptr": dtype}
    names = ("lse_ptr", "dlse_ptr", "lse_log2_ptr", "delta_ptr", "dq_sum_ptr")
    types |= dict.fromkeys(names, "*fp32") | dict.fromkeys(("heads", "seqlen_q", "rows"), "i32")
    strides = [f"{name}_{axis}" for name in ("out", "do", "dlse") for axis in _AXES]
    types |= dict.fromkeys(strides, "i64")
    constants = {"HEAD_DIM": workload.head_dim, "COLUMNS": _columns(workload), "ROWS": _ROWS}
    return _in_triton(_prepare_rows, types, constants, ["out_ptr", "do_ptr", "lse_log2_ptr", "delta_ptr", "dq_sum_ptr"])


def postprocess(workload, config):
    """The variant that writes dQ."""
    types = {"dq_sum_ptr": "*fp32", "dq_ptr": f"*{workload.dtype}", "scale": "fp32"}
    types |= dict.fromkeys(("heads", "seqlen_q", "rows"), "i32")
    types |= dict.fromkeys((f"dq_{axis}" for axis in _AXES), "i64")
    width = _dq_columns(workload, config)
    constants = {"HEAD_DIM": workload.head_dim, "COLUMNS": _columns(workload), "WIDTH": width}
    return _in_triton(_write_dq, types, constants, ["dq_sum_ptr", "dq_ptr"])


_AXES = ("batch", "head", "row")


def _in_triton(function, types, constants, aligned):
    """Returns the variant of a kernel in Triton."""
    return {
        "function": function,
        "signature": types | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "aligned": aligned,
        "options": {"num_warps": 4},
    }
