// The copies of attention_decode_cuda_sm90: each warp has a pipeline of its own, of blocks of K and
// V in turns. The file that includes this defines the macros and tiles.
#pragma once

#include "cuda/decode_problem.cuh"
#include "cuda/tma_hints.cuh"

struct Cache {
    const TensorMap *k, *v;
    const int* table;
    Lengths lengths;
    int height;  // of splits
};

// Where a warp's copies, or its products, are: at the block from `key` on of the CTA's work number
// `item`.
struct Cursor {
    Split split;
    int item, key;

    DEVICE bool has_work() const { return split.sequence >= 0; }

    DEVICE void begin(const Sizes& sizes, const Cache& cache, int at) {
        item = at;
        split = find_split<BLOCK_N, WINDOWED, WARPS_LOG2>(sizes, cache.lengths, item, cache.height);
        key = split.begin;
    }

    // Goes to the CTA's next split. `copies` has usually found it already.
    DEVICE void follow(const Sizes& sizes, const Cache& cache, const Cursor& copies) {
        if (copies.item != item + gridDim.x) {
            begin(sizes, cache, item + gridDim.x);
            return;
        }
        item = copies.item;
        split = copies.split;
        key = split.begin;
    }
};

struct Pipeline {
    Cursor at;
    bool is_v;  // whether K of the cursor's block is on its way, and V comes next
    u32 smem, barriers;
    int stage;

    // The stages and barriers of a warp.
    DEVICE void init(u32 shared, int warp, const TensorMap& k_map, const TensorMap& v_map) {
        smem = shared + STAGES_OFFSET + warp * num_stages * STAGES_BYTES;
        barriers = shared + BARRIERS_OFFSET + warp * num_stages * BARRIERS_BYTES;
        stage = 0;
        is_v = false;
        if (threadIdx.x % 32 == 0) {
            for (int i = 0; i < num_stages; ++i) mbarrier_init(barriers + BARRIERS_BYTES * i, 1);
            fence_mbarrier_init();
            prefetch_tensor_map(&k_map);
            prefetch_tensor_map(&v_map);
        }
        __syncwarp();
    }

    DEVICE u32 tile(int of) const { return smem + of * STAGES_BYTES; }

    // Starts the next copy, if there is one, into the stage that the warp has read.
    DEVICE void fetch(const Sizes& sizes, const Cache& cache) {
        while (at.has_work() && at.key >= at.split.end)
            at.begin(sizes, cache, at.item + gridDim.x);
        if (!at.has_work()) return;
        if (threadIdx.x % 32 == 0) {
            if (is_v)
                copy<VTile::BYTES>(cache.v, cache, sizes);
            else
                copy<KTile::BYTES>(cache.k, cache, sizes);
        }
        if (is_v) at.key += BLOCK_N;
        is_v = !is_v;
        stage = stage + 1 == num_stages ? 0 : stage + 1;
    }

    template <int BYTES>
    DEVICE void copy(const TensorMap* map, const Cache& cache, const Sizes& sizes) const {
        const u32 barrier = barriers + 8 * stage;
        mbarrier_arrive_expect_tx(barrier, BYTES);
#pragma unroll
        for (int row = 0; row < BLOCK_N; row += BOX_ROWS) {
            int place = at.key + row, page = at.split.sequence;
            if (PAGE_SIZE) {
                // A page beyond the sequence does not exist: its rows are masked, and any will do.
                const int number = min(place, at.split.keys - 1) / max(PAGE_SIZE, 1);
                page = cache.table[(long long)at.split.sequence * sizes.table_row + number];
                place %= max(PAGE_SIZE, 1);
            }
#pragma unroll
            for (int panel = 0; panel < BYTES / (BLOCK_N * PANEL_BYTES); ++panel)
                tma_load_once(tile(stage) + (panel * BLOCK_N + row) * PANEL_BYTES, map, barrier,
                              panel * PANEL_BYTES / KV_BYTES, place, at.split.head_kv, page);
        }
    }
};

// The stage that a warp reads next.
struct Reader {
    int stage;
    u32 parity;

    DEVICE u32 wait(const Pipeline& pipeline) const {
        mbarrier_wait(pipeline.barriers + 8 * stage, parity);
        return pipeline.tile(stage);
    }

    // All lanes have read the stage, which the next copy overwrites.
    DEVICE void release(Pipeline& pipeline, const Sizes& sizes, const Cache& cache) {
        __syncwarp();
        pipeline.fetch(sizes, cache);
        if (++stage == num_stages) stage = 0, parity ^= 1;
    }
};

// Writes zeros over the values behind the last key: what lies there may be NaN, and NaN times the
// probability 0 is NaN.
DEVICE void clear_values(u32 tile, int from_row) {
    const int lane = threadIdx.x % 32;
    const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int panel = 0; panel < VTile::BYTES; panel += BLOCK_N * PANEL_BYTES)
        for (int at = from_row * PANEL_BYTES + 16 * lane; at < BLOCK_N * PANEL_BYTES; at += 512)
            st_shared_v4(tile + panel + at, zeros);
    __syncwarp();
}
