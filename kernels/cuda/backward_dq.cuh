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

    DEVICE Barriers barriers() const { return {shared + BARRIERS_OFFSET}; }

    // Starts dQ^T of a step, of dS of all keys.
    DEVICE void start(float (&dq)[DQ_ROWS / 2], int of_step) const {
        const int column_chunk = CHUNKS == 1 ? 0 : part;
        const int first_row = CHUNKS == 1 ? part * DQ_ROWS : 0;
        const u64 a = rows_descriptor(shared + K_OFFSET + column_chunk * KEYS_CHUNK);
        const u64 b = rows_descriptor(shared + DS_OFFSET + (of_step & 1) * DS_BYTES +
                                      first_row * ROW_BYTES);
        wgmma_fence_operand(dq);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            WgmmaTransposed<DQ_ROWS>::ss(dq, a + further(k * 16 * ROW_BYTES),
                                         b + further(k / 4 * Q_CHUNK + k % 4 * 32), k > 0);
        wgmma_commit();
    }

    // Stores dQ^T of a step for the dQ writer. `hand_over` follows, when the next products run.
    DEVICE void store(const float (&dq)[DQ_ROWS / 2], int of_step) const {
        mbarrier_wait(barriers().dq_empty(part), (of_step & 1) ^ 1);
        const u32 to = shared + DQ_OFFSET + part * DQ_BYTES + 16 * (32 * warp + lane);
#pragma unroll
        for (int i = 0; i < DQ_ROWS / 8; i++) st_shared_v4(to + i * 2048, dq + 4 * i);
    }
    DEVICE void hand_over() const {
        fence_proxy_async();
        arrive_warp(barriers().dq_full(part), lane);
    }
};

// Computes dQ of all steps, one part after the other, while the consumers go on.
DEVICE void multiply_dq(const Sizes& sizes, const Tile& tile, u32 shared, int lane, int warp) {
    if (!tile.is_seen()) return;
    const Barriers barriers{shared + BARRIERS_OFFSET};
    const int steps = tile.blocks() * sizes.group();
    mbarrier_wait(barriers.k(), 0);
    for (int step = 0; step < steps; step++) {
        const int stage = step % DS_STAGES;
        mbarrier_wait(barriers.ds_full(stage), step / DS_STAGES & 1);
#pragma unroll 1
        for (int part = 0; part < DQ_PARTS; part++) {
            const DqProduct product{shared, part, lane, warp};
            float dq[DQ_ROWS / 2];
            product.start(dq, step);
            wgmma_wait<0>();
            wgmma_fence_operand(dq);
            if (part == DQ_PARTS - 1) arrive_warp(barriers.ds_empty(stage), lane);
            product.store(dq, step);
            product.hand_over();
        }
    }
    // The consumers' dK goes where the last dQ was.
    for (int part = 0; part < DQ_PARTS; part++)
        mbarrier_wait(barriers.dq_empty(part), (steps & 1) ^ 1);
    named_barrier_arrive(DQ_IS_ADDED, 128 * (WARPGROUPS + 1));
}
