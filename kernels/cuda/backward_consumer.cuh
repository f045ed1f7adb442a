// A consumer warpgroup of the attention backward: 64 keys of a tile.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

DEVICE void store_rows(const TensorMap* map, u32 from, int column, int row, int head,
                       const Rows& of) {
    if (VARLEN)
        tma_store_packed(map, from, column, row, head, of);
    else
        tma_store(map, from, column, row, head, of.batch);
}

// Where dK and dV go: to tensors or, with GROUP_SPLITS, to memory for the sums of each CTA.
struct KeyGradients {
    const TensorMap *dk, *dv;
    float* sums;
};

// One thread's part of a consumer warpgroup. dK and dV have keys as rows, dQ^T has columns of dQ.
struct Consumer : Scores {
    float dk[WIDTH / 2], dv[WIDTH / 2];

    DEVICE DqProduct dq_product() const { return {shared, warpgroup, lane, warp, done.tiles}; }
    // Whether a step is the first one of its tile, and whether it computes the dQ of the one before.
    DEVICE bool is_first(int step) const { return step == done.steps; }
    DEVICE bool has_dq(int step) const { return DEFERS_DQ ? step > 0 : !is_first(step); }

    // d += a @ rows: a (64 keys, BLOCK_M) from registers, and a block of dO or Q.
    DEVICE void start_sum(float (&d)[WIDTH / 2], u32 (&a)[BLOCK_M / 4], u32 rows) {
        const u64 b = rows_descriptor(shared + rows, Q_CHUNK);
        wgmma_fence_operand(d);
        wgmma_fence_operand(a);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BLOCK_M / 16; k++)
            Wgmma<WIDTH>::template rs<1>(d, a + 4 * k, b + further(k * 16 * ROW_BYTES));
        wgmma_commit();
    }

    // dQ of the step before, if there is one, of all warpgroups' dS.
    DEVICE void start_dq(float (&dq)[DQ_ROWS / 2], int step) const {
        const int before = step - 1, stage = u32(before) % DS_STAGES;
        if (has_dq(step)) mbarrier_wait(barriers().ds_full(stage), before / DS_STAGES & 1);
        dq_product().start(dq, before, k_stage_of_dq(step));
    }
    // K of the dQ of the step before a step.
    DEVICE int k_stage_of_dq(int step) const {
        return (done.tiles + (DEFERS_DQ && is_first(step))) % K_STAGES;
    }
    // dK += dS^T Q, with dQ of the step before stored in between: a warpgroup cannot start products far
    // ahead of the tensor cores, so that they would idle while it stores.
    DEVICE void start_dk_and_store(const float (&dq)[DQ_ROWS / 2], int step) {
        const u64 b = rows_descriptor(shared + q_stage(step), Q_CHUNK);
        const bool is_stored = has_dq(step);
        wgmma_fence_operand(dk);
        wgmma_fence_operand(ds16);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BLOCK_M / 16; k++) {
            Wgmma<WIDTH>::template rs<1>(dk, ds16 + 4 * k, b + further(k * 16 * ROW_BYTES));
            dq_product().store_some(dq, k, BLOCK_M / 16, is_stored);
        }
        wgmma_commit();
    }

    DEVICE void hand_over_ds(int step) const {
        fence_proxy_async();
        arrive(barriers().ds_full(step % DS_STAGES));
    }
    // dS of a step, and the dQ of the one before.
    DEVICE void hand_over(int step) const {
        hand_over_ds(step);
        if (has_dq(step)) arrive(barriers().dq_full(warpgroup));
    }
    // After the turn. With DETERMINISTIC others wait longer for dQ than the tensor cores for this fence,
    // so each is handed over as soon as it can be.
    DEVICE void hand_over_late(int step) const {
        if (!DETERMINISTIC)
            hand_over(step);
        else if (!DQ_FIRST && has_dq(step))
            dq_product().hand_over();
    }

    // PING_PONG: a warpgroup starts products only in its turn, and passes the turn on when it has
    // started the scores of the next step. So the other one has the tensor cores to itself while this
    // one computes probabilities (FlashAttention-3, section 3.1).
    // The numbers of barriers are immediate: one in a register would take that of an address for which
    // stores of dS still wait.
    DEVICE void wait_for_turn() const {
        if (!PING_PONG) return;
        if (warpgroup == 0) named_barrier_sync_at<FIRST_TURN>(128 * WARPGROUPS);
        if (warpgroup == 1) named_barrier_sync_at<FIRST_TURN + 1>(128 * WARPGROUPS);
    }
    DEVICE void pass_turn() const {
        if (!PING_PONG) return;
        if (warpgroup == 1) named_barrier_arrive_at<FIRST_TURN>(128 * WARPGROUPS);
        if (warpgroup == 0) named_barrier_arrive_at<FIRST_TURN + 1>(128 * WARPGROUPS);
    }

    // The last warpgroup gives the first turn of a tile, if it has not passed the last one on.
    DEVICE void give_first_turn() const {
        if (warpgroup == WARPGROUPS - 1 && (!DEFERS_DQ || done.tiles == 0)) pass_turn();
    }
    DEVICE void pass_last_turn() const {
        if (warpgroup < WARPGROUPS - 1 || DEFERS_DQ) pass_turn();
    }

    // P^T and dS^T of a step, whose block begins with a row and whose S^T has been started.
    DEVICE void scores(float (&s)[BLOCK_M / 2], int step, int row) {
        float dp[BLOCK_M / 2];
        start_dp(dp, step);
        if (!is_first(step)) pass_turn();
        if (!is_first(step)) hand_over_late(step - 1);  // the last step of a tile does so itself
        wgmma_wait<1>();
        finish_probabilities(s, step, row);
        finish_ds(s, dp, step);
    }

    // What a step adds to dV and dK, the dQ of the step before, and the start of the next one's S^T.
    // The first step multiplies a dQ, too, of which nothing is used: the compiler is to see no branch
    // between products (C7512).
    DEVICE void products(float (&next)[BLOCK_M / 2], int step, bool is_last) {
        if (DQ_FIRST)
            products_after_dq(next, step, is_last);
        else
            products_after_dv(next, step, is_last);
    }
    // dQ is the first product, and is stored while the others are multiplied.
    DEVICE void products_after_dq(float (&next)[BLOCK_M / 2], int step, bool is_last) {
        float dq[DQ_ROWS / 2];
        wait_for_turn();
        start_dq(dq, step);
        start_sum(dv, p16, do_stage(step));
        wgmma_wait<1>();
        wgmma_fence_operand(dq);
        if (has_dq(step)) free_ds(step - 1), dq_product().wait_for_buffer(step - 1);
        start_dk_and_store(dq, step);
        if (is_last) pass_last_turn();
        if (is_last || DETERMINISTIC) hand_over(step);
        wgmma_wait<1>();
        free_do(step);
        finish_dk(next, step, is_last);
    }
    // dV is the first product. S^T of the next step starts in the registers of P^T, if it is early, and
    // dQ is stored while S^T is multiplied.
    DEVICE void products_after_dv(float (&next)[BLOCK_M / 2], int step, bool is_last) {
        float dq[DQ_ROWS / 2];
        wait_for_turn();
        start_sum(dv, p16, do_stage(step));
        start_dq(dq, step);
        start_sum(dk, ds16, q_stage(step));
        if (is_last) pass_last_turn();
        if (is_last || DETERMINISTIC) hand_over_ds(step);
        if (EARLY_SCORES && !is_last) {
            wgmma_wait<2>();
            free_do(step);
            start_scores(next, step + 1);
            wgmma_wait<2>();
        } else {
            wgmma_wait<1>();
            free_do(step);
        }
        wgmma_fence_operand(dq);
        if (has_dq(step)) {
            free_ds(step - 1);
            dq_product().store(dq, step - 1);
            if (is_last) dq_product().hand_over();
        }
        finish_dk(next, step, is_last);
    }
    // Waits for dK, and starts S^T of the next step, which has started with EARLY_SCORES.
    DEVICE void finish_dk(float (&next)[BLOCK_M / 2], int step, bool is_last) {
        const bool starts_early = EARLY_SCORES && !is_last;
        if (starts_early && DQ_FIRST) start_scores(next, step + 1);
        if (starts_early)
            wgmma_wait<1>();
        else
            wgmma_wait<0>();
        free_q(step);
        if (!starts_early && !is_last) start_scores(next, step + 1);
    }
    // The dQ of a step is finished, which reads dS and, last in a tile, K.
    DEVICE void free_ds(int of_step) const {
        arrive(barriers().ds_empty(of_step % DS_STAGES));
        if (DEFERS_DQ && is_first(of_step + 1))
            arrive(barriers().k_empty(k_stage_of_dq(of_step + 1)));
    }
    // dV of a step is finished.
    DEVICE void free_do(int step) {
        wgmma_fence_operand(p16);
        arrive(barriers().do_empty(step % DO_STAGES));
    }
    // dK of a step is finished.
    DEVICE void free_q(int step) {
        wgmma_fence_operand(ds16);
        arrive(barriers().q_empty(step % Q_STAGES));
    }

    // With DQ_WARPGROUP: what a step adds to dV and dK, and P^T and dS^T of the next one, whose block
    // begins with a row. Without dQ there are registers for the next S^T beside P^T and dS^T, so its
    // exponentials are computed while dV and dK are multiplied.
    DEVICE void products_and_scores(int step, int row) {
        float next[BLOCK_M / 2], dp[BLOCK_M / 2];
        wait_for_turn();
        start_scores(next, step + 1);
        start_sum(dv, p16, do_stage(step));
        start_sum(dk, ds16, q_stage(step));
        pass_turn();
        hand_over_ds(step);
        wgmma_wait<2>();
        finish_probabilities(next, step + 1, row);
        wgmma_wait<1>();
        free_do(step);
        wgmma_wait<0>();
        free_q(step);
        start_dp(dp, step + 1);
        finish_ds(next, dp, step + 1);
    }
    // What the last step adds to dV and dK.
    DEVICE void last_products(int step) {
        wait_for_turn();
        start_sum(dv, p16, do_stage(step));
        start_sum(dk, ds16, q_stage(step));
        pass_last_turn();
        hand_over_ds(step);
        wgmma_wait<0>();
        free_do(step);
        free_q(step);
    }

    // Puts a gradient of the keys, times `factor`, into a buffer.
    template <int CHUNK_BYTES>
    DEVICE void put(const float (&x)[WIDTH / 2], float factor, u32 to) const {
        const int row = 16 * warp + lane % 16;
#pragma unroll
        for (int column = 0; column < WIDTH; column += 16) {
            const float* y = x + column / 2;
            stmatrix_x4(swizzled_address(to + column / 64 * CHUNK_BYTES, row,
                                         column % 64 / 8 + lane / 16),
                        cvt_16bit_x2<IS_BF16>(y[0] * factor, y[1] * factor),
                        cvt_16bit_x2<IS_BF16>(y[2] * factor, y[3] * factor),
                        cvt_16bit_x2<IS_BF16>(y[4] * factor, y[5] * factor),
                        cvt_16bit_x2<IS_BF16>(y[6] * factor, y[7] * factor));
        }
        fence_proxy_async();
        named_barrier_sync(1 + warpgroup, 128);
    }
    // Starts the copy of a gradient from a buffer to memory. One thread calls it.
    template <int CHUNK_BYTES>
    DEVICE void send(u32 from, const TensorMap* map) const {
        for (int i = 0; i < CHUNKS; i++)
            store_rows(map, from + i * CHUNK_BYTES, 64 * i, tile.key + 64 * warpgroup,
                       tile.head_kv, tile.keys);
        tma_store_commit();
    }

    // With GROUP_SPLITS: stores dK (which = 0) or dV (1) of this CTA's query heads. Four numbers of a
    // thread are adjacent, so that a warp writes 512 bytes at once.
    DEVICE void store_sums(const float (&x)[WIDTH / 2], float* sums, int which) const {
        const long long number = (long long)tile.head_kv * sizes.key_tiles + tile.key_tile;
        float4* to = (float4*)(sums + ((2 * number + which) * WARPGROUPS + warpgroup) *
                                          KEY_SUM_FLOATS);
#pragma unroll
        for (int i = 0; i < WIDTH / 8; i++)
            to[i * 128 + 32 * warp + lane] = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
    }

    // dQ of the last step before `end`, if no later step computes it.
    DEVICE void start_last_dq(float (&dq)[DQ_ROWS / 2], int end, int k_stage) const {
        const int last = end - 1;
        mbarrier_wait(barriers().ds_full(last % DS_STAGES), last / DS_STAGES & 1);
        dq_product().start(dq, last, k_stage);
    }
    DEVICE void finish_last_dq(float (&dq)[DQ_ROWS / 2], int end) const {
        wgmma_wait<0>();
        wgmma_fence_operand(dq);
        if (PERSISTENT && !DEFERS_DQ) {
            arrive(barriers().ds_empty((end - 1) % DS_STAGES));
            arrive(barriers().k_empty(done.k_stage()));
        }
        dq_product().store(dq, end - 1);
        dq_product().hand_over();
    }

    // Writes dV and dK, and the last dQ where none is deferred. dV goes to the warpgroup's V, which is not
    // read any more, and dK to the buffer of dQ.
    DEVICE void finish(int end, const KeyGradients& to) const {
        const bool is_sender = warp + lane == 0;
        const bool has_last_dq = !DQ_WARPGROUP && !DEFERS_DQ && tile.is_seen();
        const u32 at_v = shared + V_OFFSET + warpgroup * 64 * ROW_BYTES;
        const u32 at_dq = shared + DQ_OFFSET + warpgroup * DQ_BYTES;
        float dq[DQ_ROWS / 2];
        if (has_last_dq) start_last_dq(dq, end, done.k_stage());
        if (GROUP_SPLITS > 1) {
            store_sums(dv, to.sums, 1);
        } else {
            put<KEYS_CHUNK>(dv, 1.0f, at_v);
            if (is_sender) send<KEYS_CHUNK>(at_v, to.dv);
        }
        if (has_last_dq)
            finish_last_dq(dq, end);
        else if (PERSISTENT && !DEFERS_DQ)
            arrive(barriers().k_empty(done.k_stage()));
        if (!DQ_WARPGROUP)
            dq_product().wait_for_buffer(DEFERS_DQ ? end - 1 : end);
        else if (PERSISTENT || tile.is_seen())
            named_barrier_sync(DQ_IS_ADDED, 128 * (WARPGROUPS + 1));
        if (GROUP_SPLITS > 1) {
            store_sums(dk, to.sums, 0);
            named_barrier_sync(1 + warpgroup, 128);  // no warp reads V any more
        } else {
            put<64 * ROW_BYTES>(dk, sizes.scale, at_dq);
        }
        if (!is_sender) return;
        if (PERSISTENT) {
            tma_store_wait();
            mbarrier_arrive(barriers().v_empty());
        }
        if (GROUP_SPLITS == 1) send<64 * ROW_BYTES>(at_dq, to.dk);
    }
    // PERSISTENT: waits until TMA has read dK of the tile before.
    DEVICE void free_dq_buffer() const {
        if (!PERSISTENT || done.tiles == 0 || warp + lane > 0) return;
        tma_store_wait();
        mbarrier_arrive(barriers().dq_empty(warpgroup));
    }

    DEVICE void run(const KeyGradients& to) {
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) dk[i] = dv[i] = 0.0f;
        const int end = done.steps + tile.blocks() * sizes.group();
        if (PERSISTENT || tile.is_seen())
            mbarrier_wait(barriers().k(done.k_stage()), done.k_phase());
        if (tile.is_seen()) {
            add_steps(end);
        } else {
            if (PERSISTENT) mbarrier_wait(barriers().v(), done.tiles & 1);
            free_dq_buffer();
        }
        finish(end, to);
    }

    // What all steps before `end` add to dK and dV.
    DEVICE void add_steps(int end) {
        int block = tile.begin, heads_left = sizes.group();  // of this block
        give_first_turn();
        if (K_IN_REGISTERS) load_k();
        float s[BLOCK_M / 2];
        if (CAN_SKIP && sees_nothing(block * BLOCK_M)) {
            skip_scores(done.steps);
        } else {
            start_scores(s, done.steps);
            mbarrier_wait(barriers().v(), done.tiles & 1);
            scores(s, done.steps, block * BLOCK_M);
        }
        free_dq_buffer();
        for (int step = done.steps; step < end - 1; step++) {
            if (!(DETERMINISTIC || HEADS_INSIDE) || --heads_left == 0)
                block = tile.next(block), heads_left = sizes.group();
            if constexpr (DQ_WARPGROUP) {
                products_and_scores(step, block * BLOCK_M);
            } else {
                float next[BLOCK_M / 2];
                products(next, step, false);
                scores(next, step + 1, block * BLOCK_M);
            }
        }
        if constexpr (DQ_WARPGROUP)
            last_products(end - 1);
        else
            products(s, end - 1, true);
        wgmma_fence_operand(dk);
        wgmma_fence_operand(dv);
    }
};

// What a thread of a consumer warpgroup does.
DEVICE void consume(const Sizes& sizes, u32 shared, const KeyGradients& to, int warpgroup,
                    int lane, int warp) {
    const Done done = for_tiles<ALL_LANES>(
        sizes,
        [&](const Tile& tile, const Done& done) {
            const u32 own = PERSISTENT ? same<ALL_LANES>(shared) : shared;
            Consumer{{sizes, tile, done, own, warpgroup, lane, warp}}.run(to);
        },
        [&](int taken) { return next_place<ALL_LANES>({shared + BARRIERS_OFFSET}, taken); });
    if (TAKES_FIRST_TILE && done.tiles == 0) return;  // it had no tile with keys
    if constexpr (DEFERS_DQ) {
        // The dQ of the very last step, and the turn that the last warpgroup has passed on.
        const Consumer last{{sizes, {}, done, shared, warpgroup, lane, warp}};
        if (warpgroup == 0) last.wait_for_turn();
        last.free_dq_buffer();
        float dq[DQ_ROWS / 2];
        last.start_last_dq(dq, done.steps, (done.tiles + 1) % K_STAGES);
        last.finish_last_dq(dq, done.steps);
    }
    if (warp + lane == 0) tma_store_wait();
}
