"""The device code of matmul_triton.py, which describes the algorithm.

One Triton program computes one tile of C: BLOCK_M rows and BLOCK_N columns.
"""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a_source, b_source, c_ptr, a_row, b_row, c_row, m, n, k, group_m,
    TRANSPOSED_A: tl.constexpr, TRANSPOSED_B: tl.constexpr, K_HAS_TAIL: tl.constexpr,
    USE_TMA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Computes one tile. `a_row`, `b_row` and `c_row` are the strides between stored rows."""
    tile_m, tile_n = _tile_of_program(m, n, group_m, BLOCK_M, BLOCK_N)
    first_row, first_column = tile_m * BLOCK_M, tile_n * BLOCK_N
    if not USE_TMA:
        a_source = _block(a_source, a_row, first_row, BLOCK_M, BLOCK_K, TRANSPOSED_A, False)
        b_source = _block(b_source, b_row, first_column, BLOCK_N, BLOCK_K, TRANSPOSED_B, True)

    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, k, BLOCK_K):
        if USE_TMA:
            a = _load_by_tma(a_source, first_row, start, TRANSPOSED_A)
            b = _load_by_tma(b_source, start, first_column, TRANSPOSED_B)
        else:
            along_k = start + tl.arange(0, BLOCK_K)
            rows = first_row + tl.arange(0, BLOCK_M)
            columns = first_column + tl.arange(0, BLOCK_N)
            a_mask, b_mask = (rows < m)[:, None], (columns < n)[None, :]
            if K_HAS_TAIL:
                a_mask &= (along_k < k)[None, :]
                b_mask &= (along_k < k)[:, None]
            a = tl.load(a_source, mask=a_mask, other=0.0)
            b = tl.load(b_source, mask=b_mask, other=0.0)
            a_source += BLOCK_K * a_row.to(tl.int64) if TRANSPOSED_A else BLOCK_K
            b_source += BLOCK_K if TRANSPOSED_B else BLOCK_K * b_row.to(tl.int64)
        acc = tl.dot(a, b, acc, input_precision="tf32")
    _store_tile(c_ptr, c_row, acc, first_row, first_column, m, n, BLOCK_M, BLOCK_N)


@triton.jit
def _tile_of_program(m, n, group_m, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Returns (row, column) of this program's tile, in tiles.

    Groups of `group_m` rows of tiles come one after the other; inside a group, columns do.
    """
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    first = program // (group_m * tiles_n) * group_m
    rows_here = tl.minimum(tiles_m - first, group_m)
    rest = program - first * tiles_n
    return first + rest % rows_here, rest // rows_here


@triton.jit
def _block(
    pointer, stride, first, SIZE: tl.constexpr, BLOCK_K: tl.constexpr,
    TRANSPOSED: tl.constexpr, K_IS_ROW: tl.constexpr,
):  # fmt: skip
    """Returns pointers to the first block of A or B along k: (SIZE, BLOCK_K), or (BLOCK_K, SIZE)
    with K_IS_ROW. `stride` is that between stored rows."""
    sizes = first + tl.arange(0, SIZE).to(tl.int64)
    along_k = tl.arange(0, BLOCK_K).to(tl.int64)
    if TRANSPOSED == K_IS_ROW:  # a stored row goes along k
        sizes *= stride
    else:
        along_k *= stride
    if K_IS_ROW:
        return pointer + (along_k[:, None] + sizes[None, :])
    else:
        return pointer + (sizes[:, None] + along_k[None, :])


@triton.jit
def _load_by_tma(source, row, column, TRANSPOSED: tl.constexpr):
    """Loads the block at (row, column) of A or B, zero beyond its edges. `source` is a descriptor
    of the matrix as it is stored."""
    return source.load([column, row]).T if TRANSPOSED else source.load([row, column])


@triton.jit
def _store_tile(
    c_ptr, c_row, acc, first_row, first_column, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Writes the tile to C."""
    rows = first_row + tl.arange(0, BLOCK_M)
    columns = first_column + tl.arange(0, BLOCK_N)
    tl.store(
        c_ptr + rows.to(tl.int64)[:, None] * c_row + columns[None, :],
        acc.to(c_ptr.dtype.element_ty),
        mask=(rows < m)[:, None] & (columns < n)[None, :],
    )
