// The key pass of the two-pass attention backward: dK and dV of 64 keys, by two warpgroups.
//
// Included by attention_bwd_two_pass_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

// ---------------------------------------------------------------------------------- shared memory

// Shared memory begins at a multiple of 1,024. The search space lays it out; offset, bytes of a slot
// and number of slots of each region are macros.
constexpr int BLOCK_CHUNK = BLOCK_M * ROW_BYTES;  // of Q or dO
constexpr int COPIED_ROWS = BLOCK_M / CLUSTER_SIZE;  // of a block, by each CTA of a cluster
static_assert(CLUSTER_SIZE == 1 || CLUSTER_SIZE == 2, "a cluster has one or two CTAs");
static_assert(BLOCK_M % 16 == 0, "WGMMA sums over 16 rows at a time");
// Of K and of V, the columns that are in registers.
constexpr int K_IN_REGISTERS = WIDTH * KV_IN_REGISTERS / 32 * 16;
constexpr int V_IN_REGISTERS = WIDTH_V * KV_IN_REGISTERS / 32 * 16;
static_assert(KV_IN_REGISTERS >= 0 && KV_IN_REGISTERS <= 2, "none, half or all");
static_assert(K_BYTES == CHUNKS * OWN_CHUNK && V_BYTES == K_BYTES && OUT_BYTES == K_BYTES,
              "dK leaves through V's memory, or both through that of sums");
static_assert(!PERSISTENT || KV_IN_REGISTERS == 2, "K and V of the next tile come early");
static_assert(Q_BYTES == CHUNKS * BLOCK_CHUNK && DO_BYTES == CHUNKS_V * BLOCK_CHUNK,
              "Q and dO have a block of rows");
static_assert(HANDED_BYTES == 64 * BLOCK_M * (P_FP16 ? 2 : 4), "P^T has 64 keys of a block");
static_assert(ROWS_BYTES == 4 * BLOCK_M && ROWS_OFFSET % 16 == 0, "a slot has a number a row");
static_assert(K_SLOTS == 1 && V_SLOTS == 1 && Q_SLOTS == Q_STAGES && DO_SLOTS == DO_STAGES &&
                  HANDED_SLOTS == P_STAGES && ROWS_SLOTS == Q_STAGES + DO_STAGES &&
                  OUT_SLOTS == PERSISTENT,
              "each stage has a slot");
static_assert((K_OFFSET | K_BYTES | V_OFFSET | V_BYTES | Q_OFFSET | Q_BYTES | DO_OFFSET | DO_BYTES |
               HANDED_OFFSET | HANDED_BYTES | OUT_OFFSET | OUT_BYTES) %
                      1024 ==
                  0,
              "a swizzle begins anew with every 8 rows");

// The mbarriers. Use i of a buffer with n stages is of stage i % n, in phase i / n.
//
//     barrier      arrivals of a phase                                    who waits
//     K, V full    the producer, and the bytes                            warpgroup 0; 1
//     Q full       the producer, and the bytes of a block with its lse    consumers
//     dO full      the producer, and the bytes of a block with its delta  consumers
//     Q, dO empty  4 warps of each warpgroup of all CTAs of the cluster   the producers
//     P full       4 warps of warpgroup 0 that have stored it             warpgroup 1
//     P empty      4 warps of warpgroup 1 that have loaded it             warpgroup 0
//
// With PERSISTENT there are also:
//
//     K, V empty   4 warps of warpgroup 0; 1 that have them in registers  the producer
//     dV, dK read  a thread of warpgroup 0; 1, when TMA has read it       warpgroup 1; 0
struct Barriers {
    u32 base;
    static constexpr int OF_TILE = 6, COUNT = OF_TILE + 2 * (Q_STAGES + DO_STAGES + P_STAGES);

    // Of K and V, or of dV and dK: of what a warpgroup loads and stores.
    DEVICE u32 own_full(int warpgroup) const { return base + 8 * warpgroup; }
    DEVICE u32 own_empty(int warpgroup) const { return base + 8 * (2 + warpgroup); }
    DEVICE u32 sum_read(int warpgroup) const { return base + 8 * (4 + warpgroup); }
    DEVICE u32 q_full(int stage) const { return base + 8 * (OF_TILE + stage); }
    DEVICE u32 q_empty(int stage) const { return q_full(Q_STAGES + stage); }
    DEVICE u32 do_full(int stage) const { return q_full(2 * Q_STAGES + stage); }
    DEVICE u32 do_empty(int stage) const { return do_full(DO_STAGES + stage); }
    DEVICE u32 p_full(int stage) const { return do_full(2 * DO_STAGES + stage); }
    DEVICE u32 p_empty(int stage) const { return p_full(P_STAGES + stage); }

    DEVICE void init() const {
        for (int warpgroup = 0; warpgroup < WARPGROUPS; warpgroup++) {
            mbarrier_init(own_full(warpgroup), 1);
            mbarrier_init(own_empty(warpgroup), 4);
            mbarrier_init(sum_read(warpgroup), 1);
        }
        for (int stage = 0; stage < Q_STAGES; stage++) {
            mbarrier_init(q_full(stage), 1);
            mbarrier_init(q_empty(stage), 4 * WARPGROUPS * CLUSTER_SIZE);
        }
        for (int stage = 0; stage < DO_STAGES; stage++) {
            mbarrier_init(do_full(stage), 1);
            mbarrier_init(do_empty(stage), 4 * WARPGROUPS * CLUSTER_SIZE);
        }
        for (int stage = 0; stage < P_STAGES; stage++) {
            mbarrier_init(p_full(stage), 4);
            mbarrier_init(p_empty(stage), 4);
        }
    }
};
static_assert(BARRIERS_OFFSET % 8 == 0 && BARRIERS_BYTES == 8 && BARRIERS_SLOTS == Barriers::COUNT,
              "each barrier has a slot");

DEVICE int cluster_rank() { return blockIdx.x % CLUSTER_SIZE; }
// The first key of this CTA.
DEVICE int own_key(const KeyTile& tile) { return tile.key + 64 * cluster_rank(); }

DEVICE float2 widened_fp16(u32 word) {
    float2 x;
    asm("{ .reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high; }"
        : "=f"(x.x), "=f"(x.y)
        : "r"(word));
    return x;
}

// ------------------------------------------------------------------------------------- consumers

// One thread's part of either consumer warpgroup. Accumulators lie in registers as WGMMA leaves them
// (see wgmma.cuh): S^T, dP^T, dK and dV have keys as rows.
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

    // A stage is released to the producers of all CTAs of the cluster, which all write to it.
    DEVICE void release(u32 barrier) const {
        __syncwarp();
        if (CLUSTER_SIZE == 1 && lane == 0) mbarrier_arrive(barrier);
        if (CLUSTER_SIZE > 1 && lane < CLUSTER_SIZE) mbarrier_arrive_cluster(barrier, lane);
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

    // Waits for K or V of the warpgroup, and loads its part of it. PERSISTENT: then the next one comes.
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
        release_q(step);  // lse has been read, too
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

// -------------------------------------------------------------------------------------- producer

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

// The producer's part of one tile: K, Q of the first step, V, and then all else in the order of use.
struct Producer {
    const InputMaps& maps;
    const float *lse_log2, *delta;
    const Sizes& sizes;
    u32 shared;

    DEVICE Barriers barriers() const { return {shared + BARRIERS_OFFSET}; }

    // Copies a block of Q with its lse. `first` is the number of its first row in the memory of lse.
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
}
