// Blocks of query rows in the attention backward: where they are in a tensor, and which tiles of keys
// their rows see.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

constexpr int UNITS = HEAD_DIM / 8;  // of 16 bytes in a row

// In elements; the elements of a row are contiguous.
struct Strides {
    long long batch, head, row;
};

// A block of `ROWS` rows: those from `first` on of a head's `length` rows, which begin with the tensors'
// row `begin`.
template <int ROWS>
struct BlockOf {
    int number, batch, head, begin, first, length, sequence;

    // Packed sequences have fewer blocks than there is room for.
    DEVICE bool exists() const { return !VARLEN || first < length; }
    DEVICE bool has(int row) const { return row < ROWS && first + row < length; }

    template <class T>
    DEVICE T* at(T* tensor, const Strides& strides, int row) const {
        return tensor + batch * strides.batch + head * strides.head + row * strides.row;
    }
};
using Block = BlockOf<BLOCK_M>;

// The block with a number, of `blocks` of each head.
template <int ROWS>
DEVICE BlockOf<ROWS> block_at(int number, int heads, int length, int blocks, const int* starts,
                              int bounds) {
    const int head = number / blocks, block = number % blocks;
    if (!VARLEN) return {number, head / heads, head % heads, 0, block * ROWS, length, 0};
    // The last sequence whose blocks begin here or earlier.
    int sequence = 0;
    for (int end = bounds - 1; sequence + 1 < end;) {
        const int middle = (sequence + end) / 2;
        const bool here = first_block_number<ROWS>(starts[middle], middle) <= block;
        (here ? sequence : end) = middle;
    }
    const int begin = starts[sequence];
    const int first = (block - first_block_number<ROWS>(begin, sequence)) * ROWS;
    return {number, 0, head, begin, first, starts[sequence + 1] - begin, sequence};
}

// The tiles of keys that rows of a block see, from the first to the last: as many CTAs add to its dQ. A
// `last` before `first`: there are none.
struct SeenTiles {
    int first, last;

    DEVICE int count() const { return max(last - first + 1, 0); }
};

// Those of the block that begins with a row, where row i sees the last window_keys keys up to
// i + diagonal. Rows behind seqlen_q count, as they do for tiles, and so do keys of the last tile behind
// the last key: a CTA adds to all blocks that could see its tile.
DEVICE SeenTiles seen_tiles(int row, int keys, int diagonal, int window_keys) {
    const int last = min(row + BLOCK_M - 1 + diagonal, keys - 1);
    const int first = max(row + diagonal - window_keys + 1, 0);
    return {first / KEYS, last < 0 ? -1 : last / KEYS};
}
