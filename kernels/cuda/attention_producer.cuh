// The producer: one thread copies Q, K and V of the CTA's tiles to shared memory with TMA, to each
// slot as soon as it is empty.
//
// Included by attention_fwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

// Copies the 64 query rows of a warpgroup.
DEVICE void load_q(const TensorMap* map, u32 to, u32 barrier, int row, const WorkInfo& work) {
#pragma unroll
    for (int i = 0; i < K_CHUNKS; i++)
        (DEPENDENT_LAUNCH ? tma_load_once : tma_load)(to + i * Q_CHUNK_BYTES, map, barrier,
                                                      i * K_CHUNK, row, work.head, work.batch);
}

// Copies a block of K or V, in chunks of COLUMNS. With a cluster each CTA copies COPIED_KEYS of its
// keys to all CTAs.
template <int COLUMNS>
DEVICE void load_block(const TensorMap* map, u32 to, int chunks, u32 barrier, int key,
                       const WorkInfo& work) {
    int begin = CLUSTER_SIZE == 1 ? 0 : cluster_rank() * COPIED_KEYS;
#pragma unroll
    for (int i = 0; i < chunks; i++) {
        u32 chunk = to + i * KV_CHUNK_BYTES + begin * SWIZZLE_BYTES;
        if (CLUSTER_SIZE == 1)
            tma_load(chunk, map, barrier, i * COLUMNS, key, work.head_kv, work.batch);
        else
            tma_load_multicast(chunk, map, barrier, i * COLUMNS, key + begin, work.head_kv,
                               work.batch, (1 << CLUSTER_SIZE) - 1);
    }
}

// Copies a block of V^T. With a cluster each CTA copies COPIED_COLUMNS of V to all CTAs.
DEVICE void load_transposed_block(const TensorMap* map, u32 to, u32 barrier, int key,
                                  const WorkInfo& work) {
    int begin = CLUSTER_SIZE == 1 ? 0 : cluster_rank() * COPIED_COLUMNS;
#pragma unroll
    for (int i = 0; i < BLOCK_N / VT_SWIZZLE; i++) {
        u32 chunk = to + i * VT_CHUNK_BYTES + begin * VT_SWIZZLE;
        if (CLUSTER_SIZE == 1)
            tma_load(chunk, map, barrier, key + i * VT_SWIZZLE, begin, work.head_kv, work.batch);
        else
            tma_load_multicast(chunk, map, barrier, key + i * VT_SWIZZLE, begin, work.head_kv,
                               work.batch, (1 << CLUSTER_SIZE) - 1);
    }
}

#if DEPENDENT_LAUNCH
// Waits for the kernel before. What a CTA copies first is brought to the L2 cache meanwhile: the
// queries of its first tile, a block of K, and one of V, but with e4m3, where that kernel writes V.
DEVICE void prefetch_and_wait(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map,
                              const Sizes& sizes, const WorkInfo& work) {
    int last = visible_blocks(sizes, work.cluster_row, ROWS) - 1;
    int key = last * BLOCK_N + (CLUSTER_SIZE == 1 ? 0 : cluster_rank() * COPIED_KEYS);
#pragma unroll 1
    for (int row = 0; row < ROWS; row += 64) {
#pragma unroll
        for (int i = 0; i < K_CHUNKS; i++)
            tma_prefetch(q_map, i * K_CHUNK, work.row + row, work.head, work.batch);
        if (row > 0) continue;  // the first scores need no more rows
#pragma unroll
        for (int i = 0; i < K_CHUNKS; i++)
            tma_prefetch(k_map, i * K_CHUNK, key, work.head_kv, work.batch);
    }
#pragma unroll
    for (int i = 0; i < V_CHUNKS && !DTYPE_E4M3; i++)
        tma_prefetch(v_map, i * CHUNK, key, work.head_kv, work.batch);
    wait_for_kernel_before();
}
#endif

// Copies Q of each tile, and K and V of its blocks in the order in which consumers read them.
DEVICE void produce(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map,
                    const Sizes& sizes, const int* schedule, const int* tiles, u32 shared) {
    KPipeline k{shared + BARRIERS_OFFSET};
    VPipeline v{shared + BARRIERS_OFFSET};
    QPipeline q{shared + BARRIERS_OFFSET};
    int first = first_tile(schedule), count = tile_count(schedule, first);
    int last_cta_offset = (CLUSTER_SIZE - 1 - cluster_rank()) * count;
    WorkInfo next_work = load_first_work_info(schedule, tiles, first, last_cta_offset);
#if DEPENDENT_LAUNCH  // a call that is left out would change the order of other instructions
    prefetch_and_wait(q_map, k_map, v_map, sizes, next_work);
#endif
    int pipe_write = 0;  // counts blocks of V, over all tiles; K is one ahead within a tile
    auto load_k = [&](const WorkInfo& work, int pipe_write, int block) {
        k.wait_empty(pipe_write);
        u32 full = k.full(pipe_write % num_stages);
        mbarrier_arrive_expect_tx(full, K_BYTES);
        u32 to = shared + K_OFFSET + pipe_write % num_stages * K_BYTES;
        load_block<K_CHUNK>(k_map, to, K_CHUNKS, full, block * BLOCK_N, work);
    };
    auto load_v = [&](const WorkInfo& work, int pipe_write, int block) {
        v.wait_empty(pipe_write);
        u32 full = v.full(pipe_write % num_stages);
        mbarrier_arrive_expect_tx(full, V_BYTES);
        u32 to = shared + V_OFFSET + pipe_write % num_stages * V_BYTES;
        if (E4M3_PV)
            load_transposed_block(v_map, to, full, block * BLOCK_N, work);
        else
            load_block<CHUNK>(v_map, to, V_CHUNKS, full, block * BLOCK_N, work);
    };
    for (int i = 0; i < count; i++) {
        WorkInfo work = next_work;
        next_work = load_work_info(tiles, first + i + 1, last_cta_offset);  // long before its use
        int blocks = visible_blocks(sizes, work.cluster_row, ROWS);
        for (int warpgroup = 0; warpgroup < WARPGROUPS; warpgroup++) {
            int q_slot = i % Q_STAGES * WARPGROUPS + warpgroup;
            mbarrier_wait(q.empty(q_slot), ((i / Q_STAGES) & 1) ^ 1);
            mbarrier_arrive_expect_tx(q.full(q_slot), K_CHUNKS * Q_CHUNK_BYTES);
            load_q(q_map, shared + Q_OFFSET + q_slot * Q_BYTES, q.full(q_slot),
                   work.row + 64 * warpgroup, work);
            // The first scores need no more than this.
            if (warpgroup == 0) load_k(work, pipe_write, blocks - 1);
        }
        for (int block = blocks - 2; block >= 0; block--, pipe_write++) {
            load_k(work, pipe_write + 1, block);
            load_v(work, pipe_write, block + 1);
        }
        load_v(work, pipe_write++, 0);
    }
}
