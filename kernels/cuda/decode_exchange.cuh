// What the warps of a CTA of attention_decode_cuda_sm90 tell one another of a block.
#pragma once

#include "cuda/ptx.cuh"

// Shared memory has, of each warp, the maxima and the sums of rows over its keys, and of each query row
// the probabilities of all keys.
template <class SHAPE>
struct Exchange {
    static constexpr int ROWS = 8 * SHAPE::N_TILES, CONSUMER_WARPS = SHAPE::CONSUMER_WARPS;
    static constexpr int KEYS = 16 * SHAPE::S_TILES * CONSUMER_WARPS;
    static constexpr int ROW_BYTES = 2 * KEYS + 16;  // eight rows are in different banks
    static constexpr int ONE_PART_BYTES = 4 * ROWS * CONSUMER_WARPS;  // maxima, or sums
    static constexpr int P_ROWS_BYTES = ROWS * ROW_BYTES;
    u32 maxima, sums, probabilities;

    DEVICE void sync() const { named_barrier_sync(1, 32 * CONSUMER_WARPS); }

    // Returns to all threads what the first one has. No thread may still have to read the sums of a
    // block: a barrier comes before.
    DEVICE u32 from_first(u32 x) const {
        if (threadIdx.x == 0) st_shared(sums, x);
        sync();
        return ld_shared(sums);
    }

    // The lane's part: a pair of numbers for each tile of rows.
    static DEVICE u32 part(u32 parts, int warp, int n) {
        return parts + 4 * (warp * ROWS + 8 * n + threadIdx.x % 4 * 2);
    }

    // Writes the warp's numbers, of which the lanes of a row have the same ones, and waits for all.
    DEVICE void put_and_wait(u32 parts, const float (&x)[SHAPE::N_TILES][2]) const {
        const int warp = threadIdx.x / 32;
#pragma unroll
        for (int n = 0; n < SHAPE::N_TILES; ++n)
            if (threadIdx.x % 32 < 4) {
                st_shared(part(parts, warp, n), __float_as_uint(x[n][0]));
                st_shared(part(parts, warp, n) + 4, __float_as_uint(x[n][1]));
            }
        sync();
    }
};
