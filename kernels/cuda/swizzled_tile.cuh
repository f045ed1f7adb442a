// A tile of 16-bit elements in shared memory that ldmatrix reads without bank conflicts, whatever
// multiple of 8 its width is.
//
// Eight columns of a row are a chunk of 16 bytes, what one lane copies at a time. Chunks are
// grouped into panels of 8 (128 bytes a row, all banks), and what is left over into panels of 4, 2
// and 1; in a panel row follows row. ldmatrix reads the same chunk of 8 rows at a time: `swizzled`
// shuffles the chunks of each row so that these 8 lie in different banks.
#pragma once

#include "cuda/ptx.cuh"

typedef unsigned short Element;  // bf16 or fp16
typedef long long Offset;        // a tensor may have more than 2^31 elements

template <int ROWS, int COLUMNS> struct SmemTile {
    static_assert(COLUMNS % 8 == 0 && ROWS % 16 == 0, "tiles have whole chunks and fragments");
    static constexpr int HEIGHT = ROWS;
    static constexpr int CHUNKS = COLUMNS / 8;
    static constexpr int REST = CHUNKS % 8;
    static constexpr int BYTES = ROWS * COLUMNS * 2;

    // The first chunk and the width of the panel that a chunk lies in.
    static __device__ constexpr int start(int chunk) {
        const int rest = CHUNKS - REST, four = rest + (REST & 4), two = rest + (REST & 6);
        return chunk < rest ? chunk / 8 * 8 : chunk < four ? rest : chunk < two ? four : two;
    }
    static __device__ constexpr int width(int chunk) {
        const int rest = CHUNKS - REST, four = rest + (REST & 4), two = rest + (REST & 6);
        return chunk < rest ? 8 : chunk < four ? 4 : chunk < two ? 2 : 1;
    }

    // Which chunk of a panel so wide a chunk of a row is moved to.
    static __device__ constexpr int swizzled(int wide, int row, int chunk) {
        return chunk ^ (row / (8 / wide) % wide);
    }

    // Byte offset of chunk `chunk ^ next` in row `row + lane_row`, where `chunk` and `row`, a
    // multiple of 16, are known when compiled, `lane_row` is less than 16 and `next` stays in the
    // panel. The swizzle depends on the lowest three bits of a row, which are those of lane_row: so
    // a lane has four offsets to keep at the most, and the instruction that loads adds the rest.
    static __device__ __forceinline__ int at(int row, int chunk, int lane_row, int next = 0) {
        const int first = start(chunk), wide = width(chunk);
        const int lane = 16 * (lane_row * wide + swizzled(wide, lane_row, next));
        return (lane ^ 16 * (chunk - first)) + 16 * (first * ROWS + row * wide);
    }
};

// Calls `work(first chunk, width as a type)` for each panel of a tile so wide.
template <int WIDTH> struct PanelWidth {
    static constexpr int value = WIDTH;
};

template <class TILE, class WORK> DEVICE void for_panels(WORK work) {
    constexpr int rest = TILE::CHUNKS - TILE::REST;
#pragma unroll
    for (int chunk = 0; chunk < rest; chunk += 8) work(chunk, PanelWidth<8>());
    if constexpr ((TILE::REST & 4) != 0) work(rest, PanelWidth<4>());
    if constexpr ((TILE::REST & 2) != 0) work(rest + (TILE::REST & 4), PanelWidth<2>());
    if constexpr ((TILE::REST & 1) != 0) work(rest + (TILE::REST & 6), PanelWidth<1>());
}

// Begins to copy a tile's rows, which lie `stride` elements apart. TAIL: only `rows` of them are
// there, and the others become zero, as do the columns from WIDTH on.
template <class TILE, int THREADS, int WIDTH, bool TAIL>
DEVICE void copy_rows(u32 tile, const Element *from, int stride, int rows) {
    stride = opaque(stride);
    for_panels<TILE>([&](int first, auto panel) {
        constexpr int width = decltype(panel)::value, at_once = THREADS / width;
        const int row = threadIdx.x / width, chunk = threadIdx.x % width;
        const int place = TILE::swizzled(width, row, chunk);  // at_once is a multiple of 8
        const u32 to = tile + 16 * (first * TILE::HEIGHT + row * width + place);
        const Element *here = from + Offset(row) * stride + 8 * (first + chunk);
#pragma unroll
        for (int more = 0; more < TILE::HEIGHT; more += at_once, here += Offset(at_once) * stride) {
            if (more + at_once > TILE::HEIGHT && more + row >= TILE::HEIGHT) break;
            const u32 there = to + 16 * width * more;
            const bool padded = 8 * (first + width) > WIDTH;
            if (TAIL || padded)
                cp_async_16_or_zero(there, here, (!TAIL || more + row < rows) &&
                                                 (!padded || 8 * (first + chunk) < WIDTH));
            else
                cp_async_16(there, here);
        }
    });
}
