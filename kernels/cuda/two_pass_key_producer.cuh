// The producer thread of the key pass of the two-pass attention backward: it copies K, V, Q and dO.
//
// Included by attention_bwd_two_pass_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

// Copies a block of Q or dO. In a cluster each CTA copies its share to all.
DEVICE void load_block(u32 to, const TensorMap* map, int chunks, u32 barrier, int row, int head,
                       int batch) {
    const int begin = cluster_rank() * COPIED_ROWS;
#pragma unroll 1  // for fewer registers: the producer has few
    for (int i = 0; i < chunks; i++) {
        const u32 chunk = to + i * BLOCK_CHUNK + begin * ROW_BYTES;
        if (CLUSTER_SIZE == 1)
            tma_load(chunk, map, barrier, 64 * i, row, head, batch);
        else
            tma_load_multicast(chunk, map, barrier, 64 * i, row + begin, head, batch,
                               (1 << CLUSTER_SIZE) - 1);
    }
}

// Copies the CTA's keys of K or V.
DEVICE void load_keys(u32 to, const TensorMap* map, int chunks, u32 full, const KeyTile& tile) {
    mbarrier_arrive_expect_tx(full, chunks * OWN_CHUNK);
    for (int i = 0; i < chunks; i++)
        tma_load(to + i * OWN_CHUNK, map, full, 64 * i, own_key(tile), tile.head_kv, tile.batch);
}

// The producer's part of one tile: K, Q of the first step, V, and then all else in the order of
// use.
struct Producer {
    const InputMaps& maps;
    const float *lse_log2, *delta;
    const Sizes& sizes;
    u32 shared;

    DEVICE Barriers barriers() const { return {shared + BARRIERS_OFFSET}; }

    // Copies a block of Q with its lse. `first` is the number of its first row in the memory of
    // lse.
    DEVICE void load_q(int step, int row, int head, int batch, long long first) const {
        const int stage = step % Q_STAGES;
        const u32 full = barriers().q_full(stage);
        mbarrier_wait<(CLUSTER_SIZE > 1)>(barriers().q_empty(stage), (step / Q_STAGES & 1) ^ 1);
        mbarrier_arrive_expect_tx(full, Q_BYTES + ROWS_BYTES);
        load_block(shared + Q_OFFSET + stage * Q_BYTES, maps.q, CHUNKS, full, row, head, batch);
        bulk_load(shared + ROWS_OFFSET + stage * ROWS_BYTES, lse_log2 + first, ROWS_BYTES, full);
    }
    // Copies a block of dO with its delta.
    DEVICE void load_do(int step, int row, int head, int batch, long long first) const {
        const int stage = step % DO_STAGES;
        const u32 full = barriers().do_full(stage);
        mbarrier_wait<(CLUSTER_SIZE > 1)>(barriers().do_empty(stage), (step / DO_STAGES & 1) ^ 1);
        mbarrier_arrive_expect_tx(full, DO_BYTES + ROWS_BYTES);
        load_block(shared + DO_OFFSET + stage * DO_BYTES, maps.dout, CHUNKS_V, full, row, head,
                   batch);
        bulk_load(shared + ROWS_OFFSET + (Q_STAGES + stage) * ROWS_BYTES, delta + first, ROWS_BYTES,
                  full);
    }

    // Shared memory ends with the CTA: the consumers of the other one must have arrived for the
    // last time at the barriers in it. `steps` are all.
    DEVICE void wait_for_ends(int steps) const {
        for (int step = steps; step < steps + Q_STAGES; step++)
            mbarrier_wait<true>(barriers().q_empty(step % Q_STAGES), (step / Q_STAGES & 1) ^ 1);
        for (int step = steps; step < steps + DO_STAGES; step++)
            mbarrier_wait<true>(barriers().do_empty(step % DO_STAGES), (step / DO_STAGES & 1) ^ 1);
    }

    // Returns how many steps there were with this tile.
    DEVICE int load(const KeyTile& tile, int tiles, int steps) const {
        if (PERSISTENT) mbarrier_wait(barriers().own_empty(0), tiles & 1 ^ 1);
        load_keys(shared + K_OFFSET, maps.k, CHUNKS, barriers().own_full(0), tile);
        if (tiles == 0) wait_for_kernel_before();  // it writes lse and delta
        int step = steps;
        const int first_head = tile.head_kv * sizes.group();
        for (int head = first_head; head < first_head + sizes.group(); head++)
            for (int block = tile.first_block; block < tile.end_block; block++, step++) {
                const int row = block * BLOCK_M;
                const long long first =
                    ((long long)tile.batch * sizes.heads + head) * sizes.rows + row;
                load_q(step, row, head, tile.batch, first);
                if (step == steps) {
                    if (PERSISTENT) mbarrier_wait(barriers().own_empty(1), tiles & 1 ^ 1);
                    load_keys(shared + V_OFFSET, maps.v, CHUNKS_V, barriers().own_full(1), tile);
                }
                load_do(step, row, head, tile.batch, first);
            }
        return step;
    }
};

DEVICE void produce(const InputMaps& maps, const float* lse_log2, const float* delta,
                    const Sizes& sizes, const int* table, u32 shared) {
    const Producer producer{maps, lse_log2, delta, sizes, shared};
    int steps = 0;
    for_tiles<ONE_LANE>(table, [&](int number, int tiles) {
        steps = producer.load(key_tile(sizes, number), tiles, steps);
    });
    if (CLUSTER_SIZE > 1) producer.wait_for_ends(steps);
}
