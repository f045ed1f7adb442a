"""Host side of the kernel that writes V^T before 8-bit attention runs (triton/transpose_v.py)."""

from tunefa.kernels.hopper import transposed_v

from tunefa.spec.rounding import ceil_div

_WORDS = 2048
"""Words of four keys times words of four columns that a program of `transpose` works on."""


def transpose():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.triton.transpose_v import transpose

    return transpose


def preprocess(head_dim):
    """Returns the variant of `transpose`."""
    constants = {"COLUMNS": head_dim // 4, "WORDS": _WORDS // (head_dim // 4)}
    types = {"v_ptr": "*i32", "vt_ptr": "*i32", "heads_kv": "i32", "seqlen_k": "i32"}
    types |= {"groups": "i32", "v_batch": "i64", "v_head": "i64", "v_key": "i64"}
    return {
        "function": transpose,
        "signature": types | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "aligned": ["v_ptr", "vt_ptr"],
        "options": {"num_warps": 4},
    }


def preprocess_arguments(v, vt):
    """Returns grid and arguments of `transpose`; v is (batch, heads_kv, seqlen_k, head_dim),
    aligned."""
    batch, heads_kv, seqlen_k, head_dim = v.shape
    constants = preprocess(head_dim)["constants"].values()
    groups = vt.shape[3] // transposed_v.KEYS
    # Only the first of the three axes of a grid can be larger than 65,535.
    grid = (batch * heads_kv, ceil_div(4 * groups, _WORDS // (head_dim // 4)), 1)
    return grid, [v, vt, heads_kv, seqlen_k, groups, *transposed_v.strides(v), *constants]
