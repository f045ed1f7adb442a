// The pipeline of attention_decode_cuda_sm90: one warp copies blocks of K and V in turns to stages in
// shared memory, for the warps that compute. The file that includes this defines the macros and tiles.
#pragma once

#include "cuda/bulk_copy.cuh"
#include "cuda/cache_hints.cuh"
#include "cuda/decode_counter.cuh"
#include "cuda/decode_problem.cuh"

struct Cache {
    const TensorMap *k, *v;
    const int* table;
    Lengths lengths;
    BatchSplits splits;
};

// The stages of a CTA, and what is beside each: the split whose first block it has, and its queries.
struct Stages {
    u32 smem;

    DEVICE u32 tile(int stage) const { return smem + STAGES_OFFSET + stage * STAGES_BYTES; }
    DEVICE u32 queries(int stage) const { return smem + QUERIES_OFFSET + stage * QUERIES_BYTES; }
    DEVICE u32 split(int stage) const { return smem + SPLITS_OFFSET + stage * SPLITS_BYTES; }
    DEVICE u32 full(int stage) const { return smem + BARRIERS_OFFSET + stage * BARRIERS_BYTES; }
    DEVICE u32 empty(int stage) const { return full(stage) + 8; }

    DEVICE void init() const {
        for (int stage = 0; stage < num_stages; ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), num_warps);
        }
        fence_mbarrier_init();
    }
};

// A place in the ring of stages; `parity` is that of its barriers' phase.
struct RingPlace {
    int stage = 0;
    u32 parity = 0;

    DEVICE void advance() {
        if (++stage == num_stages) stage = 0, parity ^= 1;
    }
};

// The numbers of 32 pages of a sequence, one in each lane, and of the 32 behind them, which are on
// their way long before they are needed.
struct PageNumbers {
    const int* row;
    int first, last, end;  // last: page of the sequence; end: of the split
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

// The warp that copies. All lanes take part in everything.
struct Producer {
    Stages stages;
    RingPlace place;
    RingPlace on_its_way;  // the first copy that has not arrived, as far as this warp knows
    int copies = 0;          // in all
    float2* ends;            // of splits; behind them is the counter
    bool has_begun = false;  // the counter, as far as this CTA knows
    Split split;
    int next;  // number of the next split
    PageNumbers pages;
    bool has_pages = false;  // whether `pages` are those of the split

    DEVICE void find(const Sizes& sizes, const Cache& cache, int at) {
        has_pages = false;
        split = Split();
        if (at < cache.splits.count)
            split = find_split<BLOCK_N, WINDOWED>(sizes, cache.lengths, at, cache.splits.height);
        next = cache.splits.count;
    }

    // Takes the number of the next split. It arrives while this split is copied.
    DEVICE void take_next(const Sizes& sizes) {
        if (threadIdx.x % 32 == 0) {
            SplitCounter* counter = counter_of_splits(sizes, ends);
            if (!has_begun) counter->begin();
            next = sizes.ctas + counter->take();
        }
        has_begun = true;
        __syncwarp();
    }

    // Each split takes one number, so there are as many as splits.
    DEVICE void find_next(const Sizes& sizes, const Cache& cache) {
        const int at = __shfl_sync(~0u, next, 0);
        if (at == sizes.ctas + cache.splits.count - 1 && threadIdx.x % 32 == 0)
            counter_of_splits(sizes, ends)->end();
        find(sizes, cache, at);
    }

    // Reads the numbers of the split's first pages.
    DEVICE void find_pages(const Sizes& sizes, const Cache& cache) {
        if (!PAGE_SIZE || has_pages || !split.exists() || split.begin >= split.end) return;
        has_pages = true;
        pages.begin(cache.table + (long long)split.sequence * sizes.table_row, page_of(split.begin),
                    page_of(split.keys - 1), page_of(split.end - 1) + 1);
    }

    static DEVICE int page_of(int key) { return key / max(PAGE_SIZE, 1); }

    // Brings the split's first block to the L2 cache, before the kernel before has ended: by what
    // lengths and pages are so far. Numbers of pages that do not exist are no harm to TMA.
    DEVICE void prefetch(const Sizes& sizes, const Cache& cache) const {
        const int key = split.begin + threadIdx.x % 32 * BOX_ROWS;
        if (!split.exists() || threadIdx.x % 32 >= BOXES || key >= split.end) return;
        int page = split.sequence;
        if (PAGE_SIZE)
            page = ld_early(cache.table + (long long)page * sizes.table_row + page_of(key));
        tma_prefetch_panels_once(cache.k, key % ROWS_OF_PAGE, split.head_kv, page);
        tma_prefetch_panels_once(cache.v, key % ROWS_OF_PAGE, split.head_kv, page);
    }

    // Waits until the stage is empty, and less than COPIES_IN_FLIGHT copies are on their way. More
    // would only wait for one another, and the memory reads them in a worse order.
    DEVICE void acquire() {
        mbarrier_wait(stages.empty(place.stage), place.parity ^ 1);
        if (COPIES_IN_FLIGHT == num_stages || copies++ < COPIES_IN_FLIGHT) return;
        mbarrier_wait(stages.full(on_its_way.stage), on_its_way.parity);
        on_its_way.advance();
    }

    // Copies the split: its queries with the first block of K. A split without keys, and the end of all
    // splits, take a stage too, into which nothing is copied.
    DEVICE void copy_split(const Sizes& sizes, const Cache& cache, const Element* q,
                           const Strides& q_strides) {
        const int lane = threadIdx.x % 32;
        acquire();
        if (lane == 0) write_split();
        const bool is_empty = !split.exists() || split.begin >= split.end;
        if (is_empty) {
            if (split.exists() && cache.splits.are_counted(sizes)) take_next(sizes);
            __syncwarp();
            if (lane == 0) mbarrier_arrive(stages.full(place.stage));
            place.advance();
            return;
        }
        find_pages(sizes, cache);
        const int rows = GROUP * sizes.seqlen_q;
        bool takes = cache.splits.are_counted(sizes);
        u32 bytes = KTile::BYTES + rows * HEAD_DIM * 2;
        for (int key = split.begin; key < split.end; key += BLOCK_N) {
            const bool is_first = key == split.begin;
            if (!is_first) acquire();
            copy<KTile::BYTES>(cache.k, key, bytes);
            if (is_first) copy_queries(q, q_strides, rows);
            bytes = KTile::BYTES;
            place.advance();
            acquire();
            copy<VTile::BYTES>(cache.v, key, VTile::BYTES);
            place.advance();
            // The first CTA begins the counter. Others find it so when they have copied a few blocks.
            const bool is_last = key + BLOCK_N >= split.end;
            if (takes && (blockIdx.x == 0 || is_last || key >= split.begin + 2 * BLOCK_N)) {
                takes = false;
                take_next(sizes);
            }
        }
    }

    DEVICE void write_split() const {
        const u32 to = stages.split(place.stage);
        const int fields[8] = {split.sequence, split.number, split.splits, split.head_kv,
                               split.begin, split.end, split.keys, split.leaf_keys};
#pragma unroll
        for (int i = 0; i < 8; ++i) st_shared(to + 4 * i, fields[i]);
    }

    // Copies the rows of a block; a lane copies each box. `bytes` come to the stage in all.
    template <int BYTES>
    DEVICE void copy(const TensorMap* map, int first_key, u32 bytes) {
        const int lane = threadIdx.x % 32, box = lane % BOXES, key = first_key + box * BOX_ROWS;
        int page = split.sequence;
        // A page beyond the sequence does not exist: its rows are masked, and any will do.
        if (PAGE_SIZE) page = pages.of(min(page_of(key), page_of(split.keys - 1)));
        const u32 barrier = stages.full(place.stage);
        if (lane == 0) mbarrier_arrive_expect_tx(barrier, bytes);
        __syncwarp();
        if (lane < BOXES)
            tma_load_panels_once(stages.tile(place.stage) + box * (BYTES / BOXES), map, barrier,
                                 key % ROWS_OF_PAGE, split.head_kv, page);
    }

    // Copies the queries of the KV head, a lane each row: row r is query r / GROUP of head r % GROUP.
    DEVICE void copy_queries(const Element* q, const Strides& strides, int rows) const {
        const int row = threadIdx.x % 32;
        if (row < rows)
            bulk_load(stages.queries(place.stage) + row * QUERY_BYTES,
                      queries_of(q, strides, split) + row % GROUP * strides.head +
                          (long long)(row / GROUP) * strides.row,
                      HEAD_DIM * 2, stages.full(place.stage));
    }
};

// A warp that computes.
struct Reader {
    Stages stages;
    RingPlace place;

    // Waits until the stage is full, and returns where its block is.
    DEVICE u32 wait() const {
        mbarrier_wait(stages.full(place.stage), place.parity);
        return stages.tile(place.stage);
    }

    // The split whose first block is in the stage.
    DEVICE Split split() const {
        const uint4 a = ld_shared_v4_u32(stages.split(place.stage));
        const uint4 b = ld_shared_v4_u32(stages.split(place.stage) + 16);
        return {(int)a.x, (int)a.y, (int)a.z, (int)a.w, (int)b.x, (int)b.y, (int)b.z, (int)b.w};
    }

    // All lanes have read the stage.
    DEVICE void release() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(stages.empty(place.stage));
        place.advance();
    }
};
