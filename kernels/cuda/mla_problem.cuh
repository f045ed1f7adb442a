// What the host passes to attention_decode_mla_cuda_sm90, and how the keys of all sequences are split
// among CTAs. Splits of a sequence depend on its own length alone.
//
// The file that includes this defines the macros.
#pragma once

#include "cuda/ptx.cuh"

// In elements; the elements of a row are contiguous.
struct Strides {
    long long batch, head;
    int row;
};

struct Sizes {
    int batch, heads_kv, seqlen_q;
    int most_keys;    // that the cache of a sequence has places for
    int row_tiles;    // tiles of ROWS query rows of a KV head
    int splits_kept;  // splits of a sequence that there is memory for
    int table_row;    // pages between the rows of the block table
    int min_split_keys, max_splits;
    float scale_log2;  // of scores
};

// The keys of a sequence. A length beyond the cache counts as a full one.
DEVICE int keys_of(const Sizes& sizes, const int* seqlens, int sequence) {
    return min(seqlens[sequence], sizes.most_keys);
}

// The keys of each split of a sequence of so many keys; the last one may have fewer.
DEVICE int keys_of_split(const Sizes& sizes, int keys) {
    const int share = (keys + sizes.max_splits - 1) / sizes.max_splits;
    return max((share + BLOCK_N - 1) / BLOCK_N * BLOCK_N, sizes.min_split_keys);
}

// The number of splits of a sequence of so many keys; 1 for none.
DEVICE int splits_of(const Sizes& sizes, int keys) {
    const int each = keys_of_split(sizes, keys);
    return max((keys + each - 1) / each, 1);
}

// The keys [begin, end) of a sequence of `keys`, for one tile of query rows of a KV head. `sequence`
// is -1 where there is no work left.
struct Work {
    int sequence = -1, head_kv = 0, row_tile = 0, split = 0, splits = 0, begin = 0, end = 0;
    int keys = 0;
};

// Returns work number `item`. All lanes of the warp take part, each for one of 32 sequences. Tiles
// of the same keys have neighbouring numbers; those of a cluster have one.
DEVICE Work find_work(const Sizes& sizes, const int* seqlens, int item) {
    const int row_tiles = sizes.row_tiles / CLUSTER_SIZE, tiles = sizes.heads_kv * row_tiles;
    const int lane = threadIdx.x % 32, number = item / tiles;
    Work work;
    int before = 0;
    for (int first = 0; first < sizes.batch; first += 32) {
        const bool exists = first + lane < sizes.batch;
        const int keys = exists ? max(keys_of(sizes, seqlens, first + lane), 0) : 0;
        const int own = exists ? splits_of(sizes, keys) : 0;
        int up_to_here = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int left = __shfl_up_sync(~0u, up_to_here, step);
            if (lane >= step) up_to_here += left;
        }
        const int at = __popc(__ballot_sync(~0u, before + up_to_here <= number));
        if (at < 32 && first + at >= sizes.batch) break;
        if (at < 32) {  // the first lane whose splits go beyond `number`
            work.sequence = first + at;
            work.head_kv = item % tiles / row_tiles;
            work.row_tile = item % row_tiles * CLUSTER_SIZE + blockIdx.x % CLUSTER_SIZE;
            work.split = __shfl_sync(~0u, number - before - up_to_here + own, at);
            work.splits = __shfl_sync(~0u, own, at);
            work.keys = __shfl_sync(~0u, keys, at);
            const int each = keys_of_split(sizes, work.keys);
            work.begin = work.split * each;
            work.end = min(work.begin + each, work.keys);
            break;
        }
        before += __shfl_sync(~0u, up_to_here, 31);
    }
    return work;
}
