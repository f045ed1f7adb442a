// A tile of 16-bit elements in shared memory that ldmatrix reads without bank conflicts. Its width
// is any multiple of 8.
//
// Eight columns of a row are a chunk of 16 bytes, which one lane copies at a time. Chunks are
// grouped into panels of 8 (128 bytes a row, all banks). The chunks that remain form panels of 4, 2
// and 1. In a panel row follows row. ldmatrix reads the same chunk of 8 rows at a time, so
// `swizzled` permutes the chunks of each row such that these 8 lie in different banks.
#pragma once

#include "cuda/ptx.cuh"

typedef unsigned short Element;  // bf16 or fp16
typedef long long Offset;        // a tensor may have more than 2^31 elements

template <int ROWS, int COLUMNS>
struct SmemTile {
    static_assert(COLUMNS % 8 == 0 && ROWS % 16 == 0, "tiles have whole chunks and fragments");
    static constexpr int HEIGHT = ROWS;
    static constexpr int CHUNKS = COLUMNS / 8;
    static constexpr int REST = CHUNKS % 8;
    static constexpr int BYTES = ROWS * COLUMNS * 2;

    // The first chunk of the panel that a chunk lies in.
    static __device__ constexpr int start(int chunk) {
        const int rest = CHUNKS - REST, four = rest + (REST & 4), two = rest + (REST & 6);
        return chunk < rest ? chunk / 8 * 8 : chunk < four ? rest : chunk < two ? four : two;
    }
    // The width in chunks of the panel that a chunk lies in.
    static __device__ constexpr int width(int chunk) {
        const int rest = CHUNKS - REST, four = rest + (REST & 4), two = rest + (REST & 6);
        return chunk < rest ? 8 : chunk < four ? 4 : chunk < two ? 2 : 1;
    }

    // The place of a chunk of a row in a panel of `panel_width` chunks.
    static __device__ constexpr int swizzled(int panel_width, int row, int chunk) {
        return chunk ^ (row / (8 / panel_width) % panel_width);
    }

    // Byte offset of chunk `chunk ^ next` in row `row + lane_row`. `chunk` and `row`, a multiple of
    // 16, are compile-time constants, `lane_row` is less than 16 and `next` stays in the panel. The
    // swizzle depends on the lowest three bits of a row, which are those of lane_row: so a lane
    // keeps four offsets at most, and the instruction that loads adds the rest.
    static DEVICE int at(int row, int chunk, int lane_row, int next = 0) {
        const int first = start(chunk), panel_width = width(chunk);
        const int lane = 16 * (lane_row * panel_width + swizzled(panel_width, lane_row, next));
        return (lane ^ 16 * (chunk - first)) + 16 * (first * ROWS + row * panel_width);
    }
};

// Calls `visit(first chunk, width as a type)` for each panel of a tile.
template <int WIDTH>
struct PanelWidth {
    static constexpr int value = WIDTH;
};

template <class TILE, class VISIT>
DEVICE void for_panels(VISIT visit) {
    constexpr int rest = TILE::CHUNKS - TILE::REST;
#pragma unroll
    for (int chunk = 0; chunk < rest; chunk += 8) visit(chunk, PanelWidth<8>());
    if constexpr ((TILE::REST & 4) != 0) visit(rest, PanelWidth<4>());
    if constexpr ((TILE::REST & 2) != 0) visit(rest + (TILE::REST & 4), PanelWidth<2>());
    if constexpr ((TILE::REST & 1) != 0) visit(rest + (TILE::REST & 6), PanelWidth<1>());
}

// Starts to copy a tile whose rows lie `stride` elements apart in global memory. Columns from WIDTH
// on become zero. TAIL: only `rows` rows exist; the others become zero too.
template <class TILE, int THREADS, int WIDTH, bool TAIL>
DEVICE void copy_rows(u32 tile, const Element* from, int stride, int rows) {
    stride = opaque(stride);
    for_panels<TILE>([&](int first, auto panel) {
        constexpr int width = decltype(panel)::value, rows_at_once = THREADS / width;
        const int thread_row = threadIdx.x / width, chunk = threadIdx.x % width;
        const int place = TILE::swizzled(width, thread_row, chunk);  // rows_at_once % 8 == 0
        const u32 thread_to = tile + 16 * (first * TILE::HEIGHT + thread_row * width + place);
        const Element* thread_from = from + Offset(thread_row) * stride + 8 * (first + chunk);
#pragma unroll
        for (int row = 0; row < TILE::HEIGHT;
             row += rows_at_once, thread_from += Offset(rows_at_once) * stride) {
            if (row + rows_at_once > TILE::HEIGHT && row + thread_row >= TILE::HEIGHT) break;
            const u32 to = thread_to + 16 * width * row;
            const bool padded = 8 * (first + width) > WIDTH;
            if (TAIL || padded)
                cp_async_16_or_zero(to, thread_from,
                                    (!TAIL || row + thread_row < rows) &&
                                        (!padded || 8 * (first + chunk) < WIDTH));
            else
                cp_async_16(to, thread_from);
        }
    });
}
