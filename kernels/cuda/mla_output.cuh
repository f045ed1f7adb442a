// What attention_decode_mla_cuda_sm90 writes: the output and the logsumexp of a sequence with one
// split, or those of a split in fp32.
//
// Included by attention_decode_mla_cuda_sm90.cu, whose sizes it uses.
#pragma once

#include "cuda/mla_consumer.cuh"

struct Outputs {
    Element* out;
    float *lse, *partial, *partial_lse;  // those of a split are in units of log2
    Strides strides;

    DEVICE void write(Consumer& rows, const Work& work, const Sizes& sizes) const {
        float sum[2] = {rows.sum[0], rows.sum[1]};
#pragma unroll
        for (int half = 0; half < 2; ++half)
            for (int step = 1; step < 4; step *= 2)
                sum[half] += __shfl_xor_sync(~0u, sum[half], step);
        rows.give(2 + rows.warpgroup, sum);
        named_barrier_sync(SUMS, 256);
        const float2 other = rows.take(3 - rows.warpgroup);
        named_barrier_sync(SUMS, 256);  // both have read before one writes again
        sum[0] += other.x, sum[1] += other.y;
        const int heads = sizes.heads_kv * GROUP;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = work.row_tile * ROWS + rows.lane_row() + 8 * half, query = row / GROUP;
            if (query >= sizes.seqlen_q) continue;
            const int head = work.head_kv * GROUP + row % GROUP;
            const long long number =
                (long long)(work.sequence * heads + head) * sizes.seqlen_q + query;
            const long long kept = number * sizes.splits_kept + work.split;
            const bool is_whole = work.splits == 1, has_keys = sum[half] > 0.0f;
            const float lse_log2 =
                has_keys ? rows.max_log2[half] + log2_approx(sum[half]) : MINUS_INFINITY;
            const float scale = has_keys ? 1.0f / sum[half] : 0.0f;
            if (rows.warpgroup == 0 && rows.lane % 4 == 0) {
                if (is_whole)
                    lse[number] = lse_log2 * LN_2;
                else
                    partial_lse[kept] = lse_log2;
            }
            const int column = rows.warpgroup * COLUMNS + 2 * (rows.lane % 4);
            Element* to_out = out + work.sequence * strides.batch + head * strides.head +
                              (long long)query * strides.row + column;
            float* to_partial = partial + kept * HEAD_DIM_V + column;
#pragma unroll
            for (int i = 0; i < COLUMNS / 8; ++i) {
                const float x = rows.out[4 * i + 2 * half] * scale;
                const float y = rows.out[4 * i + 2 * half + 1] * scale;
                if (is_whole)
                    *reinterpret_cast<u32*>(to_out + 8 * i) = cvt_16bit_x2<BF16>(x, y);
                else
                    *reinterpret_cast<float2*>(to_partial + 8 * i) = make_float2(x, y);
            }
        }
    }
};
