// How attention_decode_cuda_sm90 combines the splits of a query row, as a binary tree: in a second
// kernel, or in the CTA that writes the last of them (cuda/decode_arrivals.cuh). The file that includes
// this defines the macros.
#pragma once

#include "cuda/decode_problem.cuh"
#include "cuda/decode_sums.cuh"

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

// Returns in warp 0 the sum of all splits of a row. Each warp adds up a part of them.
DEVICE Part sum_of_cta(const float* partial, const float2* ends, long long kept, int splits) {
    int each = 1;  // splits of a warp: a quarter of the next power of two
    while (COMBINE_WARPS * each < splits) each *= 2;
    const int begin = threadIdx.x / 32 * each, end = min(begin + each, splits);
    Part rows;
    if (begin < end) rows = sum_of_splits(partial, ends, kept, begin, end);
    sum_of_warps(rows, (splits + each - 1) / each);
    return rows;
}

// The number of splits of a sequence with so many keys.
DEVICE int splits_of(const Sizes& sizes, int keys, int height) {
    return shifted_up(Leaves::of<BLOCK_N, WINDOWED>(sizes, keys).count, height);
}

// The number of splits of the sequence that has most. All lanes take part.
DEVICE int most_splits(const Sizes& sizes, const Lengths& lengths, int height) {
    int most = 1;
#pragma unroll 1
    for (int first = 0; first < sizes.batch; first += 32)
        most = max(most, splits_of(sizes, lengths.of_lane(sizes, first), height));
    return __reduce_max_sync(~0u, most);
}

struct Row {
    int number, query, head, sequence, splits;

    // Row i of the GROUP * seqlen_q rows of a split's KV head.
    DEVICE Row(const Sizes& sizes, const Split& split, int i)
        : query(i / GROUP),
          head(split.head_kv * GROUP + i % GROUP),
          sequence(split.sequence),
          splits(split.splits) {
        number = (sequence * sizes.heads_kv * GROUP + head) * sizes.seqlen_q + query;
    }

    DEVICE Row(const Sizes& sizes, const int* seqlens, int height, int number)
        : number(number), splits(1) {
        const int heads = sizes.heads_kv * GROUP;
        if (number >= sizes.batch * heads * sizes.seqlen_q) return;
        query = number % sizes.seqlen_q, head = number / sizes.seqlen_q % heads;
        sequence = number / sizes.seqlen_q / heads;
        splits = splits_of(sizes, keys_of(sizes, seqlens[sequence]), height);
    }
};

struct Combined {
    Element* out;
    float* lse;
    const float *sinks, *v_descale;
    Strides strides;

    // Writes a row, of which each lane has its columns.
    DEVICE void write(const Part& sum, const Sizes& sizes, const Row& row) const {
        const int lane = threadIdx.x % 32;
        const RowEnd end(sum.max_log2, sum.sum, SINKS ? sinks + row.head : nullptr);
        const float scale =
            end.scale * descale_of_values(v_descale, sizes, row.sequence, row.head / GROUP);
        if (lane == 0) lse[row.number] = end.lse;
        Element* to = out + row.sequence * strides.batch + row.head * strides.head +
                      (long long)row.query * strides.row + Part::COLUMNS * lane;
#pragma unroll
        for (int i = 0; i < Part::COLUMNS; i += 2)
            *reinterpret_cast<u32*>(to + i) =
                cvt_16bit_x2<Shape::IS_BF16>(sum.out[i] * scale, sum.out[i + 1] * scale);
    }
};

#if COMBINE_SPLITS
// A row with one split is written already. One with a few is combined by one warp, and one with
// more by a whole CTA. What does not need the splits comes before the wait, while the first kernel
// runs.
extern "C" __global__ void __launch_bounds__(32 * COMBINE_WARPS)
    combine_splits(Element* out, float* lse, const int* seqlens, const float* sinks,
                   const float* v_descale, const float* partial, const float2* ends,
                   Strides strides, Sizes sizes) {
    launch_dependents();  // the next call's kernel waits for the end of this one
    const int warp = threadIdx.x / 32;
    const int rows_in_all = sizes.batch * sizes.heads_kv * GROUP * sizes.seqlen_q;
    const Lengths lengths(sizes, seqlens, false);
    const int height = splits_of_batch<BLOCK_N, WINDOWED>(sizes, lengths).height;
    const int most = most_splits(sizes, lengths, height);
    Row of_warp(sizes, seqlens, height, blockIdx.x + gridDim.x * warp);
    Row of_cta(sizes, seqlens, height, blockIdx.x);
    if (most == 1 && blockIdx.x > 0) return;
    wait_for_kernel_before();  // in the first CTA always: else this launch would end before it
    if (most == 1) return;

    const Combined combined = {out, lse, sinks, v_descale, strides};
    for (; of_warp.number < rows_in_all;
         of_warp = Row(sizes, seqlens, height, of_warp.number + COMBINE_WARPS * gridDim.x)) {
        if (of_warp.splits == 1 || of_warp.splits > COMBINE_AT_ONCE) continue;
        const long long kept = (long long)of_warp.number * sizes.splits_kept;
        combined.write(sum_of_splits(partial, ends, kept, 0, of_warp.splits), sizes, of_warp);
    }
    if (most <= COMBINE_AT_ONCE) return;
    for (; of_cta.number < rows_in_all;
         of_cta = Row(sizes, seqlens, height, of_cta.number + gridDim.x)) {
        if (of_cta.splits <= COMBINE_AT_ONCE) continue;
        const long long kept = (long long)of_cta.number * sizes.splits_kept;
        const Part sum = sum_of_cta(partial, ends, kept, of_cta.splits);
        if (warp == 0) combined.write(sum, sizes, of_cta);
    }
}
#endif
