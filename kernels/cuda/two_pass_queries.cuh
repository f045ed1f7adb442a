// The query pass of the two-pass attention backward: dQ, delta and lse in powers of two.
//
// Included by attention_bwd_two_pass_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

#include "cuda/row_dots.cuh"

// ---------------------------------------------------------------------------------- shared memory

constexpr int KV_CHUNK = BLOCK_N * ROW_BYTES;
constexpr int Q_BYTES = CHUNKS * OWN_CHUNK, DO_BYTES = CHUNKS_V * OWN_CHUNK;  // of a warpgroup
constexpr int K_BYTES = CHUNKS * KV_CHUNK, V_BYTES = CHUNKS_V * KV_CHUNK;     // of a block
constexpr int Q_OFFSET = 0, DO_OFFSET = Q_OFFSET + WARPGROUPS * Q_BYTES;
constexpr int K_OFFSET = DO_OFFSET + WARPGROUPS * DO_BYTES;
constexpr int V_OFFSET = K_OFFSET + K_STAGES * K_BYTES;
constexpr int BARRIERS_OFFSET = V_OFFSET + V_STAGES * V_BYTES;

// The mbarriers. Use i of a buffer with n stages is of stage i % n, in phase i / n.
//
//     barrier      arrivals of a phase                                  who waits
//     Q, dO full   the producer, and the bytes of a warpgroup's rows    that warpgroup
//     rows empty   a thread of the warpgroup, when TMA has read dQ      the producer
//     K, V full    the producer, and the bytes of a block               consumers
//     K, V empty   4 warps of each warpgroup that have finished         the producer
struct Barriers {
    u32 base;
    static constexpr int OF_BLOCKS = 3 * WARPGROUPS;
    static constexpr int COUNT = OF_BLOCKS + 2 * (K_STAGES + V_STAGES);

    DEVICE u32 q_full(int warpgroup) const { return base + 8 * warpgroup; }
    DEVICE u32 do_full(int warpgroup) const { return q_full(WARPGROUPS + warpgroup); }
    DEVICE u32 rows_empty(int warpgroup) const { return q_full(2 * WARPGROUPS + warpgroup); }
    DEVICE u32 k_full(int stage) const { return base + 8 * (OF_BLOCKS + stage); }
    DEVICE u32 k_empty(int stage) const { return k_full(K_STAGES + stage); }
    DEVICE u32 v_full(int stage) const { return k_full(2 * K_STAGES + stage); }
    DEVICE u32 v_empty(int stage) const { return v_full(V_STAGES + stage); }

    DEVICE void init() const {
        for (int i = 0; i < OF_BLOCKS; i++) mbarrier_init(base + 8 * i, 1);
        for (int stage = 0; stage < K_STAGES; stage++) {
            mbarrier_init(k_full(stage), 1);
            mbarrier_init(k_empty(stage), 4 * WARPGROUPS);
        }
        for (int stage = 0; stage < V_STAGES; stage++) {
            mbarrier_init(v_full(stage), 1);
            mbarrier_init(v_empty(stage), 4 * WARPGROUPS);
        }
    }
};
static_assert(SMEM_BYTES == BARRIERS_OFFSET + 8 * Barriers::COUNT, "as the host side says");

// -------------------------------------------------------------------------------- sums of rows

// In elements; the elements of a row are contiguous.
struct Strides {
    long long batch, head, row;
};

struct RowSums {
    const unsigned short* out;
    const float *lse, *dlse;
    float *lse_log2, *delta;  // written for the key pass
    Strides out_strides, dlse_strides;
};

// What a lane keeps of its two rows of 64, which three other lanes share: see wgmma.cuh.
struct OwnRows {
    // Units of 16 bytes: those of a row, and those that a lane reads of it, as every fourth one is a
    // lane's. An even number, as odd rows swap them in pairs.
    static constexpr int UNITS = HEAD_DIM_V / 8, OF_LANE = (UNITS + 7) / 8 * 2;
    float lse[2], delta[2];
    uint4 out[2][OF_LANE];

    // The unit of load i. Odd rows take the pairs of loads in reverse, so that eight lanes read
    // from all banks.
    static DEVICE int unit(int i, int lane) { return 4 * (i ^ lane / 4 % 2) + lane % 4; }

    // Starts to load what is in memory; `first` is the first row of the warp.
    DEVICE void load(const RowSums& sums, const Sizes& sizes, const QueryTile& tile, int first,
                     int lane) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + lane / 4 + 8 * half;
            const bool exists = row < sizes.seqlen_q;
            const Strides &of_out = sums.out_strides, &of_dlse = sums.dlse_strides;
            const auto* from =
                sums.out + tile.batch * of_out.batch + tile.head * of_out.head + row * of_out.row;
#pragma unroll
            for (int i = 0; i < OF_LANE; i++) {
                out[half][i] = {0, 0, 0, 0};
                if (exists && unit(i, lane) < UNITS)
                    out[half][i] = *(const uint4*)(from + 8 * unit(i, lane));
            }
            const long long head = (long long)tile.batch * sizes.heads + tile.head;
            lse[half] = exists ? sums.lse[head * sizes.seqlen_q + row] : MINUS_INFINITY;
            delta[half] = exists ? sums.dlse[tile.batch * of_dlse.batch + tile.head * of_dlse.head +
                                             row * of_dlse.row]
                                 : 0.0f;
        }
    }

    // delta = rowsum(dout * out) - dlse, and lse in powers of two. Rows that see no key, and rows
    // beyond seqlen_q, get lse = inf, so that their probabilities are 0. `dout` are the warp's
    // rows.
    DEVICE void finish(u32 dout, int lane) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < OF_LANE; i++) {
                const int at = unit(i, lane);
                if (at < UNITS)
                    sum += dot(out[half][i],
                               ld_shared_v4_u32(swizzled_address(dout + at / 8 * OWN_CHUNK,
                                                                 lane / 4 + 8 * half, at % 8)));
            }
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const bool sees = lse[half] != MINUS_INFINITY;  // NaN stays NaN
            lse[half] = sees ? lse[half] * LOG2_E : -MINUS_INFINITY;
            delta[half] = sees ? sum - delta[half] : 0.0f;
        }
    }

    // Writes both for the key pass, whose blocks may end behind the last tile.
    DEVICE void write(const RowSums& sums, const Sizes& sizes, const QueryTile& tile, int first,
                      int lane) const {
        const long long to = ((long long)tile.batch * sizes.heads + tile.head) * sizes.rows;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + lane / 4 + 8 * half;
            if (lane % 4 != 0 || row >= sizes.rows) continue;
            sums.lse_log2[to + row] = lse[half] - P_SHIFT;
            sums.delta[to + row] = delta[half] * P_DOWN;
        }
        const int padding = first + TILE_ROWS + lane;  // each warp has 16 rows
        if (lane >= 16 || tile.row + TILE_ROWS < sizes.seqlen_q || padding >= sizes.rows) return;
        sums.lse_log2[to + padding] = -MINUS_INFINITY;
        sums.delta[to + padding] = 0.0f;
    }
};

// ------------------------------------------------------------------------------------- consumers

// One thread's part of a consumer warpgroup: 64 query rows of a tile.
struct QueryConsumer {
    const Sizes& sizes;
    const QueryTile& tile;
    u32 shared;
    int warpgroup, lane, warp;
    int tiles, blocks;  // that came before, of all tiles

    OwnRows rows;
    float dq[WIDTH / 2];

    DEVICE Barriers barriers() const { return {shared + BARRIERS_OFFSET}; }
    DEVICE int first_row() const { return tile.row + 64 * warpgroup; }
    DEVICE u32 q() const { return shared + Q_OFFSET + warpgroup * Q_BYTES; }
    DEVICE u32 dout() const { return shared + DO_OFFSET + warpgroup * DO_BYTES; }
    // The number of a block among all that the CTA goes through.
    DEVICE int number(int block) const { return blocks + tile.end_block - 1 - block; }

    // Starts S and dP of a block.
    DEVICE void start(float (&s)[BLOCK_N / 2], float (&dp)[BLOCK_N / 2], int use) const {
        const int k = use % K_STAGES, v = use % V_STAGES;
        mbarrier_wait(barriers().k_full(k), use / K_STAGES & 1);
        start_scores<WIDTH, BLOCK_N>(s, LeftOperand<0>{}, q(), shared + K_OFFSET + k * K_BYTES);
        mbarrier_wait(barriers().v_full(v), use / V_STAGES & 1);
        start_scores<WIDTH_V, BLOCK_N>(dp, LeftOperand<0>{}, dout(),
                                       shared + V_OFFSET + v * V_BYTES);
    }

    // S becomes P = exp2(S * scale - lse).
    DEVICE void probabilities(float (&s)[BLOCK_N / 2]) const {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++)
            s[i] = exp2_approx(fmaf(s[i], sizes.scale_log2, -rows.lse[i / 2 % 2]));
    }

    // Makes P 0 where a row does not see a key.
    DEVICE void mask(float (&s)[BLOCK_N / 2], int block) const {
        const int key = block * BLOCK_N, last = first_row() + sizes.diagonal;  // of the first row
        bool crosses = key + BLOCK_N > sizes.seqlen_k;
        if (CAUSAL) crosses |= last < key + BLOCK_N - 1;
        if (WINDOWED) crosses |= last + 63 - sizes.window_keys >= key;
        if (!crosses) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // Keys from `begin` to before `end`, counted from this lane's first one.
            const int own = key + 2 * (lane % 4), of_row = 16 * warp + lane / 4 + 8 * half;
            int end = sizes.seqlen_k - own;
            if (CAUSAL) end = min(end, last + of_row + 1 - own);
            const int begin = WINDOWED ? last + of_row + 1 - sizes.window_keys - own : 0;
#pragma unroll
            for (int i = 0; i < BLOCK_N / 4; i++) {
                const int at = i / 2 * 8 + i % 2;
                if (at >= end || (WINDOWED && at < begin)) s[i / 2 * 4 + 2 * half + i % 2] = 0.0f;
            }
        }
    }

    // Adds a block to dQ; its S and dP have been started.
    template <bool IS_FIRST>
    DEVICE void finish(float (&s)[BLOCK_N / 2], float (&dp)[BLOCK_N / 2], int block) {
        const int use = number(block), k = use % K_STAGES;
        wgmma_wait<1>();
        wgmma_fence_operand(s);
        probabilities(s);
        mask(s, block);
        wgmma_wait<0>();
        wgmma_fence_operand(dp);
        arrive_warp(barriers().v_empty(use % V_STAGES), lane);
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) s[i] *= dp[i] - rows.delta[i / 2 % 2];
        u32 ds16[BLOCK_N / 4];
        to_operand<BLOCK_N>(ds16, s);
        start_sum<IS_FIRST, WIDTH, BLOCK_N>(dq, ds16, shared + K_OFFSET + k * K_BYTES);
        wgmma_wait<0>();
        wgmma_fence_operand(dq);
        wgmma_fence_operand(ds16);
        arrive_warp(barriers().k_empty(k), lane);
    }

    // Releases a block that the other warpgroup needs and this one does not.
    DEVICE void skip(int block) const {
        const int use = number(block), k = use % K_STAGES, v = use % V_STAGES;
        mbarrier_wait(barriers().k_full(k), use / K_STAGES & 1);
        arrive_warp(barriers().k_empty(k), lane);
        mbarrier_wait(barriers().v_full(v), use / V_STAGES & 1);
        arrive_warp(barriers().v_empty(v), lane);
    }

    // dQ leaves through the memory of Q, which no other warpgroup reads.
    DEVICE void write_dq(const TensorMap* dq_map) const {
        put<WIDTH>(dq, sizes.scale, q(), warpgroup, lane, warp);
        if (warp + lane > 0) return;
        send(q(), dq_map, CHUNKS, first_row(), tile.head, tile.batch);
        if (!PERSISTENT) return;
        tma_store_wait();
        mbarrier_arrive(barriers().rows_empty(warpgroup));
    }

    DEVICE void run(const RowSums& sums, const TensorMap* dq_map) {
        const int first_of_warp = first_row() + 16 * warp;
        // One block at least: rows that are not there see none.
        const int end = max(end_of_keys(sizes, first_row(), 64), tile.first_block + 1);
        const int begin = min(max(first_of_keys(sizes, first_row()), tile.first_block), end - 1);
        rows.load(sums, sizes, tile, first_of_warp, lane);
        for (int block = tile.end_block - 1; block >= end; block--) skip(block);
        mbarrier_wait(barriers().q_full(warpgroup), tiles & 1);
        mbarrier_wait(barriers().do_full(warpgroup), tiles & 1);
        float s[BLOCK_N / 2], dp[BLOCK_N / 2];
        start(s, dp, number(end - 1));
        rows.finish(dout() + 16 * warp * ROW_BYTES, lane);
        rows.write(sums, sizes, tile, first_of_warp, lane);
        finish<true>(s, dp, end - 1);
        for (int block = end - 2; block >= begin; block--) {
            start(s, dp, number(block));
            finish<false>(s, dp, block);
        }
        for (int block = begin - 1; block >= tile.first_block; block--) skip(block);
        write_dq(dq_map);
    }
};

// What a thread of a consumer warpgroup does.
DEVICE void consume(const Sizes& sizes, const int* table, u32 shared, const RowSums& sums,
                    const TensorMap* dq_map, int warpgroup, int lane, int warp) {
    int blocks = 0;
    for_tiles<ALL_LANES>(table, [&](int number, int tiles) {
        const QueryTile tile = query_tile(sizes, number);
        QueryConsumer{sizes, tile, shared, warpgroup, lane, warp, tiles, blocks}.run(sums, dq_map);
        blocks += tile.blocks();
    });
    if (warp + lane == 0) tma_store_wait();
}

// -------------------------------------------------------------------------------------- producer

// Copies Q and dO of both warpgroups.
DEVICE void load_rows(const InputMaps& maps, const QueryTile& tile, u32 shared, int tiles) {
    const Barriers barriers{shared + BARRIERS_OFFSET};
#pragma unroll
    for (int warpgroup = 0; warpgroup < WARPGROUPS; warpgroup++) {
        const u32 q_full = barriers.q_full(warpgroup), do_full = barriers.do_full(warpgroup);
        const int row = tile.row + 64 * warpgroup;
        if (PERSISTENT) mbarrier_wait(barriers.rows_empty(warpgroup), tiles & 1 ^ 1);
        mbarrier_arrive_expect_tx(q_full, Q_BYTES);
        for (int i = 0; i < CHUNKS; i++)
            tma_load(shared + Q_OFFSET + warpgroup * Q_BYTES + i * OWN_CHUNK, maps.q, q_full,
                     64 * i, row, tile.head, tile.batch);
        mbarrier_arrive_expect_tx(do_full, DO_BYTES);
        for (int i = 0; i < CHUNKS_V; i++)
            tma_load(shared + DO_OFFSET + warpgroup * DO_BYTES + i * OWN_CHUNK, maps.dout, do_full,
                     64 * i, row, tile.head, tile.batch);
    }
}

// Copies Q, dO, and all blocks of K and V in the order of their use.
DEVICE void produce(const InputMaps& maps, const Sizes& sizes, const int* table, u32 shared) {
    const Barriers barriers{shared + BARRIERS_OFFSET};
    int use = 0;
    for_tiles<ONE_LANE>(table, [&](int number, int tiles) {
        const QueryTile tile = query_tile(sizes, number);
        for (int block = tile.end_block - 1; block >= tile.first_block; block--, use++) {
            const int k = use % K_STAGES, v = use % V_STAGES;
            mbarrier_wait(barriers.k_empty(k), (use / K_STAGES & 1) ^ 1);
            mbarrier_arrive_expect_tx(barriers.k_full(k), K_BYTES);
            for (int i = 0; i < CHUNKS; i++)
                tma_load(shared + K_OFFSET + k * K_BYTES + i * KV_CHUNK, maps.k,
                         barriers.k_full(k), 64 * i, block * BLOCK_N, tile.head_kv, tile.batch);
            // Behind the first K, which need not wait for the end of the tile before.
            if (block == tile.end_block - 1) load_rows(maps, tile, shared, tiles);
            mbarrier_wait(barriers.v_empty(v), (use / V_STAGES & 1) ^ 1);
            mbarrier_arrive_expect_tx(barriers.v_full(v), V_BYTES);
            for (int i = 0; i < CHUNKS_V; i++)
                tma_load(shared + V_OFFSET + v * V_BYTES + i * KV_CHUNK, maps.v,
                         barriers.v_full(v), 64 * i, block * BLOCK_N, tile.head_kv, tile.batch);
        }
    });
}
