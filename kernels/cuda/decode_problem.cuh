// What the host passes to attention_decode_cuda_sm90, and how the keys of all sequences are split
// among CTAs.
//
// The keys of a sequence form leaves of LEAF_KEYS, or of the least power of two times as many with
// which there are at most MOST_LEAVES. What a leaf contributes to a row, and the order in which
// contributions are added up, a binary tree over the leaves, depend on the sequence alone.
// So a sequence gets the same bits whatever else is in the batch. A split is a node of that tree:
// one CTA computes the leaves below it, and the second kernel, or the last CTA of a KV head, the tree
// above all splits.
// The height of splits may therefore follow the whole batch: high where there are many sequences,
// so that little is written and read again, and low where there are few, so that all SMs work.
#pragma once

#include "cuda/cache_hints.cuh"
#include "cuda/ptx.cuh"

// In elements; the elements of a row are contiguous.
struct Strides {
    long long batch, head;
    int row;
};

struct Sizes {
    int batch, heads_kv, seqlen_q;
    int most_keys;    // that the cache of a sequence has places for
    int splits_kept;  // splits of a sequence that there is memory for
    int table_row;    // pages between the rows of the block table
    int window_left;  // keys before the diagonal that a query sees
    int split_cost;   // what a split costs beside its keys, in keys
    int ctas;         // CTAs of the first kernel
    u32 inverse_ctas, inverse_heads_kv;  // see `divided`
    float scale_log2;  // of scores; with a soft-cap, of its tanh
    float tanh_scale;  // of scores, before the tanh
    int k_descale_sequence, k_descale_head, v_descale_sequence, v_descale_head;  // strides
};

// What the output of a KV head is multiplied by.
DEVICE float descale_of_values(const float* descale, const Sizes& sizes, int sequence, int head_kv) {
    if (!E4M3_CACHE) return 1.0f;
    return descale[sequence * sizes.v_descale_sequence + head_kv * sizes.v_descale_head];
}

// Returns x / by, where `inverse` is 2^32 / by + 1, both rounded down: exact below 2^32 / by.
DEVICE int divided(int x, int by, u32 inverse) { return by == 1 ? x : (int)__umulhi(x, inverse); }

// The keys of a sequence of that length. One beyond the cache counts as a full one, and one below 0
// as 0.
DEVICE int keys_of(const Sizes& sizes, int length) { return max(min(length, sizes.most_keys), 0); }

DEVICE int shifted_up(int count, int shift) { return (count + (1 << shift) - 1) >> shift; }

// The leaves of a sequence: those of the keys from `first_key` on, before which no query sees one.
// There are at most MOST_LEAVES, as leaves of long sequences are longer.
struct Leaves {
    int first_key, keys, count;  // keys: of each leaf

    template <int BLOCK, bool IS_WINDOWED>
    static DEVICE Leaves of(const Sizes& sizes, int keys) {
        int first_key = 0;
        if (IS_WINDOWED)
            first_key = max(keys - sizes.seqlen_q - sizes.window_left, 0) / BLOCK * BLOCK;
        const u32 count = max((u32)(keys - first_key + LEAF_KEYS - 1) / LEAF_KEYS, 1u);
        const int shift = 32 - __clz((count - 1) / MOST_LEAVES);
        return {first_key, LEAF_KEYS << shift, shifted_up(count, shift)};
    }
};

// The keys of all sequences. The lanes of a warp have those of the first 128 in registers.
// is_early: the kernel before may still write them.
struct Lengths {
    static constexpr int KEPT = 4;  // of each lane: sequences 32 i + lane
    const int* seqlens;
    bool is_early;
    int keys[KEPT];

    DEVICE Lengths(const Sizes& sizes, const int* seqlens, bool is_early)
        : seqlens(seqlens), is_early(is_early), keys() {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < KEPT; ++i)
            if (32 * i + lane < sizes.batch) keys[i] = load(sizes, 32 * i + lane);
    }

    DEVICE int load(const Sizes& sizes, int sequence) const {
        const int* from = seqlens + sequence;
        return keys_of(sizes, is_early ? ld_early(from) : *from);
    }

    // All lanes take part. Those of more sequences than are kept are not compared.
    DEVICE bool are_the_same(const Sizes& sizes, const Lengths& as) const {
        bool differ = sizes.batch > 32 * KEPT;
#pragma unroll
        for (int i = 0; i < KEPT; ++i) differ |= keys[i] != as.keys[i];
        return !__any_sync(~0u, differ);
    }

    // The keys of the lane's sequence from `first` on, a multiple of 32; 0 where there is none.
    DEVICE int of_lane(const Sizes& sizes, int first) const {
        const int sequence = first + threadIdx.x % 32;
        if (first >= 32 * KEPT) return sequence < sizes.batch ? load(sizes, sequence) : 0;
        int found = keys[0];
#pragma unroll
        for (int i = 1; i < KEPT; ++i)
            if (first == 32 * i) found = keys[i];
        return found;
    }
};

// The splits of the whole batch: their height, and how many there are of all KV heads.
struct BatchSplits {
    int height, count;

    // Whether CTAs take them from a counter.
    DEVICE bool are_counted(const Sizes& sizes) const { return count > sizes.ctas; }
};

// Returns by how many keys more the CTAs end late, where each computes so many splits of so many keys.
// They are not equally fast, and the last ones do not keep the memory busy. From three rounds on the
// counter evens it out, of splits that are not too long. Two rounds only pay for their combination.
DEVICE int late_keys(int rounds, int keys, bool is_cut) {
    constexpr int LONG = 32768;
    const int late = rounds == 1 ? keys / 16 : rounds == 2 && is_cut ? keys / 8 : 0;
    return late + max(keys - LONG, 0) / 8;
}

// Returns the splits of 2^height leaves with which the CTA that has most to do ends first; of equal
// ones the highest. All lanes take part.
template <int BLOCK, bool IS_WINDOWED>
DEVICE BatchSplits splits_of_batch(const Sizes& sizes, const Lengths& lengths) {
    const int lane = threadIdx.x % 32;
    int splits[TREE_DEPTH + 1] = {}, most_leaves = 1, leaf_keys = 0;
#pragma unroll 1
    for (int first = 0; first < sizes.batch; first += 32) {
        if (first + lane < sizes.batch) {
            const Leaves own = Leaves::of<BLOCK, IS_WINDOWED>(sizes, lengths.of_lane(sizes, first));
            most_leaves = max(most_leaves, own.count);
            leaf_keys = max(leaf_keys, own.keys);
#pragma unroll
            for (int height = 0; height <= TREE_DEPTH; ++height)
                splits[height] += shifted_up(own.count, height);
        }
    }
    most_leaves = __reduce_max_sync(~0u, most_leaves);
    leaf_keys = __reduce_max_sync(~0u, leaf_keys);
    // Each lane judges the height of its number; those behind, the last one.
    const int height = min(lane, TREE_DEPTH);
    int items = 0;
#pragma unroll
    for (int each = 0; each <= TREE_DEPTH; ++each) {
        const int of_all = __reduce_add_sync(~0u, splits[each]);
        if (height == each) items = sizes.heads_kv * of_all;
    }
    const int rounds = divided(items + sizes.ctas - 1, sizes.ctas, sizes.inverse_ctas);
    const bool is_cut = 1 << height < most_leaves;
    const int keys = (is_cut ? 1 << height : most_leaves) * leaf_keys;
    int cost = rounds * (keys + sizes.split_cost) + late_keys(rounds, keys, is_cut);
    const bool fits = shifted_up(most_leaves, height) <= sizes.splits_kept;
    if (height < TREE_DEPTH && !fits) cost = 0x7fffffff;
    const int least = __reduce_min_sync(~0u, cost);
    const int best = min(31 - __clz(__ballot_sync(~0u, cost == least)), TREE_DEPTH);
    return {best, __shfl_sync(~0u, items, best)};
}

// One split of one KV head of a sequence, which has `splits` of them: the keys [begin, end).
struct Split {
    int sequence = -1, number = 0, splits = 0, head_kv = 0, begin = 0, end = 0, keys = 0;
    int leaf_keys = 0;

    DEVICE bool exists() const { return sequence >= 0; }
};

// Returns the split with that number among those of all sequences; its `sequence` is -1 where there
// are fewer. All lanes of the warp take part. A lane reads the lengths of 32 sequences at a time.
template <int BLOCK, bool IS_WINDOWED>
DEVICE Split find_split(const Sizes& sizes, const Lengths& lengths, int item, int height) {
    const int lane = threadIdx.x % 32;
    const int number = divided(item, sizes.heads_kv, sizes.inverse_heads_kv);
    Split split;
    int before = 0;
#pragma unroll 1
    for (int first = 0; first < sizes.batch; first += 32) {
        const bool exists = first + lane < sizes.batch;
        const int keys = lengths.of_lane(sizes, first);
        const Leaves leaves = Leaves::of<BLOCK, IS_WINDOWED>(sizes, keys);
        const int own = exists ? shifted_up(leaves.count, height) : 0;
        int up_to_here = own;
        if (sizes.batch > 1)
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int left = __shfl_up_sync(~0u, up_to_here, step);
                if (lane >= step) up_to_here += left;
            }
        const u32 passed = __ballot_sync(~0u, before + up_to_here <= number);
        const int at = sizes.batch > 1 ? __popc(passed) : passed & 1 ? 32 : 0;
        if (at < 32) {  // the first lane whose splits go beyond `number`
            if (first + at >= sizes.batch) break;
            split.sequence = first + at;
            split.head_kv = item - number * sizes.heads_kv;
            split.number = __shfl_sync(~0u, number - before - up_to_here + own, at);
            split.splits = __shfl_sync(~0u, own, at);
            split.keys = __shfl_sync(~0u, keys, at);
            split.leaf_keys = __shfl_sync(~0u, leaves.keys, at);
            split.begin = __shfl_sync(~0u, leaves.first_key, at) +
                          (split.number << height) * split.leaf_keys;
            split.end = min(split.begin + (split.leaf_keys << height), split.keys);
            break;
        }
        before += __shfl_sync(~0u, up_to_here, 31);
    }
    return split;
}
