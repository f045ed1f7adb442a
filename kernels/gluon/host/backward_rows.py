"""Host side of the kernels that run before and after the backward (triton/backward_rows.py)."""

from tunefa.spec.rounding import ceil_div

_ROWS = 64
"""Rows of a program of either kernel. They divide the rows of a head in the scratch tensors."""
_AXES = ("batch", "head", "row")


def prepare_rows():
    """Returns the kernel that runs before, which imports Triton."""
    from tunefa.kernels.triton.backward_rows import prepare_rows

    return prepare_rows


def write_dq():
    """Returns the kernel that runs after, which imports Triton."""
    from tunefa.kernels.triton.backward_rows import write_dq

    return write_dq


def preprocess(dtype, head_dim, columns):
    """Returns the variant of `prepare_rows`; `columns` is head_dim with its padding."""
    types = {"out_ptr": f"*{dtype}", "do_ptr": f"*{dtype}"}
    names = ("lse_ptr", "dlse_ptr", "lse_log2_ptr", "delta_ptr", "dq_sum_ptr")
    types |= dict.fromkeys(names, "*fp32") | dict.fromkeys(("heads", "seqlen_q", "rows"), "i32")
    types |= _strides("out", "do", "dlse")
    aligned = ["out_ptr", "do_ptr", "lse_log2_ptr", "delta_ptr", "dq_sum_ptr"]
    constants = {"HEAD_DIM": head_dim, "COLUMNS": columns, "ROWS": _ROWS}
    return _variant(prepare_rows, types, constants, aligned)


def postprocess(dtype, head_dim, columns, width):
    """Returns the variant of `write_dq`; `width` is how many columns of dQ were added at once."""
    types = {"dq_sum_ptr": "*fp32", "dq_ptr": f"*{dtype}", "scale": "fp32"}
    types |= dict.fromkeys(("heads", "seqlen_q", "rows"), "i32") | _strides("dq")
    constants = {"HEAD_DIM": head_dim, "COLUMNS": columns, "WIDTH": width}
    return _variant(write_dq, types, constants, ["dq_sum_ptr", "dq_ptr"])


def _strides(*names):
    """Returns the types of the strides of some tensors."""
    return dict.fromkeys([f"{name}_{axis}" for name in names for axis in _AXES], "i64")


def _variant(function, types, constants, aligned):
    """Returns the variant of a kernel."""
    return {
        "function": function,
        "signature": types | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "aligned": aligned,
        "options": {"num_warps": 4},
    }


def preprocess_arguments(tensors, rows, constants):
    """Returns the grid and the arguments of `prepare_rows`.

    `tensors` = (q, k, v, out, lse, dout, dlse, dq, dk, dv, lse in powers of two, delta, dQ's
    accumulator); `rows` are those of a head in the last three.
    """
    out, lse, dout, dlse = tensors[3:7]
    batch, heads, seqlen_q, _ = out.shape
    strides = [*_in_eights(out), *_in_eights(dout), *dlse.stride()]
    pointers = [out, dout, lse, dlse, *tensors[10:]]
    sizes = [heads, seqlen_q, rows]
    return (batch * heads * (rows // _ROWS), 1, 1), [*pointers, *sizes, *strides, *constants]


def postprocess_arguments(tensors, rows, scale, constants):
    """Returns the grid and the arguments of `write_dq`; see `preprocess_arguments`."""
    dq, dq_sum = tensors[7], tensors[12]
    batch, heads, seqlen_q, _ = dq.shape
    _, columns, width = constants
    grid = (batch * heads * (rows // _ROWS), ceil_div(columns, width), 1)
    return grid, [dq_sum, dq, scale, heads, seqlen_q, rows, *_in_eights(dq), *constants]


def _in_eights(tensor):
    """Returns the strides of batch, head and row in units of eight elements, 16 bytes."""
    return [step // 8 for step in tensor.stride()[:3]]
