// The second kernel of attention_decode_mla_cuda_sm90: it combines the splits of a query row, in the
// order of their numbers.
//
// Included by attention_decode_mla_cuda_sm90.cu, whose sizes it uses.
#pragma once

#include "cuda/bulk_copy.cuh"
#include "cuda/mla_problem.cuh"
#include "cuda/numbers.cuh"

constexpr int COMBINE_AT_ONCE = 8;  // loads of a thread on their way

// Four columns of a row: the sum of the splits' outputs, and that of their weights.
struct RowSum {
    float out[4], weight;

    // The splits' logsumexps, in units of log2, and their outputs, from a thread's columns on.
    DEVICE void add_splits(const float* lse, const float* from, int splits, float shift) {
        weight = out[0] = out[1] = out[2] = out[3] = 0.0f;
        for (int first = 0; first < splits; first += COMBINE_AT_ONCE) {
            float4 part[COMBINE_AT_ONCE];
            float own[COMBINE_AT_ONCE];
#pragma unroll
            for (int i = 0; i < COMBINE_AT_ONCE; ++i) {
                if (first + i >= splits) continue;
                own[i] = exp2_approx(lse[first + i] - shift);
                part[i] = *reinterpret_cast<const float4*>(from + (first + i) * HEAD_DIM_V);
            }
#pragma unroll
            for (int i = 0; i < COMBINE_AT_ONCE; ++i) {
                if (first + i >= splits) continue;
                weight += own[i];
                out[0] = fmaf(own[i], part[i].x, out[0]), out[1] = fmaf(own[i], part[i].y, out[1]);
                out[2] = fmaf(own[i], part[i].z, out[2]), out[3] = fmaf(own[i], part[i].w, out[3]);
            }
        }
    }
};

// A CTA has the rows blockIdx.x, blockIdx.x + gridDim.x, ..., and a thread four columns of them. A
// row with one split is written already.
extern "C" __global__ void __launch_bounds__(HEAD_DIM_V / 4)
    combine_splits(Element* out, float* lse, const int* seqlens, const float* partial,
                   const float* partial_lse, Strides strides, Sizes sizes) {
    const int heads = sizes.heads_kv * GROUP, rows = sizes.batch * heads * sizes.seqlen_q;
    wait_for_kernel_before();  // in every CTA: a launch that does not would end before it
    for (int number = blockIdx.x; number < rows; number += gridDim.x) {
        const int query = number % sizes.seqlen_q, head = number / sizes.seqlen_q % heads;
        const int sequence = number / sizes.seqlen_q / heads;
        const int splits = splits_of(sizes, max(keys_of(sizes, seqlens, sequence), 0));
        if (splits == 1) continue;
        const long long kept = (long long)number * sizes.splits_kept;
        float row_max = MINUS_INFINITY;
        for (int i = 0; i < splits; ++i) row_max = fmaxf(row_max, partial_lse[kept + i]);
        const float shift = row_max == MINUS_INFINITY ? 0.0f : row_max;
        RowSum sum;
        sum.add_splits(partial_lse + kept, partial + kept * HEAD_DIM_V + 4 * threadIdx.x, splits,
                       shift);
        const float scale = sum.weight > 0.0f ? 1.0f / sum.weight : 0.0f;
        if (threadIdx.x == 0)
            lse[number] = sum.weight > 0.0f ? (row_max + log2_approx(sum.weight)) * LN_2
                                            : MINUS_INFINITY;
        u32* to = reinterpret_cast<u32*>(out + sequence * strides.batch + head * strides.head +
                                         (long long)query * strides.row + 4 * threadIdx.x);
        to[0] = cvt_16bit_x2<BF16>(sum.out[0] * scale, sum.out[1] * scale);
        to[1] = cvt_16bit_x2<BF16>(sum.out[2] * scale, sum.out[3] * scale);
    }
}
