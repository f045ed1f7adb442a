"""Matrix product in Triton, C = A B, for every NVIDIA chip from sm80 on.

A is (m, k), B is (k, n) and C is (m, n), of one dtype; sums are fp32. Where the dtype is fp32, the
tensor cores multiply in tf32.

Algorithm: the tiled product of Volkov and Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra"
(SC 2008). One program owns a tile of BLOCK_M rows and BLOCK_N columns of C, keeps it in registers,
and goes along k in steps of BLOCK_K. Programs are numbered so that those that run at the same time
compute tiles which share rows of A and columns of B, and find these in the L2 cache: GROUP_M rows
of tiles are a group, whose tiles are numbered column by column (Tillet et al., "Triton", MAPL
2019, describe it for Triton).

The letters of a workload's layout say how A and B are stored: n row by row, t column by column.
Rows of C, and of A and B as they are stored, are contiguous; the strides between them are free.
Tiles at the edges are masked, so m, n and k are free too. Offsets between rows have 64 bits.

This file is the host side. The device code is triton/matmul.py, which `device_function` imports
when something is compiled, as a launch needs no compiler.

What each parameter trades:
    BLOCK_M, BLOCK_N  reuse of B and of A against registers and the number of tiles
    BLOCK_K           fewer, longer steps against shared memory
    num_warps         registers of each thread for the tile, against warps that share each load
    num_stages        blocks of A and B in flight against shared memory
    GROUP_M           rows of tiles that share B in the L2 cache, against columns that share A
    USE_TMA           0: every thread copies by cp.async; 1: TMA copies a block at once (sm90 on)
"""

from __future__ import annotations

from tunefa.spec.rounding import ceil_div


def _constants(workload, config):
    """Everything the compiler sees as a constant: layout and tile, and whether k has a tail."""
    return {
        "TRANSPOSED_A": workload.layout[0] == "t",
        "TRANSPOSED_B": workload.layout[1] == "t",
        "K_HAS_TAIL": workload.k % config["BLOCK_K"] != 0,
        "USE_TMA": config["USE_TMA"] == 1,
        "BLOCK_M": config["BLOCK_M"],
        "BLOCK_N": config["BLOCK_N"],
        "BLOCK_K": config["BLOCK_K"],
    }


def _boxes(constants):
    """The blocks of A and of B as they are stored: (rows, columns) of each."""
    a_box = constants["BLOCK_M"], constants["BLOCK_K"]
    b_box = constants["BLOCK_K"], constants["BLOCK_N"]
    return (
        a_box[::-1] if constants["TRANSPOSED_A"] else a_box,
        b_box[::-1] if constants["TRANSPOSED_B"] else b_box,
    )


def device_function():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.triton.matmul import matmul

    return matmul


def variant(workload, config, aligned=True):
    """What the Triton compiler needs for one config, with no device present: a plain dict.

    `aligned`: whether all pointers, strides and sizes are multiples of 16. The compiled kernel
    depends on m and n only through that, and on k through its tail as well.
    """
    constants, kind = _constants(workload, config), workload.dtype
    sources = [f"*{kind}"] * 2
    if constants["USE_TMA"]:
        boxes = _boxes(constants)
        sources = [f"tensordesc<{kind}[{rows}, {columns}]>" for rows, columns in boxes]
    names = ("a_row", "b_row", "c_row", "m", "n", "k")
    signature = {
        "a_source": sources[0],
        "b_source": sources[1],
        "c_ptr": f"*{kind}",
        **dict.fromkeys((*names, "group_m"), "i32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    pointers = [name for name, kind in signature.items() if kind.startswith("*")]
    return {
        "function": device_function,
        "signature": signature,
        "constants": constants,
        "aligned": [*pointers, *names] if aligned else [],
        "options": {"num_warps": config["num_warps"], "num_stages": config["num_stages"]},
    }


def is_aligned(tensors):
    """Whether `variant(..., aligned=True)`, and with it TMA, may read these tensors.

    TMA needs 16-byte multiples (CUDA C++ Programming Guide, "Tensor Map"); multiples of 16 elements
    cover that for every dtype and let the compiler load 16 bytes at a time.
    """
    return all(
        tensor.data_ptr() % 16 == 0
        and all(size % 16 == 0 for size in tensor.shape)
        and all(step == 1 or step % 16 == 0 for step in tensor.stride())
        for tensor in tensors
    )


def _stored(tensor, transposed):
    """(shape, strides) of a matrix as it is stored, its rows contiguous."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return (shape[::-1], strides[::-1]) if transposed else (shape, strides)


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (a, b, c), see the head of this file. `a` and `b` are views of the shapes (m, k) and
    (k, n) in every layout; where it has a t, the first stride is 1, and elsewhere the last one.
    """
    a, b, c = tensors
    workload, config = spec.workload, spec.config
    constants = _constants(workload, config)
    a_shape, a_strides = _stored(a, constants["TRANSPOSED_A"])
    b_shape, b_strides = _stored(b, constants["TRANSPOSED_B"])
    a_source, b_source = a, b
    if constants["USE_TMA"]:
        a_box, b_box = _boxes(constants)
        a_source = {"map": a, "box": a_box, "shape": a_shape, "strides": a_strides}
        b_source = {"map": b, "box": b_box, "shape": b_shape, "strides": b_strides}
    tiles = ceil_div(workload.m, config["BLOCK_M"]) * ceil_div(workload.n, config["BLOCK_N"])
    sizes = [workload.m, workload.n, workload.k, config["GROUP_M"]]
    strides = [a_strides[0], b_strides[0], c.stride(0)]
    return (tiles, 1, 1), [a_source, b_source, c, *strides, *sizes, *constants.values()]
