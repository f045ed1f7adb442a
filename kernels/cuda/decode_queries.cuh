// The queries of attention_decode_cuda_sm90: on their way, and in registers. The file that includes
// this defines the macros and tiles.
#pragma once

#include "cuda/cache_hints.cuh"
#include "cuda/decode_problem.cuh"
#include "cuda/decode_rows.cuh"

DEVICE const Element* queries_of(const Element* q, const Strides& strides, const Split& split) {
    return q + split.sequence * strides.batch + split.head_kv * GROUP * strides.head;
}

// Brings queries of a KV head to the L2 cache: 128 bytes for each lane, which are all of eight rows.
DEVICE void prefetch_queries(const Element* q, const Strides& strides, int seqlen_q) {
    constexpr int LINES = HEAD_DIM / 64;
    const int row = threadIdx.x % 32 / LINES, query = row / GROUP;
    if (query < seqlen_q)
        prefetch_l2(q + (row % GROUP) * strides.head + (long long)query * strides.row +
                    threadIdx.x % LINES * 64);
}

// Loads the queries of a KV head from shared memory as operands of mma.sync; rows that do not exist
// become zero. Row r of a tile is query r / GROUP of query head r % GROUP of the KV head.
DEVICE void load_queries(Queries& to, u32 queries, int seqlen_q) {
    const int lane = threadIdx.x % 32;
    // The words of a lane: dimensions d, d + 1, d + 8 and d + 9 of 16, or d to d + 3.
    constexpr int WIDTH = E4M3_CACHE ? 4 : 2, NEXT = E4M3_CACHE ? 1 : 4;
#pragma unroll
    for (int n = 0; n < Shape::N_TILES; ++n) {
        const int row = 8 * n + lane / 4;
        const bool exists = row / GROUP < seqlen_q;
        const u32 from = queries + row * QUERY_BYTES + 2 * WIDTH * (lane % 4);
#pragma unroll
        for (int step = 0; step < Shape::D_STEPS; ++step) {
            to[step][n][0] = exists ? ld_shared(from + 32 * step) : 0;
            to[step][n][1] = exists ? ld_shared(from + 32 * step + 4 * NEXT) : 0;
        }
    }
}

// Turns queries from bf16 into fp16: each row times the power of two with which its greatest
// magnitude is from 2^14 to 2^15. Numbers keep all bits where they are at least 2^-28 of that.
// `factors` is multiplied by what undoes that.
DEVICE void to_fp16(Queries& q, Factors& factors) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < Shape::N_TILES; ++n) {
        u32 greatest = 0;  // the order of magnitudes is that of their bits
#pragma unroll
        for (int step = 0; step < Shape::D_STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                greatest = max(greatest, max(q[step][n][i] << 16 & 0x7fff0000u,
                                             q[step][n][i] & 0x7fff0000u));
        greatest = max(greatest, __shfl_xor_sync(~0u, greatest, 1));
        greatest = max(greatest, __shfl_xor_sync(~0u, greatest, 2));
        const int exponent = max((int)(greatest >> 23), 15);
        const float scale = __int_as_float((268 - exponent) << 23);
        const float undone = __int_as_float((exponent - 14) << 23);
#pragma unroll
        for (int step = 0; step < Shape::D_STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32 two = q[step][n][i];
                q[step][n][i] = cvt_16bit_x2<false>(__uint_as_float(two << 16) * scale,
                                                    __uint_as_float(two & 0xffff0000u) * scale);
            }
#pragma unroll
        for (int i = 0; i < 2; ++i)  // from row lane / 4 to those of scores
            factors[n][i] *= __shfl_sync(~0u, undone, 8 * (lane % 4) + 4 * i);
    }
}

// The queries of a split, and what their scores are multiplied by.
struct SplitQueries {
    Queries q;
    Factors before_tanh, scale_log2;  // without a soft-cap, there is the second one alone

    DEVICE void load(u32 queries, const Split& split, const Sizes& sizes, const float* k_descale) {
        load_queries(q, queries, sizes.seqlen_q);
        Factors& first = SOFTCAP ? before_tanh : scale_log2;
        // A factor of 0, of keys that are 0, would make NaN of the -inf of masked scores.
        const float descale =
            E4M3_CACHE ? fmaxf(k_descale[split.sequence * sizes.k_descale_sequence +
                                         split.head_kv * sizes.k_descale_head], 1e-30f)
                       : 1.0f;
#pragma unroll
        for (int n = 0; n < Shape::N_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (SOFTCAP) scale_log2[n][i] = sizes.scale_log2;
                first[n][i] = (SOFTCAP ? sizes.tanh_scale : sizes.scale_log2) * descale;
            }
        if constexpr (E4M3_CACHE && BF16) to_fp16(q, first);
    }
};
