// What the host side passes of an attention problem, and which tile a block works on.
#pragma once

#include "cuda/ptx.cuh"

// In elements; rows are contiguous.
struct Strides {
    long long batch, head;
    int row;
};

struct Sizes {
    int heads, group;  // query heads, and those of one KV head
    int seqlen_q, seqlen_k;
    int tiles;                     // of one head
    int all_heads, section_heads;  // batch x heads; heads whose tiles are interleaved
    float scale_log2;
};

struct Owned {
    int tile, batch, head;
};

// By section of heads, whose K and V the L2 cache can hold; in one the heaviest tiles first, so
// that the last blocks to start are short.
template <bool HEAVY_FIRST> DEVICE Owned owned_tile(const Sizes &sizes) {
    const int of_section = sizes.tiles * sizes.section_heads;
    const int section = blockIdx.x / of_section, rest = blockIdx.x % of_section;
    const int first = section * sizes.section_heads;
    const int heads_here = min(sizes.all_heads - first, sizes.section_heads);
    const int tile = rest / heads_here, head = first + rest % heads_here;
    return {HEAVY_FIRST ? sizes.tiles - 1 - tile : tile, head / sizes.heads, head % sizes.heads};
}

// Where a row of a head begins in a tensor.
DEVICE long long at(const Strides &strides, int batch, int head, int row) {
    return batch * strides.batch + head * strides.head +
           static_cast<long long>(row) * strides.row;
}

// Every row of a tile sees the keys before `clear`, none of them one from `end` on. Causal means
// bottom-right aligned: query i sees keys up to i + further.
struct Seen {
    int clear, end, further;
};

template <bool IS_CAUSAL> DEVICE Seen seen_keys(const Sizes &sizes, int first_query, int rows) {
    const int keys = sizes.seqlen_k, further = keys - sizes.seqlen_q;
    if (!IS_CAUSAL) return {keys, keys, further};
    const int after_last = min(first_query + rows, sizes.seqlen_q);
    const int clear = first_query + further + 1, end = after_last + further;
    return {min(max(clear, 0), keys), min(max(end, 0), keys), further};
}
