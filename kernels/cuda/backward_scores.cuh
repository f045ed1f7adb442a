// The scores of a step in the attention backward: P^T and dS^T of 64 keys and a block of rows.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

// One thread's part of the scores of a consumer warpgroup, which owns 64 keys of a tile. Accumulators lie
// in registers as WGMMA leaves them (see wgmma.cuh): S^T and dP^T have keys as rows.
struct Scores {
    const Sizes& sizes;
    const Tile& tile;
    const Done& done;
    u32 shared;
    int warpgroup, lane, warp;

    u32 p16[BLOCK_M / 4], ds16[BLOCK_M / 4];  // P^T and dS^T of a step, in the dtype
    u32 k16[K_IN_REGISTERS ? WIDTH / 4 : 1];  // the warpgroup's keys

    DEVICE Barriers barriers() const { return {shared + BARRIERS_OFFSET}; }
    DEVICE void arrive(u32 barrier) const { arrive_warp(barrier, lane); }
    DEVICE u32 k_place() const { return K_OFFSET + done.k_stage() * K_BYTES; }
    DEVICE u32 q_stage(int of_step) const { return Q_OFFSET + of_step % Q_STAGES * Q_BYTES; }
    DEVICE u32 do_stage(int of_step) const { return DO_OFFSET + of_step % DO_STAGES * DO_BYTES; }

    DEVICE void load_k() {
        const u32 keys = shared + k_place() + warpgroup * 64 * ROW_BYTES;
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++)
            ldmatrix_x4(k16 + 4 * k,
                        swizzled_address(keys + k / 4 * KEYS_CHUNK, 16 * warp + lane % 16,
                                         k % 4 * 2 + lane / 16));
    }

    // S^T of a step = K @ Q^T, of the warpgroup's 64 keys.
    DEVICE void start_scores(float (&s)[BLOCK_M / 2], int step) {
        mbarrier_wait(barriers().q_full(step % Q_STAGES), step / Q_STAGES & 1);
        if constexpr (K_IN_REGISTERS) {
            const u64 b = rows_descriptor(shared + q_stage(step));
            wgmma_fence_operand(s);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < WIDTH / 16; k++)
                WgmmaByColumns<BLOCK_M>::rs(s, k16 + 4 * k,
                                            b + further(k / 4 * Q_CHUNK + k % 4 * 32), k > 0);
            add_row_terms(s, lse_of(step));
            wgmma_commit();
        } else {
            start_transposed(s, k_place(), q_stage(step), lse_of(step));
        }
    }

    // With FOLD_ROW_TERMS: adds the terms of rows to products, by a product with ones for their three
    // parts. So nothing is loaded or subtracted afterwards.
    DEVICE void add_row_terms(float (&d)[BLOCK_M / 2], u32 terms) const {
        if constexpr (FOLD_ROW_TERMS)
            Wgmma<BLOCK_M>::template ss<0>(d, ones_descriptor(shared + ONES_OFFSET),
                                           row_terms_descriptor(shared + terms), 1);
    }

    // d = keys @ rows^T: the warpgroup's 64 keys of K or V, and a block of Q or dO with its terms.
    DEVICE void start_transposed(float (&d)[BLOCK_M / 2], u32 keys, u32 rows, u32 terms) const {
        const u64 a = rows_descriptor(shared + keys + warpgroup * 64 * ROW_BYTES);
        const u64 b = rows_descriptor(shared + rows);
        wgmma_fence_operand(d);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++)
            Wgmma<BLOCK_M>::template ss<0>(d, a + further(k / 4 * KEYS_CHUNK + k % 4 * 32),
                                           b + further(k / 4 * Q_CHUNK + k % 4 * 32), k > 0);
        add_row_terms(d, terms);
        wgmma_commit();
    }

    DEVICE void start_dp(float (&dp)[BLOCK_M / 2], int step) const {
        mbarrier_wait(barriers().do_full(step % DO_STAGES), step / DO_STAGES & 1);
        start_transposed(dp, V_OFFSET, do_stage(step), delta_of(step));
    }
    // P^T of a step, whose S^T is finished and whose block begins with a row.
    DEVICE void finish_probabilities(float (&s)[BLOCK_M / 2], int step, int row) const {
        wgmma_fence_operand(s);
        probabilities(s, step);
        if (CAUSAL || RAGGED) mask(s, row);
    }
    // dS^T of a step, of its P^T and of dP^T, which has been started.
    DEVICE void finish_ds(float (&p)[BLOCK_M / 2], float (&dp)[BLOCK_M / 2], int step) {
        wgmma_wait<0>();
        wgmma_fence_operand(dp);
        convert(p, dp, step);
        store_ds(step);
    }

    // Whether no row of a block, which begins with `row`, sees a key of this warpgroup. With 64 rows that is
    // so for one warpgroup at the diagonal, with which most tiles begin, but not with HEADS_INSIDE or where
    // DETERMINISTIC CTAs of smaller keys add first. Only a first step is asked: in others it is not worth a
    // branch.
    static constexpr bool CAN_SKIP = CAUSAL && BLOCK_M <= 64;
    DEVICE bool sees_nothing(int row) const {
        return row + BLOCK_M - 1 + tile.diagonal < tile.key + 64 * warpgroup;
    }
    // P^T and dS^T of such a first step are 0. Its products read Q and dO all the same.
    DEVICE void skip_scores(int step) {
        mbarrier_wait(barriers().q_full(step % Q_STAGES), step / Q_STAGES & 1);
        mbarrier_wait(barriers().v(), done.tiles & 1);
        mbarrier_wait(barriers().do_full(step % DO_STAGES), step / DO_STAGES & 1);
#pragma unroll
        for (int i = 0; i < BLOCK_M / 4; i++) p16[i] = ds16[i] = 0;
        store_ds(step);
    }

    // Numbers of this thread's columns of S^T: of rows 8 i + 2 (lane % 4) and the next.
    DEVICE float2 row_pair(u32 numbers, int i) const {
        return ld_shared_v2_f32(shared + numbers + 4 * (8 * i + 2 * (lane % 4)));
    }
    DEVICE u32 lse_of(int of_step) const { return LSE_OFFSET + of_step % Q_STAGES * LSE_BYTES; }
    DEVICE u32 delta_of(int of_step) const {
        return DELTA_OFFSET + of_step % DO_STAGES * DELTA_BYTES;
    }

    // S^T becomes P^T = exp2(S^T * scale - lse), or exp2(S^T * scale).
    DEVICE void probabilities(float (&s)[BLOCK_M / 2], int step) const {
#pragma unroll
        for (int i = 0; i < BLOCK_M / 8; i++) {
            if (FOLD_ROW_TERMS) {
                for (int j = 4 * i; j < 4 * i + 4; j++)
                    s[j] = exp2_approx(s[j] * sizes.scale_log2);
                continue;
            }
            const float2 lse = row_pair(lse_of(step), i);
            s[4 * i] = exp2_approx(fmaf(s[4 * i], sizes.scale_log2, -lse.x));
            s[4 * i + 1] = exp2_approx(fmaf(s[4 * i + 1], sizes.scale_log2, -lse.y));
            s[4 * i + 2] = exp2_approx(fmaf(s[4 * i + 2], sizes.scale_log2, -lse.x));
            s[4 * i + 3] = exp2_approx(fmaf(s[4 * i + 3], sizes.scale_log2, -lse.y));
        }
    }

    // Makes P^T 0 where a row does not see a key.
    DEVICE void mask(float (&s)[BLOCK_M / 2], int row) const {
        const int first = tile.key + 64 * warpgroup;
        const int diagonal = row + tile.diagonal;  // of the block's first row
        bool crosses = RAGGED && first + 64 > tile.seqlen_k;
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
            if (key >= tile.seqlen_k) seen = BLOCK_M;
#pragma unroll
            for (int i = 0; i < BLOCK_M / 4; i++) {
                const int of_row = i / 2 * 8 + i % 2;
                if (of_row < seen || of_row >= end) s[i / 2 * 4 + 2 * half + i % 2] = 0.0f;
            }
        }
    }

    // Converts P^T and dS^T = P^T * (dP^T - delta) to the dtype.
    DEVICE void convert(const float (&s)[BLOCK_M / 2], const float (&dp)[BLOCK_M / 2], int step) {
#pragma unroll
        for (int i = 0; i < BLOCK_M / 8; i++) {
            const float2 delta = FOLD_ROW_TERMS ? float2{0.0f, 0.0f} : row_pair(delta_of(step), i);
            const float *p = s + 4 * i, *x = dp + 4 * i;
            ds16[2 * i] = cvt_16bit_x2<IS_BF16>(p[0] * (x[0] - delta.x), p[1] * (x[1] - delta.y));
            ds16[2 * i + 1] =
                cvt_16bit_x2<IS_BF16>(p[2] * (x[2] - delta.x), p[3] * (x[3] - delta.y));
            p16[2 * i] = cvt_16bit_x2<IS_BF16>(p[0], p[1]);
            p16[2 * i + 1] = cvt_16bit_x2<IS_BF16>(p[2], p[3]);
        }
    }

    // Stores dS, (BLOCK_M, 64 keys), for the dQ of all warpgroups. `hand_over_ds` follows as late as
    // possible, in no turn: its fence waits until all stores are done.
    DEVICE void store_ds(int step) const {
        const int stage = step % DS_STAGES;
        mbarrier_wait(barriers().ds_empty(stage), (step / DS_STAGES & 1) ^ 1);
        const u32 to =
            swizzled_address(shared + DS_OFFSET + stage * DS_BYTES + warpgroup * Q_CHUNK,
                             lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
#pragma unroll
        for (int i = 0; i < BLOCK_M / 16; i++)
            stmatrix_x4_trans(to + i * 16 * ROW_BYTES, ds16[4 * i], ds16[4 * i + 1],
                              ds16[4 * i + 2], ds16[4 * i + 3]);
    }
};
