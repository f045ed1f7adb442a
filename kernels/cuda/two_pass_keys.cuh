// The key pass of the two-pass attention backward: dK and dV of 64 keys, by two warpgroups.
//
// Included by attention_bwd_two_pass_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

#include "cuda/row_dots.cuh"

// One thread's part of either consumer warpgroup. Accumulators lie in registers as WGMMA leaves
// them (see wgmma.cuh): S^T, dP^T, dK and dV have keys as rows.
struct KeyConsumer {
    const Sizes& sizes;
    const KeyTile& tile;
    u32 shared;
    int lane, warp;
    int tiles, steps;  // that came before, of all tiles

    DEVICE Barriers barriers() const { return {shared + BARRIERS_OFFSET}; }
    DEVICE int end() const { return steps + tile.blocks() * sizes.group(); }
    DEVICE u32 q(int step) const { return shared + Q_OFFSET + step % Q_STAGES * Q_BYTES; }
    DEVICE u32 dout(int step) const { return shared + DO_OFFSET + step % DO_STAGES * DO_BYTES; }
    DEVICE void wait_for_q(int step) const {
        mbarrier_wait(barriers().q_full(step % Q_STAGES), step / Q_STAGES & 1);
    }
    DEVICE void wait_for_do(int step) const {
        mbarrier_wait(barriers().do_full(step % DO_STAGES), step / DO_STAGES & 1);
    }

    // A stage is released to the producers of all CTAs of the cluster, which all write to it. The
    // own one also writes lse or delta, which threads have read: its arrival is not relaxed.
    DEVICE void release(u32 barrier) const {
        __syncwarp();
        if (lane == cluster_rank())
            mbarrier_arrive(barrier);
        else if (lane < CLUSTER_SIZE)
            mbarrier_arrive_cluster(barrier, lane);
    }
    DEVICE void release_q(int step) const { release(barriers().q_empty(step % Q_STAGES)); }
    DEVICE void release_do(int step) const { release(barriers().do_empty(step % DO_STAGES)); }

    // Numbers of this thread's columns of S^T: of rows 8 i + 2 (lane % 4) and the next.
    DEVICE float2 row_pair(int slot, int i) const {
        return ld_shared_v2_f32(shared + ROWS_OFFSET + slot * ROWS_BYTES +
                                4 * (8 * i + 2 * (lane % 4)));
    }
    // Where a thread stores 16 bytes of P^T of a step for the same thread of the other warpgroup.
    DEVICE u32 handed(int step, int i) const {
        return shared + HANDED_OFFSET + step % P_STAGES * HANDED_BYTES +
               16 * (128 * i + 32 * warp + lane);
    }

    // Waits for K or V of the warpgroup, and loads its part of it. PERSISTENT: then the next one
    // comes.
    template <int COLUMNS>
    DEVICE void load_own(LeftOperand<COLUMNS>& operand, u32 from, int warpgroup) const {
        mbarrier_wait(barriers().own_full(warpgroup), tiles & 1);
        operand.load(from, lane, warp);
        if (PERSISTENT) arrive_warp(barriers().own_empty(warpgroup), lane);
    }

    // Writes a sum through memory that only this warpgroup reads. PERSISTENT: there is a buffer for
    // dV and dK in turn. `release_sum` follows, when the first product of the next tile runs.
    template <int N>
    DEVICE void write(const float (&sum)[N / 2], float factor, u32 own, const TensorMap* map,
                      int chunks, int warpgroup) const {
        const u32 buffer = PERSISTENT ? shared + OUT_OFFSET : own;
        // Of this tile warpgroup 0 writes first.
        if (PERSISTENT)
            mbarrier_wait(barriers().sum_read(1 - warpgroup), (warpgroup == 0) ^ tiles & 1);
        put<N>(sum, factor, buffer, warpgroup, lane, warp);
        if (warp + lane > 0) return;
        send(buffer, map, chunks, own_key(tile), tile.head_kv, tile.batch);
    }
};

// PERSISTENT: lets the other warpgroup have the buffer, when TMA has read the sum of a tile.
DEVICE void release_sum(u32 shared, int warpgroup, int lane, int warp) {
    if (warp + lane > 0) return;
    tma_store_wait();
    mbarrier_arrive(Barriers{shared + BARRIERS_OFFSET}.sum_read(warpgroup));
}

// Warpgroup 0: P^T for both warpgroups, and dV.
struct ValuesConsumer : KeyConsumer {
    static constexpr int WARPGROUP = 0;
    float dv[WIDTH_V / 2];
    u32 p16[BLOCK_M / 4];
    LeftOperand<K_IN_REGISTERS> k;

    DEVICE void start_s(float (&s)[BLOCK_M / 2], int step) const {
        wait_for_q(step);
        start_scores<WIDTH, BLOCK_M>(s, k, shared + K_OFFSET, q(step));
    }

    // S^T becomes P^T = exp2(S^T * scale - lse).
    DEVICE void probabilities(float (&s)[BLOCK_M / 2], int step) const {
#pragma unroll
        for (int i = 0; i < BLOCK_M / 8; i++) {
            const float2 lse = row_pair(step % Q_STAGES, i);
            s[4 * i] = exp2_approx(fmaf(s[4 * i], sizes.scale_log2, -lse.x));
            s[4 * i + 1] = exp2_approx(fmaf(s[4 * i + 1], sizes.scale_log2, -lse.y));
            s[4 * i + 2] = exp2_approx(fmaf(s[4 * i + 2], sizes.scale_log2, -lse.x));
            s[4 * i + 3] = exp2_approx(fmaf(s[4 * i + 3], sizes.scale_log2, -lse.y));
        }
    }

    // Makes P^T 0 where a row of the block does not see a key.
    DEVICE void mask(float (&s)[BLOCK_M / 2], int block) const {
        const int first = own_key(tile);
        const int diagonal = block * BLOCK_M + sizes.diagonal;  // of the block's first row
        bool crosses = first + 64 > sizes.seqlen_k;
        if (CAUSAL) crosses |= diagonal < first + 63;
        if (WINDOWED) crosses |= diagonal + BLOCK_M - 1 >= first + sizes.window_keys;
        if (!crosses) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int key = first + 16 * warp + lane / 4 + 8 * half;
            // Rows from `seen` to before `end` see the key, counted from this lane's first one.
            const int first_row = key - diagonal - 2 * (lane % 4);
            int seen = CAUSAL ? first_row : 0;
            const int end = WINDOWED ? first_row + sizes.window_keys : BLOCK_M;
            if (key >= sizes.seqlen_k) seen = BLOCK_M;
#pragma unroll
            for (int i = 0; i < BLOCK_M / 4; i++) {
                const int of_row = i / 2 * 8 + i % 2;
                if (of_row < seen || of_row >= end) s[i / 2 * 4 + 2 * half + i % 2] = 0.0f;
            }
        }
    }

    // P^T of a step, of its finished S^T; hands it over.
    DEVICE void finish_p(float (&s)[BLOCK_M / 2], int step, int block) const {
        wgmma_fence_operand(s);
        probabilities(s, step);
        mask(s, block);
        const int stage = step % P_STAGES;
        mbarrier_wait(barriers().p_empty(stage), (step / P_STAGES & 1) ^ 1);
#pragma unroll
        for (int i = 0; i < BLOCK_M / (P_FP16 ? 16 : 8); i++) {
            if constexpr (P_FP16) {
                float words[4];
                for (int j = 0; j < 4; j++)
                    words[j] = __uint_as_float(
                        cvt_16bit_x2<false>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]));
                st_shared_v4(handed(step, i), words);
            } else {
                st_shared_v4(handed(step, i), s + 4 * i);
            }
        }
        arrive_warp(barriers().p_full(stage), lane);
        release_q(step);  // lse has been read, too
    }

    DEVICE void start_dv(int step) {
        wait_for_do(step);
        start_sum<false, WIDTH_V, BLOCK_M>(dv, p16, dout(step));
    }
    DEVICE void finish_dv(int step) {
        wgmma_wait<0>();
        wgmma_fence_operand(p16);
        release_do(step);
    }

    DEVICE void run(const TensorMap* dv_map) {
#pragma unroll
        for (int i = 0; i < WIDTH_V / 2; i++) dv[i] = 0.0f;
        load_own(k, shared + K_OFFSET, WARPGROUP);
        float s[BLOCK_M / 2];
        start_s(s, steps);
        if (PERSISTENT && tiles > 0) release_sum(shared, WARPGROUP, lane, warp);
        wgmma_wait<0>();
        int block = tile.first_block;
        finish_p(s, steps, block);
        to_operand<BLOCK_M>(p16, s);
        const int last = end() - 1;
        for (int step = steps; step < last; step++) {
            if (++block == tile.end_block) block = tile.first_block;  // of the next query head
            start_s(s, step + 1);
            start_dv(step);
            wgmma_wait<1>();
            finish_p(s, step + 1, block);
            finish_dv(step);
            to_operand<BLOCK_M>(p16, s);
        }
        start_dv(last);
        finish_dv(last);
        wgmma_fence_operand(dv);
        write<WIDTH_V>(dv, P_DOWN, shared + K_OFFSET, dv_map, CHUNKS_V, WARPGROUP);
    }
};

// Warpgroup 1: dK.
struct KeysConsumer : KeyConsumer {
    static constexpr int WARPGROUP = 1;
    float dk[WIDTH / 2];
    u32 ds16[BLOCK_M / 4];
    LeftOperand<V_IN_REGISTERS> v;

    DEVICE void start_dp(float (&dp)[BLOCK_M / 2], int step) const {
        wait_for_do(step);
        start_scores<WIDTH_V, BLOCK_M>(dp, v, shared + V_OFFSET, dout(step));
    }

    // Takes P^T of elements 4 i to 4 i + 7 of an accumulator.
    DEVICE void take_p(float (&p)[8], int step, int i) const {
        if constexpr (P_FP16) {
            const uint4 both = ld_shared_v4_u32(handed(step, i / 2));
            const u32 words[4] = {both.x, both.y, both.z, both.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 x = widened_fp16(words[j]);
                p[2 * j] = x.x, p[2 * j + 1] = x.y;
            }
        } else {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float4 x = ld_shared_v4_f32(handed(step, i + j));
                p[4 * j] = x.x, p[4 * j + 1] = x.y, p[4 * j + 2] = x.z, p[4 * j + 3] = x.w;
            }
        }
    }

    // dP^T of a step, which is finished, becomes dS^T = P^T * (dP^T - delta).
    DEVICE void finish_ds(float (&dp)[BLOCK_M / 2], int step) const {
        wgmma_fence_operand(dp);
        const int stage = step % P_STAGES, slot = Q_STAGES + step % DO_STAGES;
        mbarrier_wait(barriers().p_full(stage), step / P_STAGES & 1);
#pragma unroll
        for (int i = 0; i < BLOCK_M / 8; i += 2) {
            float p[8];
            take_p(p, step, i);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float2 pair = row_pair(slot, i + j / 4);
                const float delta = j % 2 ? pair.y : pair.x;
                float& x = dp[4 * i + j];
                x = p[j] * (P_FP16 ? fmaf(x, P_DOWN, -delta) : x - delta);
            }
        }
        arrive_warp(barriers().p_empty(stage), lane);
        release_do(step);
    }

    DEVICE void start_dk(int step) {
        wait_for_q(step);
        start_sum<false, WIDTH, BLOCK_M>(dk, ds16, q(step));
    }
    DEVICE void finish_dk(int step) {
        wgmma_fence_operand(ds16);
        release_q(step);
    }

    // dK of a step, and dS^T of the next one.
    DEVICE void add_and_advance(float (&dp)[BLOCK_M / 2], int step) {
        if (EARLY_DP) {
            start_dp(dp, step + 1);
            start_dk(step);
            wgmma_wait<1>();
            finish_ds(dp, step + 1);
            wgmma_wait<0>();
            finish_dk(step);
        } else {
            start_dk(step);
            start_dp(dp, step + 1);
            wgmma_wait<1>();
            finish_dk(step);
            wgmma_wait<0>();
            finish_ds(dp, step + 1);
        }
    }

    DEVICE void run(const TensorMap* dk_map) {
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) dk[i] = 0.0f;
        load_own(v, shared + V_OFFSET, WARPGROUP);
        float dp[BLOCK_M / 2];
        start_dp(dp, steps);
        if (PERSISTENT && tiles > 0) release_sum(shared, WARPGROUP, lane, warp);
        wgmma_wait<0>();
        finish_ds(dp, steps);
        to_operand<BLOCK_M>(ds16, dp);
        const int last = end() - 1;
        for (int step = steps; step < last; step++) {
            add_and_advance(dp, step);
            to_operand<BLOCK_M>(ds16, dp);
        }
        start_dk(last);
        wgmma_wait<0>();
        finish_dk(last);
        wgmma_fence_operand(dk);
        write<WIDTH>(dk, sizes.scale, shared + V_OFFSET, dk_map, CHUNKS, WARPGROUP);
    }
};

// What a thread of a consumer warpgroup does.
template <class CONSUMER>
DEVICE void consume(const Sizes& sizes, const int* table, u32 shared, const TensorMap* map,
                    int lane, int warp) {
    int steps = 0;
    for_tiles<ALL_LANES>(table, [&](int number, int tiles) {
        const KeyTile tile = key_tile(sizes, number);
        CONSUMER{{sizes, tile, shared, lane, warp, tiles, steps}}.run(map);
        steps += tile.blocks() * sizes.group();
    });
    if (PERSISTENT)
        release_sum(shared, CONSUMER::WARPGROUP, lane, warp);
    else if (warp + lane == 0)
        tma_store_wait();
}
