// What the host passes to attention_fwd_cuda_sm80, the tile that a CTA computes, and the keys that
// its rows see.
#pragma once

#include "cuda/ptx.cuh"

// In elements; the elements of a row are contiguous.
struct Strides {
    long long batch, head;
    int row;
};

struct Sizes {
    int heads, group;  // query heads, and query heads of one KV head
    int seqlen_q, seqlen_k;
    int tiles;                     // of one head
    int all_heads, section_heads;  // batch x heads; heads whose tiles are interleaved
    float scale_log2;
};

struct WorkInfo {
    int tile, batch, head;
};

// CTAs go through one section of heads after the other; the L2 cache can hold K and V of a section.
// HEAVY_FIRST: within a section the tiles with the most keys come first, so that the last CTAs to
// start are short.
template <bool HEAVY_FIRST>
DEVICE WorkInfo work_of_cta(const Sizes& sizes) {
    const int section_tiles = sizes.tiles * sizes.section_heads;
    const int section = blockIdx.x / section_tiles, rest = blockIdx.x % section_tiles;
    const int first_head = section * sizes.section_heads;
    const int heads = min(sizes.all_heads - first_head, sizes.section_heads);
    const int tile = rest / heads, head = first_head + rest % heads;
    return {HEAVY_FIRST ? sizes.tiles - 1 - tile : tile, head / sizes.heads, head % sizes.heads};
}

// The offset of a row of a head in a tensor.
DEVICE long long at(const Strides& strides, int batch, int head, int row) {
    return batch * strides.batch + head * strides.head + static_cast<long long>(row) * strides.row;
}

// All rows of a tile see the keys [0, to_all), some see keys of [to_all, to_some), and no row sees
// a later key. Causal means bottom-right aligned: query i sees keys up to i + diagonal.
struct VisibleKeys {
    int to_all, to_some, diagonal;
};

template <bool IS_CAUSAL>
DEVICE VisibleKeys visible_keys(const Sizes& sizes, int first_query, int rows) {
    const int keys = sizes.seqlen_k, diagonal = keys - sizes.seqlen_q;
    if (!IS_CAUSAL) return {keys, keys, diagonal};
    const int end_query = min(first_query + rows, sizes.seqlen_q);
    const int to_all = first_query + diagonal + 1, to_some = end_query + diagonal;
    return {min(max(to_all, 0), keys), min(max(to_some, 0), keys), diagonal};
}
