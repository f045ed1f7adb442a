// dQ of a block of rows, in the attention backward: its products, and the warpgroup that computes
// nothing else, with DQ_WARPGROUP.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

// One thread's share of a part of dQ^T = K^T dS^T: 64 columns of dQ or, with one chunk, all columns of
// a half of the rows. A warpgroup computes a part at a time.
struct DqProduct {
    u32 shared;
    int part, lane, warp;
    int tiles;  // that are finished: the dK of each has used dQ's buffer, too

    DEVICE Barriers barriers() const { return {shared + BARRIERS_OFFSET}; }

    // Starts dQ^T of a step, of dS of all keys, whose K is in a stage.
    DEVICE void start(float (&dq)[DQ_ROWS / 2], int of_step, int k_stage) const {
        const int column_chunk = CHUNKS == 1 ? 0 : part;
        const int first_row = CHUNKS == 1 ? part * DQ_ROWS : 0;
        const u64 a = rows_descriptor(shared + K_OFFSET + k_stage * K_BYTES +
                                      column_chunk * KEYS_CHUNK);
        const u64 b = rows_descriptor(shared + DS_OFFSET + u32(of_step) % DS_STAGES * DS_BYTES +
                                      first_row * ROW_BYTES);
        wgmma_fence_operand(dq);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            WgmmaTransposed<DQ_ROWS>::ss(dq, a + further(k * 16 * ROW_BYTES),
                                         b + further(k / 4 * Q_CHUNK + k % 4 * 32), k > 0);
        wgmma_commit();
    }

    // Waits until the buffer is free for dQ of a step.
    DEVICE void wait_for_buffer(int of_step) const {
        mbarrier_wait(barriers().dq_empty(part), (of_step + tiles & 1) ^ 1);
    }
    // Stores dQ^T of a step for the dQ writer. `hand_over` follows, when the next products run.
    DEVICE void store(const float (&dq)[DQ_ROWS / 2], int of_step) const {
        wait_for_buffer(of_step);
        store_some(dq, 0, 1, true);
    }
    // Stores a share of it, the given one of so many, if a condition holds. The buffer is free.
    DEVICE void store_some(const float (&dq)[DQ_ROWS / 2], int number, int of,
                           bool condition) const {
        constexpr int ALL = DQ_ROWS / 8;
        const u32 to = shared + DQ_OFFSET + part * DQ_BYTES + 16 * (32 * warp + lane);
#pragma unroll
        for (int i = 0; i < ALL; i++)
            if (i * of / ALL == number) st_shared_v4_if(condition, to + i * 2048, dq + 4 * i);
    }
    DEVICE void hand_over() const {
        fence_proxy_async();
        arrive_warp(barriers().dq_full(part), lane);
    }
};

// Computes dQ of all steps of a tile, one part after the other, while the consumers go on.
DEVICE void multiply_dq(const Sizes& sizes, const Tile& tile, const Done& done, u32 shared,
                        int lane, int warp) {
    if (!PERSISTENT && !tile.is_seen()) return;
    const Barriers barriers{shared + BARRIERS_OFFSET};
    const int end = done.steps + tile.blocks() * sizes.group();
    mbarrier_wait(barriers.k(done.k_stage()), done.k_phase());
    for (int step = done.steps; step < end; step++) {
        const int stage = step % DS_STAGES;
        mbarrier_wait(barriers.ds_full(stage), step / DS_STAGES & 1);
#pragma unroll 1
        for (int part = 0; part < DQ_PARTS; part++) {
            const DqProduct product{shared, part, lane, warp, done.tiles};
            float dq[DQ_ROWS / 2];
            product.start(dq, step, done.k_stage());
            wgmma_wait<0>();
            wgmma_fence_operand(dq);
            if (part == DQ_PARTS - 1) arrive_warp(barriers.ds_empty(stage), lane);
            product.store(dq, step);
            product.hand_over();
        }
    }
    if (PERSISTENT) arrive_warp(barriers.k_empty(done.k_stage()), lane);
    // The consumers' dK goes where the last dQ was.
    for (int part = 0; part < DQ_PARTS; part++)
        DqProduct{shared, part, lane, warp, done.tiles}.wait_for_buffer(end);
    named_barrier_arrive(DQ_IS_ADDED, 128 * (WARPGROUPS + 1));
}

// What a thread of the warpgroup for dQ does.
DEVICE void multiply_dq(const Sizes& sizes, u32 shared, int lane, int warp) {
    for_tiles<ALL_LANES>(
        sizes,
        [&](const Tile& tile, const Done& done) {
            multiply_dq(sizes, tile, done, shared, lane, warp);
        },
        [&](int taken) { return next_place<ALL_LANES>({shared + BARRIERS_OFFSET}, taken); });
}
