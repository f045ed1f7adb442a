// The producer warpgroup of attention_decode_mla_cuda_sm90: one warp copies blocks of the cache by
// TMA, the others the queries, each as soon as the consumers have read what was there.
//
// Included by attention_decode_mla_cuda_sm90.cu, whose sizes it uses.
#pragma once

#include "cuda/mla_problem.cuh"

// Where TMA finds the boxes of a block: they are looked up before the stage is free.
struct Boxes {
    int page[BOXES], place[BOXES];

    DEVICE void find(const Sizes& sizes, const int* table, const Work& work, int key) {
#pragma unroll
        for (int i = 0; i < BOXES; ++i) {
            const int row = key + blockIdx.x % CLUSTER_SIZE * COPIED_KEYS + i * BOX_ROWS;
            page[i] = work.sequence, place[i] = row;
            if (PAGE_SIZE) {
                // A page beyond the sequence does not exist: its rows are masked, and any will do.
                const int number = min(row, work.keys - 1) / max(PAGE_SIZE, 1);
                page[i] = table[(long long)work.sequence * sizes.table_row + number];
                place[i] = row % max(PAGE_SIZE, 1);
            }
        }
    }
};

// Copies one block of the cache; with a cluster each CTA copies half of its keys to both CTAs.
DEVICE void copy_block(const TensorMap* map, u32 shared, int stage, const Boxes& boxes,
                       int head_kv) {
    const u32 first_row = blockIdx.x % CLUSTER_SIZE * COPIED_KEYS * 128;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const int begin = part * PART_CHUNKS, end = min(begin + PART_CHUNKS, CHUNKS);
        const u32 barrier = full_barrier(shared, stage, part);
        mbarrier_arrive_expect_tx(barrier, (end - begin) * CHUNK_BYTES);
#pragma unroll
        for (int chunk = begin; chunk < end; ++chunk)
#pragma unroll
            for (int i = 0; i < BOXES; ++i) {
                const u32 to = stage_address(shared, stage) + chunk * CHUNK_BYTES + first_row +
                               i * BOX_ROWS * 128;
                if (CLUSTER_SIZE == 1)
                    tma_load(to, map, barrier, 64 * chunk, boxes.place[i], head_kv, boxes.page[i]);
                else
                    tma_load_multicast(to, map, barrier, 64 * chunk, boxes.place[i], head_kv,
                                       boxes.page[i], (1 << CLUSTER_SIZE) - 1);
            }
    }
}

// One warp: copies the blocks of all work of the CTA.
DEVICE void produce_keys(const TensorMap* map, const Sizes& sizes, const int* seqlens,
                         const int* table, u32 shared) {
    int block = 0;  // counts over all work
    for (int item = first_item(); ; item += items_apart()) {
        const Work work = find_work(sizes, seqlens, item);
        if (work.sequence < 0) return;
        if (threadIdx.x % 32 == 0) {
            Boxes boxes;
            if (work.begin < work.end) boxes.find(sizes, table, work, work.begin);
            for (int key = work.begin; key < work.end; key += BLOCK_N, ++block) {
                const int stage = block % num_stages;
                mbarrier_wait<(CLUSTER_SIZE > 1)>(empty_barrier(shared, stage),
                                                  (block / num_stages & 1) ^ 1);
                copy_block(map, shared, stage, boxes, work.head_kv);
                if (key + BLOCK_N < work.end) boxes.find(sizes, table, work, key + BLOCK_N);
            }
        }
        __syncwarp();
    }
}

// Three warps: copy the queries of each work, and say what work it is. Row r of a KV head is query
// r / GROUP of its query head r % GROUP. Rows that do not exist become zero.
DEVICE void produce_queries(const Element* q, const Strides& strides, const Sizes& sizes,
                            const int* seqlens, u32 shared) {
    const int thread = threadIdx.x % 128 - 32;
    int count = 0;
    for (int item = first_item(); ; item += items_apart(), ++count) {
        const Work work = find_work(sizes, seqlens, item);
        mbarrier_wait(shared + QUERY_BARRIERS + 8, (count & 1) ^ 1);
        if (thread == 0) {
            const int words[8] = {work.sequence, work.head_kv, work.row_tile, work.split,
                                  work.splits, work.begin, work.end, work.keys};
#pragma unroll
            for (int i = 0; i < 8; ++i) st_shared(shared + WORK_OFFSET + 4 * i, words[i]);
        }
        if (work.sequence < 0) {
            mbarrier_arrive(shared + QUERY_BARRIERS);
            return;
        }
        for (int i = thread; i < ROWS * CHUNKS * 8; i += QUERY_THREADS) {
            const int row = i / (CHUNKS * 8), unit = i % (CHUNKS * 8);
            const int at = work.row_tile * ROWS + row, query = at / GROUP;
            const bool exists = query < sizes.seqlen_q;
            const int head = work.head_kv * GROUP + at % GROUP;
            const Element* from = q + work.sequence * strides.batch + head * strides.head +
                                  (long long)query * strides.row + 8 * unit;
            const u32 to = shared + Q_OFFSET + unit / 8 * (ROWS * 128);
            cp_async_16_or_zero(swizzled_address<128>(to, row, unit % 8), exists ? from : q,
                                exists);
        }
        cp_async_commit();
        cp_async_wait<0>();
        fence_proxy_async();
        mbarrier_arrive(shared + QUERY_BARRIERS);
    }
}
