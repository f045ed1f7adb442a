// The copies of attention_decode_cuda_sm90: each warp has a pipeline of its own, of blocks of K and
// V in turns. The file that includes this defines the macros and tiles.
#pragma once

#include "cuda/cache_hints.cuh"
#include "cuda/decode_problem.cuh"

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

// The numbers of 32 pages of a sequence, one in each lane, and of the 32 behind them, which are on
// their way long before they are needed.
struct PageNumbers {
    const int* row;
    int first, last, end;  // last: page of the sequence; end: of what the warp has of the split
    int now, next;

    // Begins with page `number`. All lanes take part, here and below.
    DEVICE void begin(const int* table_row, int number, int last_page, int end_page) {
        row = table_row, first = number & ~31, last = last_page, end = end_page;
        now = load(first);
        if (first + 32 < end) next = load(first + 32);
    }

    // No entry behind the sequence's last page is read.
    DEVICE int load(int from) const { return row[min(from + (int)threadIdx.x % 32, last)]; }

    // Returns where a page lies. Those that the lanes ask for are of the same 32, and no earlier ones
    // than before.
    DEVICE int of(int number) {
        if (__shfl_sync(~0u, number, 0) >= first + 32) {
            first += 32;
            now = next;
            if (first + 32 < end) next = load(first + 32);
        }
        return __shfl_sync(~0u, now, number - first);
    }
};

struct Pipeline {
    Cursor at;
    PageNumbers pages;
    int pages_of;  // the work that they are for
    bool is_v;  // whether K of the cursor's block is on its way, and V comes next
    u32 smem, barriers;
    int stage;

    // The stages and barriers of a warp.
    DEVICE void init(u32 shared, int warp, const TensorMap& k_map, const TensorMap& v_map) {
        smem = shared + STAGES_OFFSET + warp * num_stages * STAGES_BYTES;
        barriers = shared + BARRIERS_OFFSET + warp * num_stages * BARRIERS_BYTES;
        stage = 0;
        is_v = false;
        pages_of = -1;
        if (threadIdx.x % 32 == 0) {
            for (int i = 0; i < num_stages; ++i) mbarrier_init(barriers + BARRIERS_BYTES * i, 1);
            fence_mbarrier_init();
            prefetch_tensor_map(&k_map);
            prefetch_tensor_map(&v_map);
        }
        __syncwarp();
    }

    DEVICE u32 tile(int of) const { return smem + of * STAGES_BYTES; }

    // Reads the numbers of the pages at the cursor.
    DEVICE void find_pages(const Sizes& sizes, const Cache& cache) {
        if (!PAGE_SIZE || !at.has_work() || at.key >= at.split.end) return;
        pages_of = at.item;
        pages.begin(cache.table + (long long)at.split.sequence * sizes.table_row, page_of(at.key),
                    page_of(at.split.keys - 1), page_of(at.split.end - 1) + 1);
    }

    static DEVICE int page_of(int key) { return key / max(PAGE_SIZE, 1); }

    // Brings the first block at the cursor to the L2 cache, before the kernel before has ended: by
    // what lengths and pages are so far. Numbers of pages that do not exist are no harm to TMA.
    DEVICE void prefetch(const Sizes& sizes, const Cache& cache) const {
        const int place = at.key + threadIdx.x % 32 * BOX_ROWS;
        if (!at.has_work() || threadIdx.x % 32 >= BOXES || place >= at.split.end) return;
        int page = at.split.sequence;
        if (PAGE_SIZE)
            page = ld_early(cache.table + (long long)page * sizes.table_row + page_of(place));
        tma_prefetch_panels_once(cache.k, place % ROWS_OF_PAGE, at.split.head_kv, page);
        tma_prefetch_panels_once(cache.v, place % ROWS_OF_PAGE, at.split.head_kv, page);
    }

    // Starts the next copy, if there is one, into the stage that the warp has read.
    DEVICE void fetch(const Sizes& sizes, const Cache& cache) {
        while (at.has_work() && at.key >= at.split.end)
            at.begin(sizes, cache, at.item + gridDim.x);
        if (!at.has_work()) return;
        if (is_v)
            copy<VTile::BYTES>(cache.v, cache, sizes);
        else
            copy<KTile::BYTES>(cache.k, cache, sizes);
        if (is_v) at.key += BLOCK_N;
        is_v = !is_v;
        stage = stage + 1 == num_stages ? 0 : stage + 1;
    }

    // A lane copies each box.
    template <int BYTES>
    DEVICE void copy(const TensorMap* map, const Cache& cache, const Sizes& sizes) {
        const int lane = threadIdx.x % 32, box = lane % BOXES, place = at.key + box * BOX_ROWS;
        int page = at.split.sequence;
        if (PAGE_SIZE) {
            if (pages_of != at.item) find_pages(sizes, cache);
            // A page beyond the sequence does not exist: its rows are masked, and any will do.
            page = pages.of(min(page_of(place), page_of(at.split.keys - 1)));
        }
        const u32 barrier = barriers + 8 * stage;
        if (lane == 0) mbarrier_arrive_expect_tx(barrier, BYTES);
        __syncwarp();
        if (lane < BOXES)
            tma_load_panels_once(tile(stage) + box * (BYTES / BOXES), map, barrier,
                                 place % ROWS_OF_PAGE, at.split.head_kv, page);
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
    constexpr int BOX_BYTES = VTile::BYTES / BOXES, PANELS = BOX_BYTES / (BOX_ROWS * PANEL_BYTES);
    for (int at = from_row * PANEL_BYTES + 16 * lane; at < BLOCK_N * PANEL_BYTES; at += 512) {
        const int box = at / (BOX_ROWS * PANEL_BYTES), in_panel = at % (BOX_ROWS * PANEL_BYTES);
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
            st_shared_v4(tile + box * BOX_BYTES + panel * BOX_ROWS * PANEL_BYTES + in_panel, zeros);
    }
    __syncwarp();
}
