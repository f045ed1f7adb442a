r"""FlashAttention backward for Hopper in Gluon: warp-specialised, TMA and WGMMA.

    P = exp(scale * q @ k^T - lse)         dP = dout @ v^T         delta = rowsum(dout * out) - dlse
    dS = P * (dP - delta)    dq = scale * dS @ k    dk = scale * dS^T @ q    dv = P^T @ dout

Algorithm: Dao, "FlashAttention-2", arXiv:2307.08691, section 3.1.2, with the warp specialisation of
Shah et al., "FlashAttention-3", arXiv:2407.08608. A CTA owns 64 * WARPGROUPS keys of one KV head,
64 of them for each consumer warpgroup. K and V stay in shared memory, and dK and dV in registers,
while the blocks of BLOCK_M query rows pass, of all query heads that share the KV head:

                             query rows, in blocks of BLOCK_M
                         block 0     block 1     block 2     block 3
                       +-----------+-----------+-----------+-----------+
    warpgroup 0        |         \ | x x x x x | x x x x x | x x x x x |   64 keys
                       +-----------+-----------+-----------+-----------+
    warpgroup 1        |           |         \ | x x x x x | x x x x x |   64 keys
                       +-----------+-----------+-----------+-----------+

All products are transposed, so that P^T and dS^T are left operands from registers. dS^T also goes
to shared memory, as dQ needs that of all keys of the CTA. The producer is one warp:

    producer                         consumer warpgroup, for each step
    --------                         ---------------------------------
    Q, lse: wait empty, copy ------> start S^T = K Q^T
    dO, delta: copy ---------------> start dP^T = V dO^T
                                     P^T = exp2(S^T - lse); start dV += P^T dO
                                     dS^T = P^T * (dP^T - delta), to registers and shared memory
                                     start dQ = dS K of the step before, and dK += dS^T Q
                                     add dQ of the step before to its accumulator, by TMA
                        <- empty --  dV and dK are finished: release Q and dO

dQ lags by one step: the other warpgroup has long stored its part of dS by then, so nobody waits.
Its accumulator is in fp32 in global memory and shared by all CTAs of a head. TMA adds to it, in an
order that differs from launch to launch, so that dQ is not bitwise reproducible. A preprocess
kernel writes delta, lse in powers of two, and zeros to the accumulator; a postprocess kernel
converts dQ to its dtype (triton/backward_rows.py).

head_dim is padded to 64 or 128 columns by TMA, which reads zeros beyond a tensor and writes nothing
there. The same holds for rows beyond seqlen_q and keys beyond seqlen_k; lse = inf makes P of such
rows 0, and those keys are masked. Causal means bottom-right aligned (FlashAttention >= 2.1): query
i sees keys j <= i + seqlen_k - seqlen_q. CTAs of the first keys, which most rows see, start first.

This file is the host side. The device code is gluon/attention_backward.py.

What each parameter trades:
    WARPGROUPS            keys per CTA, so less traffic of Q, dO and dQ, against CTAs: with one
                          warpgroup, two CTAs fit on an SM
    BLOCK_M               fewer, longer steps against registers and shared memory
    Q_STAGES              blocks of Q and of dO in flight against shared memory
    DS_STAGES             3: a warpgroup stores dS while the others are up to one step behind;
                          2: it waits for the end of the step before
    DQ_STAGES             2: a block of dQ is staged while TMA still reads the one before
    DQ_SPLIT              what a warpgroup computes of dQ. 0: its part of the columns of every
                          block; 1: all of every other block, which are fewer and larger products;
                          2: its 64 rows of every block
    DQ_SWIZZLE_BYTES      0: a block of dQ is contiguous in shared memory, and one TMA message adds
                          it; 128: it is swizzled, and one message adds 32 of its columns
    KV_IN_REGISTERS       1: K and V are left operands from registers, which saves traffic of shared
                          memory
    PREFETCH_S            S^T of the next step is started 0: in that step; 1: before this step's dQ
                          is staged; 2: after that
    DEFER_ROW_LOADS       lse and delta are loaded 0: before the products that they wait for; 1:
                          delta after its product; 2: both after theirs, for fewer live registers
    STAGGER               full masks: each CTA begins this many units of rows later than the one
                          before, so that they do not add to the same rows of dQ at the same time;
                          0: all begin with the first
    L2_SECTION_HEADS      causal: KV heads whose CTAs run together, so that what they share stays in
                          the L2 cache
"""

import math

from tunefa.kernels.gluon.host import backward_rows

from tunefa.spec.rounding import ceil_div, round_up

LOG2_E = math.log2(math.e)
_REGISTERS = {1: (232, 24, 128), 2: (240, 24, 168)}
"""By WARPGROUPS: registers per thread of a consumer, of the producer, and of all threads at the
launch, before setmaxnreg moves registers from the producer to the consumers: 65,536 in all, for one
warpgroup in two CTAs."""
_SPLIT_COLUMNS, _TAKE_TURNS = 0, 1
"""Values of DQ_SPLIT."""
_CONTIGUOUS = "NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)"
"""The layout of a block of dQ in shared memory with DQ_SWIZZLE_BYTES 0."""
_BY_TMA = (0, 1, 2, 3, 5, 7, 8, 9)
"""Tensors of a call that TMA, or loads of 16 bytes, access: all but lse, dlse and the scratch."""


def is_aligned(tensors):
    """Whether TMA can access the tensors of a call: addresses and strides have to be multiples of
    16 bytes (CUDA C++ Programming Guide, "Tensor Map")."""
    return all(
        tensors[i].data_ptr() % 16 == 0
        and all(step * tensors[i].element_size() % 16 == 0 for step in tensors[i].stride()[:-1])
        for i in _BY_TMA
    )


def _columns(workload):
    """Returns head_dim with its padding."""
    return 64 if workload.head_dim <= 64 else 128


def _keys(config):
    """Returns the keys of a CTA."""
    return 64 * config["WARPGROUPS"]


def _unit(config):
    """Returns the query rows that the kernel's loops advance by: one block for each warpgroup that
    computes whole blocks of dQ."""
    return config["BLOCK_M"] * (config["WARPGROUPS"] if config["DQ_SPLIT"] == _TAKE_TURNS else 1)


def _dq_columns(workload, config):
    """Returns the columns of dQ that a warpgroup adds at once."""
    parts = config["WARPGROUPS"] if config["DQ_SPLIT"] == _SPLIT_COLUMNS else 1
    return _columns(workload) // parts


def _is_square(workload, config):
    """Returns whether the diagonal crosses the same units of every CTA, and only once."""
    offset = workload.seqlen_k - workload.seqlen_q
    same = _keys(config) % _unit(config) == 0 and offset % _keys(config) == 0
    return workload.causal and workload.group == 1 and same


def _peeled(workload, config):
    """Returns how many units come before the kernel's loops: the first, or those on the diagonal.

    In the second case the loop has no mask, and rows are padded to whole CTAs of keys.
    """
    return _keys(config) // _unit(config) if _is_square(workload, config) else 1


def _rows(workload, config):
    """Returns the rows of a query head in the scratch tensors."""
    return round_up(workload.seqlen_q, _unit(config) * _peeled(workload, config))


def _boxes(workload, config):
    """Returns dtype and shape of what TMA copies at once, by the name of the descriptor."""
    columns, dtype = _columns(workload), workload.dtype
    queries, keys = (dtype, (1, 1, config["BLOCK_M"], columns)), (dtype, (1, 1, 64, columns))
    row = "fp32", (config["BLOCK_M"],)
    dq = "fp32", (_dq_columns(workload, config) // 4, 256)
    names = ("q", "k", "v", "do", "dk", "dv", "lse", "delta", "dq")
    boxes = (queries, keys, keys, queries, keys, keys, row, row, dq)
    return {f"{name}_desc": box for name, box in zip(names, boxes, strict=True)}


def _constants(workload, config):
    consumer_registers, producer_registers, _ = _REGISTERS[config["WARPGROUPS"]]
    names = ("WARPGROUPS", "BLOCK_M", "Q_STAGES", "DS_STAGES", "DQ_STAGES", "DQ_SPLIT",
             "KV_IN_REGISTERS", "PREFETCH_S", "DEFER_ROW_LOADS", "STAGGER")  # fmt: skip
    masked = workload.causal or workload.seqlen_k % _keys(config) != 0
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
    """Returns what the compiler needs for one config, with no device: a plain dict.

    The compiled kernel depends on no batch, head count or length, but on whether there are groups
    and whether blocks divide the lengths. TMA reads `aligned` tensors only.
    """
    constants = _constants(workload, config)
    boxes = _boxes(workload, config).items()
    signature = {name: f"tensordesc<{dtype}{list(box)}>" for name, (dtype, box) in boxes}
    if config["DQ_SWIZZLE_BYTES"] == 0:  # by default the widest swizzle
        signature["dq_desc"] = f"{signature['dq_desc'][:-1]},{_CONTIGUOUS}>"
    sizes = ("heads", "heads_kv", "seqlen_q", "seqlen_k", "rows", "section_heads")
    signature |= dict.fromkeys(sizes, "i32") | {"scale_log2": "fp32", "scale": "fp32"}
    return {
        "function": device_function,
        "signature": signature | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "aligned": [],
        "options": {"num_warps": 4, "maxnreg": _REGISTERS[config["WARPGROUPS"]][2]},
    }


def preprocess(workload, config):
    """The variant that writes lse and delta, and zeros to dQ's accumulator."""
    return backward_rows.preprocess(workload.dtype, workload.head_dim, _columns(workload))


def postprocess(workload, config):
    """The variant that writes dQ."""
    sizes = workload.head_dim, _columns(workload), _dq_columns(workload, config)
    return backward_rows.postprocess(workload.dtype, *sizes)


def unordered(workload, config):
    """Returns the outputs whose additions have no fixed order."""
    return ("dq",)


def scratch(tensors, spec):
    """The memory of (lse in powers of two, delta, dQ's accumulator): numbers of `_rows` rows of
    each head, and their columns in blocks of 256 elements."""
    import torch  # importing it takes seconds, and compiling does not need it

    w = spec.workload
    rows = w.batch * w.heads * _rows(w, spec.config)
    sums = (rows * _columns(w) // 256, 256)
    return ((rows,), torch.float32), ((rows,), torch.float32), (sums, torch.float32)


def preprocess_arguments(tensors, spec):
    """The grid and the arguments of `preprocess`."""
    workload, config = spec.workload, spec.config
    constants = preprocess(workload, config)["constants"].values()
    return backward_rows.preprocess_arguments(tensors, _rows(workload, config), constants)


def postprocess_arguments(tensors, spec):
    """The grid and the arguments of `postprocess`."""
    workload, config = spec.workload, spec.config
    constants = postprocess(workload, config)["constants"].values()
    rows = _rows(workload, config)
    return backward_rows.postprocess_arguments(tensors, rows, spec.scale, constants)


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse, dout, dlse, dq, dk, dv), then the memory of `scratch`: q, out,
    dout, dq (batch, heads, seqlen_q, head_dim), k, v, dk, dv (batch, heads_kv, seqlen_k, head_dim),
    aligned, rows contiguous; lse and dlse (batch, heads, seqlen_q), fp32, lse contiguous. `scale`
    multiplies q @ k^T and is positive.
    """
    q, k, v, _, _, dout, _, _, dk, dv, lse_log2, delta, dq_sum = tensors
    w, config, scale = spec.workload, spec.config, spec.scale
    boxes = _boxes(w, config).values()
    mapped = (q, k, v, dout, dk, dv, lse_log2, delta, dq_sum)
    maps = [{"map": t, "box": box} for t, (_, box) in zip(mapped, boxes, strict=True)]
    sizes = [w.heads, w.heads_kv, w.seqlen_q, w.seqlen_k, _rows(w, config)]
    sizes += [config["L2_SECTION_HEADS"], scale * LOG2_E, scale]
    ctas = w.batch * w.heads_kv * ceil_div(w.seqlen_k, _keys(config))
    return (ctas, 1, 1), [*maps, *sizes, *_constants(w, config).values()]
