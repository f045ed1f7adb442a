"""Host side of attention_bwd_cuda_sm90.cu: what is compiled for a workload, and how it is launched.

The .cu describes the algorithm. What each parameter trades:
    BLOCK_M               fewer, longer steps against registers and shared memory; any multiple of
                          16, of 32 with head dimensions up to 64
    Q_STAGES, DO_STAGES   blocks of Q, and of dO, in flight against shared memory
    PING_PONG             1: the two consumer warpgroups take turns at the tensor cores
    DQ_WARPGROUP          1: a warpgroup of its own computes dQ. The consumers then compute the next
                          step's exponentials while dV and dK are multiplied, but fewer rows fit;
                          0: the consumers compute it
    DQ_FIRST              1: dQ of the step before is the first product of a step, and is stored
                          while dV and dK are multiplied; 0: dV is the first
    EARLY_SCORES          1: S of the next step starts before the products of a step are finished,
                          so that the tensor cores do not pause; 0: for more registers
    K_IN_REGISTERS        1: each thread keeps its part of K, which S then reads from registers and
                          not from shared memory; up to head_dim 64
    FOLD_ROW_TERMS        bf16: 1: the tensor cores add -lse to S and -delta to dP, so that no
                          registers, loads and subtractions are needed for them; 0: for less shared
                          memory and shorter products
    ZERO_DQ               1: the kernel before zeroes dQ's accumulator; 0: the first CTA that comes
                          to a block of rows stores, and the others wait for this
    EARLY_POSTPROCESS     deterministic gradients, which count additions: 1: the kernel after writes
                          a block of dQ as soon as it is finished, while the last tiles are
                          computed; 0: when all are
    STAGGER               full masks without windows: each CTA of a head begins this many blocks of
                          rows later than the one before, so that they do not add to the same rows
                          of dQ at the same time; 0: all begin with the first
    HEADS_INSIDE          causal masks, windows on the right: 1: a CTA goes through the blocks of
                          rows once, from the last one on, and through all query heads of the
                          group at each, so that CTAs of a KV head read the same Q and dO at the
                          same time; 0: through all blocks of one query head, then of the next
    PERSISTENT            1: one CTA per SM works on one tile after the other, and copies early for
                          the next one; 0: one CTA per tile
    K_STAGES              PERSISTENT: 2: K of the next tile is copied while this one is computed,
                          and the last dQ of a tile is computed in the next one; 1: for less
                          shared memory
    GROUP_SPLITS          CTAs that share the query heads of a tile of keys, for SMs that would idle
                          where there are few tiles. Each writes its sum in fp32, and the kernel
                          after adds them up. The more CTAs, the more memory is moved
    L2_SECTION_HEADS      causal masks, windows on the right: KV heads whose CTAs run together, so
                          that what they share stays in the L2 cache. Deterministic gradients: the
                          more heads, the fewer CTAs of one head run at the same time, and wait for
                          each other; causal ones wait least with at most half of all heads
"""

import ctypes
import math

from tunefa.kernels.hopper.gradients import is_aligned  # noqa: F401 - a part of the contract

from tunefa.spec.rounding import ceil_div, next_pow2, round_up

LOG2_E = math.log2(math.e)
_KEYS = 128
"""Keys of a CTA, 64 of each consumer warpgroup."""
_WARPGROUPS = 2
_ROW_THREADS = 256
"""Threads of a CTA of `prepare_rows` and `write_dq`, as in cuda/backward_rows.cuh."""
_OF_MAIN_KERNEL = (
    "Q_STAGES", "DO_STAGES", "PING_PONG", "DQ_WARPGROUP", "DQ_FIRST", "EARLY_SCORES",
    "K_IN_REGISTERS", "EARLY_POSTPROCESS", "STAGGER", "HEADS_INSIDE", "PERSISTENT", "K_STAGES",
    "GROUP_SPLITS",
)  # fmt: skip
"""Parameters that are macros of the main kernel, and not of all."""
_FAR = 2**29
"""A window that hides no key."""
_ROW_LIMIT, _ANY_SEQUENCE = 2**30, 2**31 - 2**16
"""The lengths of axes in maps of packed sequences: that of rows, as in cuda/bulk_copy.cuh, and the
two whose coordinates select a sequence."""


def _columns(workload):
    """Returns head_dim with its padding."""
    return round_up(workload.head_dim, 64)


def _sequences(tensors, workload):
    """Returns for how many batches or packed sequences there is room."""
    return next_pow2(max(1, tensors[10].shape[0] - 1)) if workload.varlen else workload.batch


def _blocks_of(length, tensor, size, tensors, workload):
    """Returns the blocks of so many rows of a head of a tensor, of `length` rows. Packed sequences
    have room for as many rows and sequences as the next powers of two, and for a block of each that
    is not full."""
    if workload.varlen:
        return next_pow2(tensor.shape[0]) // size + _sequences(tensors, workload)
    return ceil_div(length, size)


def _blocks(tensors, spec):
    """Returns the blocks of query rows of a head."""
    w = spec.workload
    return _blocks_of(w.seqlen_q, tensors[0], spec.config["BLOCK_M"], tensors, w)


def _key_tiles(tensors, workload):
    """Returns the tiles of a head's keys."""
    return _blocks_of(workload.seqlen_k, tensors[1], _KEYS, tensors, workload)


def _all_key_tiles(tensors, workload):
    """Returns the tiles of keys of all KV heads."""
    heads = (1 if workload.varlen else workload.batch) * workload.heads_kv
    return heads * _key_tiles(tensors, workload)


def _defines(workload, config):
    return {
        "HEAD_DIM": workload.head_dim,
        "BLOCK_M": config["BLOCK_M"],
        "ZERO_DQ": config["ZERO_DQ"],
        "FOLD_ROW_TERMS": config["FOLD_ROW_TERMS"],
        "DTYPE_FP16": int(workload.dtype == "fp16"),
        "VARLEN": int(workload.varlen),
    }


def variant(workload, config, aligned=True):
    """Returns what the compiler needs for one config, with no device present: a plain dict.

    The compiled kernel depends on no batch or head count, on no window size, and on no length but
    for whether a CTA's keys divide it. TMA reads `aligned` tensors only.
    """
    left, right = workload.band
    defines = _defines(workload, config) | {
        **{name: config[name] for name in _OF_MAIN_KERNEL},
        "DETERMINISTIC": int(workload.deterministic),
        "CAUSAL": int(right is not None),
        "WINDOWED": int(left is not None),
        "RAGGED": int(workload.varlen or workload.seqlen_k % _KEYS != 0),
    }
    return {
        "function": "attention_bwd",
        "defines": defines,
        "threads": (3 + config["DQ_WARPGROUP"]) * 128,
        "overlaps_kernel_before": True,
    }


def _of_rows(function, workload, config):
    """Returns the variant of a kernel that runs before or after."""
    defines = _defines(workload, config) | {function.upper(): 1}
    return {
        "function": function,
        "defines": defines,
        "threads": _ROW_THREADS,
        "smem_bytes": 0,
    }


def preprocess(workload, config):
    """The variant that writes lse and delta, and zeros to dQ's accumulator."""
    return _of_rows("prepare_rows", workload, config)


def postprocess(workload, config):
    """The variant that writes dQ, and with GROUP_SPLITS dK and dV."""
    made = _of_rows("write_dq", workload, config)
    made["defines"]["GROUP_SPLITS"] = config["GROUP_SPLITS"]
    if config["EARLY_POSTPROCESS"]:
        made["defines"] |= {"EARLY_POSTPROCESS": 1, "DETERMINISTIC": 1}
    return {**made, "overlaps_kernel_before": True}


def unordered(workload, config):
    """Returns the outputs whose additions have no fixed order."""
    return () if workload.deterministic else ("dq",)


def scratch(tensors, spec):
    """The memory of (terms of lse, those of delta, dQ's accumulator, the counts of tiles and of its
    parts), of whole blocks of rows; with GROUP_SPLITS, that of each CTA's dK and dV."""
    import torch  # importing it takes seconds, and compiling does not need it

    blocks = _row_blocks(tensors, spec)
    rows = blocks * spec.config["BLOCK_M"]
    numbers = ((rows, 4) if spec.config["FOLD_ROW_TERMS"] else (rows,), torch.float32)
    sums = ((rows, _columns(spec.workload)), torch.float32)
    made = numbers, numbers, sums, ((blocks + 1, _WARPGROUPS, 2), torch.int32)
    if (splits := spec.config["GROUP_SPLITS"]) == 1:
        return made
    tiles, width = _all_key_tiles(tensors, spec.workload), round_up(spec.workload.head_dim, 16)
    return *made, ((tiles * splits, 2 * _KEYS, width), torch.float32)


def _scratch(tensors, spec):
    """Returns five tensors: those of `scratch`. Without GROUP_SPLITS no kernel reads the last one,
    and another tensor stands for it."""
    if spec.config["GROUP_SPLITS"] > 1:
        return tensors[-5:]
    return *tensors[-4:], tensors[-2]


def _row_blocks(tensors, spec):
    """Returns the blocks of query rows of all heads. `prepare_rows` has as many CTAs, and so has
    `write_dq` for dQ."""
    w = spec.workload
    return (1 if w.varlen else w.batch) * w.heads * _blocks(tensors, spec)


def _bounds(tensors, workload):
    """Returns (cu_seqlens_q, cu_seqlens_k, packed sequences and one more). Dense tensors have none,
    and any pointers do."""
    if workload.varlen:
        return *tensors[10:12], (tensors[10], 0)
    return tensors[0], tensors[0], ctypes.c_int(0)


class _Strides(ctypes.Structure):
    """The strides of batches, heads and rows, in elements."""

    _fields_ = tuple((name, ctypes.c_longlong) for name in ("batch", "head", "row"))


def _strides(tensor, workload):
    """Returns those of (batch, heads, rows, ...), or of packed (rows, heads, head_dim) or (heads,
    rows)."""
    steps = tensor.stride()
    if workload.varlen:
        return _Strides(0, *(steps if len(steps) == 2 else (steps[1], steps[0])))
    return _Strides(*steps[:3])


def lse_factor(config, scale):
    """Returns what `prepare_rows` multiplies lse by, in fp32."""
    return ctypes.c_float(-1.0 / scale if config["FOLD_ROW_TERMS"] else LOG2_E).value


def preprocess_arguments(tensors, spec):
    """The grid and the arguments of `prepare_rows`."""
    out, lse, dout, dlse = tensors[3:7]
    w = spec.workload
    starts_q, _, bounds = _bounds(tensors, w)
    sizes = [ctypes.c_float(lse_factor(spec.config, spec.scale))]
    sizes += [ctypes.c_int(w.heads), ctypes.c_int(w.seqlen_q), (lse, lse.dim() - 1)]
    strides = [_strides(each, w) for each in (out, dout, dlse)]
    return (_row_blocks(tensors, spec), 1, 1), [
        out, dout, lse, dlse, *_scratch(tensors, spec)[:4], starts_q, bounds,
        *sizes, ctypes.c_int(_blocks(tensors, spec)), *strides,
    ]  # fmt: skip


def postprocess_arguments(tensors, spec):
    """The grid and the arguments of `write_dq`."""
    w, (dq, dk, dv) = spec.workload, tensors[7:10]
    starts_q, starts_k, bounds = _bounds(tensors, w)
    _, _, dq_sum, arrivals, key_sums = _scratch(tensors, spec)
    sizes = (w.heads, w.seqlen_q, _blocks(tensors, spec), w.seqlen_k, *_edges(w))
    numbers = [starts_q, starts_k, bounds, ctypes.c_float(spec.scale)]
    numbers += [*map(ctypes.c_int, sizes), _strides(dq, w)]
    ctas = _row_blocks(tensors, spec)
    found = [dq_sum, arrivals, dq, *numbers]
    if spec.config["GROUP_SPLITS"] > 1:
        sizes = (w.heads_kv, _key_tiles(tensors, w), ctas)
        found += [key_sums, dk, dv, *map(ctypes.c_int, sizes), _strides(dk, w), _strides(dv, w)]
        ctas += 2 * _all_key_tiles(tensors, w)
    return (ctas, 1, 1), found


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its parameters.

    `tensors` = (q, k, v, out, lse, dout, dlse, dq, dk, dv), then the memory of `scratch`: q, out,
    dout, dq (batch, heads, seqlen_q, head_dim), k, v, dk, dv (batch, heads_kv, seqlen_k, head_dim),
    aligned, rows contiguous; lse and dlse (batch, heads, seqlen_q), fp32, lse contiguous. Packed:
    (rows, heads, head_dim), lse and dlse (heads, rows), and behind dv cu_seqlens_q and
    cu_seqlens_k, (batch + 1,), int32. `scale` multiplies q @ k^T and is at least 2^-100.
    """
    q, k, v, _, _, dout, _, _, dk, dv = tensors[:10]
    w, config, scale = spec.workload, spec.config, spec.scale
    rows, splits = config["BLOCK_M"], config["GROUP_SPLITS"]
    maps = [_map(q, rows), _map(k, _KEYS), _map(v, _KEYS), _map(dout, rows), _map(dk), _map(dv)]
    heads_kv = w.heads_kv * splits
    sizes = (w.heads, heads_kv, w.seqlen_k, *_edges(w), _blocks(tensors, spec))
    tiles = _sequences(tensors, w) * heads_kv * ceil_div(w.seqlen_k, _KEYS)
    sizes += (config["L2_SECTION_HEADS"] * splits, tiles, _key_tiles(tensors, w))
    numbers = [*map(ctypes.c_int, sizes)]
    numbers += map(ctypes.c_float, (scale * LOG2_E, scale))
    ctas = min(tiles, spec.sms) if config["PERSISTENT"] else tiles
    return (ctas, 1, 1), [*maps, *_scratch(tensors, spec), *_bounds(tensors, w), *numbers]


def _edges(workload):
    """Returns (diagonal, window_keys): row i sees the last window_keys keys up to key i + diagonal;
    with packed sequences, up to key i + diagonal + seqlen_k - seqlen_q. An edge that there is not
    is one that hides no key."""
    left, right = (_FAR if side is None else side for side in workload.band)
    diagonal = 0 if workload.varlen else workload.seqlen_k - workload.seqlen_q
    return diagonal + right, left + 1 + right


def _map(tensor, rows=64):
    """A tensor as TMA copies it, by so many rows and 64 columns at a time.

    With the coordinates (2^30, begin + length, head, 2^30 - length + row, column) of a packed
    sequence, the fourth one is outside of its axis where the sequence ends. The strides of the axes
    before it make the address right, as addresses wrap at 2^64 (Triton's tools/ragged_tma.py).
    """
    made = {"map": tensor, "box": (1, 1, rows, 64), "swizzle_bytes": 128}
    if tensor.dim() == 3:
        step, head_step, _ = tensor.stride()
        made["shape"] = (_ANY_SEQUENCE, _ANY_SEQUENCE, tensor.shape[1], _ROW_LIMIT, tensor.shape[2])
        made["strides"] = (2**34 - step, step, head_step, step, 1)
        made["box"] = (1, *made["box"])
    return made
