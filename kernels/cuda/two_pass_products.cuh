// Products of the two-pass attention backward, and how sums leave the registers.
//
// Included by attention_bwd_two_pass_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

WGMMA_BY_COLUMNS(48, 3, 24, 25, 26, 27, 28, 29)  // beside those of wgmma_transposed.cuh

// Rows of 64 columns lie in chunks of 128 bytes a row, one chunk behind the other, swizzled as
// WGMMA and TMA have it: see wgmma.cuh for the layout of accumulators.
constexpr int ROW_BYTES = 128, OWN_CHUNK = 64 * ROW_BYTES;  // a chunk of what a warpgroup owns

// The address of a unit of 16 bytes of a row, in a chunk.
DEVICE u32 swizzled_address(u32 chunk, int row, int unit) {
    return chunk + row * ROW_BYTES + ((unit ^ row % 8) << 4);
}

// The matrix descriptor of rows of a chunk, or of chunks that are `leading_bytes` apart. The
// compiler is to compute it where it is used: those of all products do not fit the registers.
DEVICE u64 rows_descriptor(u32 address, u32 leading_bytes = 0) {
    return matrix_descriptor<ROW_BYTES>(opaque(address), leading_bytes, 8 * ROW_BYTES);
}
// What a descriptor's address is increased by.
DEVICE constexpr u64 further(u32 bytes) {
    return bytes >> 4;
}

// One arrival of a warp, when all its threads have come.
DEVICE void arrive_warp(u32 barrier, int lane) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barrier);
}

// The first COLUMNS columns of 64 rows, as left operands in registers.
template <int COLUMNS>
struct LeftOperand {
    u32 x[COLUMNS ? COLUMNS / 4 : 1];

    DEVICE void load(u32 rows, int lane, int warp) {
#pragma unroll
        for (int k = 0; k < COLUMNS / 16; k++)
            ldmatrix_x4(x + 4 * k, swizzled_address(rows + k / 4 * OWN_CHUNK, 16 * warp + lane % 16,
                                                    k % 4 * 2 + lane / 16));
    }
};

// Starts d = own @ block^T over SUMMED columns: 64 rows that the warpgroup owns, whose first
// columns are also in registers, and N rows.
template <int SUMMED, int N, int COLUMNS>
DEVICE void start_scores(float (&d)[N / 2], const LeftOperand<COLUMNS>& left, u32 own, u32 block) {
    const u64 a = rows_descriptor(own), b = rows_descriptor(block);
    wgmma_fence_operand(d);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < SUMMED / 16; k++) {
        const u64 b_k = b + further(k / 4 * N * ROW_BYTES + k % 4 * 32);
        if constexpr (COLUMNS > 0) {
            if (k < COLUMNS / 16) {
                WgmmaByColumns<N>::rs(d, left.x + 4 * k, b_k, k > 0);
                continue;
            }
        }
        Wgmma<N>::template ss<0>(d, a + further(k / 4 * OWN_CHUNK + k % 4 * 32), b_k, k > 0);
    }
    wgmma_commit();
}

// Starts d += left @ block, or d = left @ block where IS_FIRST: (64, ROWS) from registers, and a
// block of ROWS rows of N columns.
template <bool IS_FIRST, int N, int ROWS>
DEVICE void start_sum(float (&d)[N / 2], u32 (&left)[ROWS / 4], u32 block) {
    const u64 b = rows_descriptor(block, ROWS * ROW_BYTES);
    wgmma_fence_operand(d);
    wgmma_fence_operand(left);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) {
        if (IS_FIRST && k == 0)
            Wgmma<N>::template rs<0>(d, left, b);
        else
            Wgmma<N>::template rs<1>(d, left + 4 * k, b + further(k * 16 * ROW_BYTES));
    }
    wgmma_commit();
}

// Two neighbouring numbers of a thread in the dtype, as a left operand has them.
template <int N>
DEVICE void to_operand(u32 (&to)[N / 4], const float (&from)[N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) to[i] = cvt_16bit_x2<IS_BF16>(from[2 * i], from[2 * i + 1]);
}

// Puts a sum of 64 rows, times `factor`, into a buffer, and waits for all threads of the warpgroup.
template <int N>
DEVICE void put(const float (&x)[N / 2], float factor, u32 to, int warpgroup, int lane, int warp) {
    const int row = 16 * warp + lane % 16;
#pragma unroll
    for (int column = 0; column < N; column += 16) {
        const float* y = x + column / 2;
        stmatrix_x4(swizzled_address(to + column / 64 * OWN_CHUNK, row,
                                     column % 64 / 8 + lane / 16),
                    cvt_16bit_x2<IS_BF16>(y[0] * factor, y[1] * factor),
                    cvt_16bit_x2<IS_BF16>(y[2] * factor, y[3] * factor),
                    cvt_16bit_x2<IS_BF16>(y[4] * factor, y[5] * factor),
                    cvt_16bit_x2<IS_BF16>(y[6] * factor, y[7] * factor));
    }
    fence_proxy_async();
    named_barrier_sync(1 + warpgroup, 128);
}
// Starts the copy of such a buffer to memory. One thread calls it.
DEVICE void send(u32 from, const TensorMap* map, int chunks, int row, int head, int batch) {
    for (int i = 0; i < chunks; i++)
        tma_store(map, from + i * OWN_CHUNK, 64 * i, row, head, batch);
    tma_store_commit();
}

struct InputMaps {
    const TensorMap *q, *k, *v, *dout;
};
