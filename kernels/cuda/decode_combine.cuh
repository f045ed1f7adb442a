// The second kernel of attention_decode_cuda_sm90: it combines the splits of one query row, as a
// binary tree. The file that includes this defines the macros.
#pragma once

#include "cuda/decode_rows.cuh"

// The end of a row: its output is multiplied by `scale`.
struct RowEnd {
    float scale, lse;

    // From the maximum and the sum of a row, and the logit of its head without a value, if it has
    // one. A row that has seen nothing gives 0 and -inf.
    DEVICE RowEnd(float max_log2, float sum, const float* sink) {
        float of_rest = 1.0f;
        if (sink != nullptr) {
            const Weights weights(max_log2, *sink * 1.4426950408889634f);
            of_rest = weights.left;
            sum = weighted_sum(sum, weights.left, 1.0f, weights.right);
        }
        scale = sum > 0.0f ? __fdiv_rn(of_rest, sum) : 0.0f;
        lse = sum > 0.0f ? (max_log2 + log2_approx(sum)) * LN_2 : MINUS_INFINITY;
    }
};

constexpr int COMBINE_WARPS = 4, COMBINE_AT_ONCE = 8;

// A lane's columns of one split, or of several.
struct Part {
    static constexpr int COLUMNS = HEAD_DIM_V / 32;
    float max_log2, sum, out[COLUMNS];

    DEVICE void load(const float* partial, const float2* ends, long long kept) {
        const float2 end = ends[kept];
        max_log2 = end.x, sum = end.y;
        const float* from = partial + kept * HEAD_DIM_V + COLUMNS * (threadIdx.x % 32);
#pragma unroll
        for (int i = 0; i < COLUMNS; i += 2) {
            const float2 two = *reinterpret_cast<const float2*>(from + i);
            out[i] = two.x, out[i + 1] = two.y;
        }
    }

    DEVICE void add(const Part& right) {
        const Weights weights(max_log2, right.max_log2);
        sum = weighted_sum(sum, weights.left, right.sum, weights.right);
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            out[i] = weighted_sum(out[i], weights.left, right.out[i], weights.right);
    }
};

// Returns the sum of the splits [begin, end), of which there is at least one. `begin` is a multiple
// of a power of two that is not below their number.
DEVICE Part sum_of_splits(const float* partial, const float2* ends, long long kept, int begin,
                          int end) {
    Part nodes[24], rows;  // of heights from 3 on
    int count = 0;
    for (int first = begin; first < end; first += COMBINE_AT_ONCE) {
        Part parts[COMBINE_AT_ONCE];
#pragma unroll
        for (int i = 0; i < COMBINE_AT_ONCE; ++i)
            if (first + i < end) parts[i].load(partial, ends, kept + first + i);
#pragma unroll
        for (int step = 1; step < COMBINE_AT_ONCE; step *= 2)
#pragma unroll
            for (int i = 0; i < COMBINE_AT_ONCE; i += 2 * step)
                if (first + i + step < end) parts[i].add(parts[i + step]);
        rows = parts[0];
        if (end - begin <= COMBINE_AT_ONCE) return rows;
        int height = 0;
        for (; count >> height & 1; ++height) {
            nodes[height].add(rows);
            rows = nodes[height];
        }
        nodes[height] = rows;
        ++count;
    }
    int height = __ffs(count) - 1;
    rows = nodes[height];
    while (count >> ++height)
        if (count >> height & 1) {
            nodes[height].add(rows);
            rows = nodes[height];
        }
    return rows;
}

// Adds up the parts of all warps, in the order of the tree; warp 0 then has the sum. Warps below
// `busy` have a part.
DEVICE void sum_of_warps(Part& rows, int busy) {
    __shared__ Part shared[COMBINE_WARPS][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();  // those of the row before have been read
    shared[warp][lane] = rows;
    __syncthreads();
    if (warp > 0) return;
    if (busy > 1) rows.add(shared[1][lane]);
    if (busy > 2) {
        Part right = shared[2][lane];
        if (busy > 3) right.add(shared[3][lane]);
        rows.add(right);
    }
}
