// What copies Q, K and V of a program's tiles into shared memory, each slot when it is free.
//
// Included by attention_fwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

__device__ __forceinline__ void load_chunks(const TensorMap* map, u32 to, int chunk_bytes, int count,
                                            u32 barrier, int row, int head, int batch) {
#pragma unroll
    for (int i = 0; i < count; i++)
        tma_load(to + i * chunk_bytes, map, barrier, i * K_CHUNK, row, head, batch);
}

// This program's part of a block of K or V, for each program of the cluster.
__device__ __forceinline__ void load_block(const TensorMap* map, u32 to, int count, u32 barrier,
                                           int key, const Tile& of) {
    if (CLUSTER_SIZE == 1) {
        load_chunks(map, to, KV_CHUNK_BYTES, count, barrier, key, of.head_kv, of.batch);
        return;
    }
    int begin = cluster_rank() * COPIED_KEYS;
#pragma unroll
    for (int i = 0; i < count; i++)
        tma_load_multicast(to + i * KV_CHUNK_BYTES + begin * SWIZZLE_BYTES, map, barrier, i * K_CHUNK,
                           key + begin, of.head_kv, of.batch, (1 << CLUSTER_SIZE) - 1);
}

// The same of a block of V^T, in which each program copies some of the columns of V.
__device__ __forceinline__ void load_transposed(const TensorMap* map, u32 to, u32 barrier, int key,
                                                const Tile& of) {
    int begin = CLUSTER_SIZE == 1 ? 0 : cluster_rank() * COPIED_COLUMNS;
#pragma unroll
    for (int i = 0; i < BLOCK_N / VT_SWIZZLE; i++) {
        u32 chunk = to + i * VT_CHUNK_BYTES + begin * VT_SWIZZLE;
        if (CLUSTER_SIZE == 1)
            tma_load(chunk, map, barrier, key + i * VT_SWIZZLE, begin, of.head_kv, of.batch);
        else
            tma_load_multicast(chunk, map, barrier, key + i * VT_SWIZZLE, begin, of.head_kv, of.batch,
                               (1 << CLUSTER_SIZE) - 1);
    }
}

// One thread: Q of each tile, then K and V of its blocks in the order of their use.
__device__ __forceinline__ void produce(const TensorMap* q_map, const TensorMap* k_map,
                                        const TensorMap* v_map, const Sizes& sizes, const int* schedule,
                                        const int* tiles, u32 shared) {
    KRing k{shared + BARRIERS_OFFSET};
    VRing v{shared + BARRIERS_OFFSET};
    QRing q{shared + BARRIERS_OFFSET};
    int first = schedule[blockIdx.x], count = schedule[blockIdx.x + 1] - first;
    int beside = (CLUSTER_SIZE - 1 - cluster_rank()) * count;
    Tile tile = tile_at(tiles, first, beside);
    int loaded = 0;  // blocks of V; K is one ahead within a tile
    auto load_k = [&](const Tile& of, int use, int block) {
        k.wait_freed(use);
        barrier_expect(k.filled(use % num_stages), K_BYTES);
        load_block(k_map, shared + K_OFFSET + use % num_stages * K_BYTES, K_CHUNKS, k.filled(use % num_stages),
                   block * BLOCK_N, of);
    };
    auto load_v = [&](const Tile& of, int use, int block) {
        v.wait_freed(use);
        barrier_expect(v.filled(use % num_stages), V_BYTES);
        u32 to = shared + V_OFFSET + use % num_stages * V_BYTES;
        if (DTYPE_E4M3)
            load_transposed(v_map, to, v.filled(use % num_stages), block * BLOCK_N, of);
        else
            load_block(v_map, to, V_CHUNKS, v.filled(use % num_stages), block * BLOCK_N, of);
    };
    for (int turn = 0; turn < count; turn++) {
        Tile here = tile;
        tile = tile_at(tiles, first + turn + 1, beside);  // long before it is needed
        int end = blocks_end(sizes, here.lowest_row, ROWS);
        for (int me = 0; me < WARPGROUPS; me++) {
            int slot = turn % Q_STAGES * WARPGROUPS + me;
            barrier_wait(q.freed(slot), ((turn / Q_STAGES) & 1) ^ 1);
            barrier_expect(q.filled(slot), K_CHUNKS * Q_CHUNK_BYTES);
            load_chunks(q_map, shared + Q_OFFSET + slot * Q_BYTES, Q_CHUNK_BYTES, K_CHUNKS, q.filled(slot),
                        here.row + 64 * me, here.head, here.batch);
            if (me == 0) load_k(here, loaded, end - 1);  // the first scores need no more than this
        }
        for (int block = end - 2; block >= 0; block--, loaded++) {
            load_k(here, loaded + 1, block);
            load_v(here, loaded, block + 1);
        }
        load_v(here, loaded++, 0);
    }
}
