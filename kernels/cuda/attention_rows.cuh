// 64 query rows of a warpgroup and the key blocks they see: one block of scores, of softmax and of
// output, and the way of the finished rows into shared memory.
//
// Included by attention_fwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

// What a warpgroup knows of its 64 rows.
struct Rows {
    float out[V_COLUMNS / 2];
    u32 p[P_IN_SMEM ? 1 : BLOCK_N * ELEMENT / 8];  // probabilities of the block before, in the dtype
    float max_log2[2], sum[2], decay[2];
    float share[2];  // in the end, 1 / sum
    // e4m3: blocks of this tile that were multiplied with V, and what the sums that were put aside are
    // still to be multiplied with, as maxima have grown since.
    int blocks;
    float aside_decay[2];
};

struct Consumer {
    const Sizes& sizes;
    KRing k;
    VRing v;
    QRing q;
    u32 shared;
    int me, lane, warp;
    float tile_scale, out_scale;  // e4m3: of this tile's KV head
    u32 q_rows[Q_IN_REGS ? ELEMENT * K_COLUMNS / 8 : 1];

    // This lane's first row and column of a block, beside `row` and `key`.
    __device__ __forceinline__ int lane_row() const { return 16 * warp + lane / 4; }
    __device__ __forceinline__ int lane_column() const { return 2 * (lane % 4); }

    // Ping-pong: warpgroups issue their products one after the other, so that one's softmax runs
    // under another's products (FlashAttention-3, section 3.1). Barriers 1 to WARPGROUPS.
    __device__ __forceinline__ void wait_turn() const {
        if (PING_PONG) threads_sync(1 + me, 256);
    }
    __device__ __forceinline__ void give_turn() const {
        if (PING_PONG) threads_arrive(1 + (me + 1 == WARPGROUPS ? 0 : me + 1), 256);
    }
    __device__ __forceinline__ void release(u32 barrier) const {
        if (lane == 0) barrier_arrive(barrier);
    }
    // K or V, in the eyes of each program that writes there.
    __device__ __forceinline__ void release_block(u32 barrier) const {
        if (CLUSTER_SIZE == 1)
            release(barrier);
        else if (lane < CLUSTER_SIZE)
            barrier_arrive_at(barrier, lane);
    }

    // Queries from shared memory into the registers of a left operand.
    __device__ __forceinline__ void take_queries(int slot) {
        int at = 16 * warp + lane % 16;
#pragma unroll
        for (int byte = 0; byte < ELEMENT * K_COLUMNS; byte += 32) {
            u32 chunk = shared + Q_OFFSET + slot * Q_BYTES + byte / SWIZZLE_BYTES * Q_CHUNK_BYTES;
            matrices_load(q_rows + byte / 8, unit_at<SWIZZLE_BYTES>(chunk, at, byte % SWIZZLE_BYTES / 16 + lane / 16));
        }
        pin(q_rows);  // they are there before the slot is freed
        __syncwarp();
    }

    // Starts s = q @ k^T of a block's first N keys.
    template <int N>
    __device__ __forceinline__ void start_scores(float (&s)[N / 2], int slot, int use) const {
        u64 a = matrix_descriptor<SWIZZLE_BYTES>(shared + Q_OFFSET + slot * Q_BYTES, 16, 8 * SWIZZLE_BYTES);
        u64 b = matrix_descriptor<SWIZZLE_BYTES>(shared + K_OFFSET + use % num_stages * K_BYTES, 16, 8 * SWIZZLE_BYTES);
        wgmma_begin();
#pragma unroll
        for (int byte = 0; byte < ELEMENT * K_COLUMNS; byte += 32) {
            int chunk = byte / SWIZZLE_BYTES, rest = byte % SWIZZLE_BYTES;
            int q_at = chunk * Q_CHUNK_BYTES + rest, k_at = chunk * KV_CHUNK_BYTES + rest;
            if constexpr (!Q_IN_REGS)
                Wgmma<N>::ss(s, a + (q_at >> 4), b + (k_at >> 4), byte > 0);
            else if (byte == 0)
                Wgmma<N>::template rs<0>(s, q_rows, b);
            else
                Wgmma<N>::rs(s, q_rows + byte / 8, b + (k_at >> 4));
        }
        wgmma_commit();
    }

    // Starts out += p @ v.
    __device__ __forceinline__ void start_output(Rows& rows, int use) const {
        if constexpr (DTYPE_E4M3)
            start_transposed_output(rows, use);
        else
            start_plain_output(rows, use);
    }

    // The same of e4m3, which takes V^T.
    __device__ __forceinline__ void start_transposed_output(Rows& rows, int use) const {
        u64 b = matrix_descriptor<VT_SWIZZLE>(shared + V_OFFSET + use % num_stages * V_BYTES, 16,
                                              8 * VT_SWIZZLE);
        wgmma_begin();
#pragma unroll
        for (int key = 0; key < BLOCK_N; key += 32) {
            int bytes = key / VT_SWIZZLE * VT_CHUNK_BYTES + key % VT_SWIZZLE;
            Wgmma<V_COLUMNS>::rs(rows.out, rows.p + key / 8, b + (bytes >> 4));
        }
        wgmma_commit();
    }

    __device__ __forceinline__ void start_plain_output(Rows& rows, int use) const {
        // Columns of V lie side by side, chunk behind chunk; groups of 8 keys follow each other.
        u64 b = matrix_descriptor<SWIZZLE_BYTES>(shared + V_OFFSET + use % num_stages * V_BYTES, KV_CHUNK_BYTES,
                                           8 * SWIZZLE_BYTES);
        u64 a = matrix_descriptor<P_SWIZZLE>(shared + P_OFFSET + me * P_BYTES, 16, 8 * P_SWIZZLE);
        wgmma_begin();
#pragma unroll
        for (int key = 0; key < BLOCK_N; key += 16) {
            u64 v_rows = b + ((key * SWIZZLE_BYTES) >> 4);
            int bytes = key / P_CHUNK * P_CHUNK_BYTES + key % P_CHUNK * 2;
            if constexpr (P_IN_SMEM)
                Wgmma<V_COLUMNS>::template ss<1>(rows.out, a + (bytes >> 4), v_rows, 1);
            else
                Wgmma<V_COLUMNS>::rs(rows.out, rows.p + key / 4, v_rows);
        }
        wgmma_commit();
    }

    // -inf where a row does not see a key.
    template <int N>
    __device__ __forceinline__ void mask(float (&s)[N / 2], int row, int key) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int last = sizes.seqlen_k - 1;
            if (CAUSAL)
                last = min(last, row + lane_row() + 8 * half + sizes.seqlen_k - sizes.seqlen_q);
            last -= key + lane_column();
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                float* pair = s + 4 * i + 2 * half;
                if (8 * i > last) pair[0] = -INFINITE;
                if (8 * i + 1 > last) pair[1] = -INFINITE;
            }
        }
    }

    __device__ __forceinline__ float scale_log2() const {
        return DTYPE_E4M3 ? tile_scale : sizes.scale_log2;
    }

    // Scores become probabilities: FlashAttention-2, arXiv:2307.08691, algorithm 1, lines 8 and 9.
    // Sums stay spread over a row's four lanes. With RESCALE_THRESHOLD a maximum stays until scores exceed it by
    // so many powers of two: then decay is nearly always 1, and the output need not be rescaled.
    // EMPTY: some rows may have seen no key yet.
    template <bool EMPTY, int N>
    __device__ __forceinline__ void softmax(float (&s)[N / 2], Rows& rows) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = -INFINITE;
#pragma unroll
            for (int i = 0; i < N / 8; i++)
                most = fmaxf(most, fmaxf(s[4 * i + 2 * half], s[4 * i + 2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * scale_log2();
            if (P_LOG2 > 0) most -= P_LOG2;
            float before = rows.max_log2[half];
            float now = ROOM ? (most > before + ROOM ? most : before) : fmaxf(most, before);
            float shift = EMPTY && now == -INFINITE ? 0.0f : now;  // -inf - -inf would be NaN
            rows.decay[half] = exp2_approx(before - shift);
            rows.max_log2[half] = now;
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                float* pair = s + 4 * i + 2 * half;
                pair[0] = exp2_approx(fmaf(pair[0], scale_log2(), -shift));
                pair[1] = exp2_approx(fmaf(pair[1], scale_log2(), -shift));
                sum += pair[0] + pair[1];
            }
            rows.sum[half] = fmaf(rows.sum[half], rows.decay[half], sum);
        }
    }

    // Where 16 bytes of a row lie in a chunk of WIDTH bytes a row.
    template <int WIDTH>
    __device__ __forceinline__ u32 unit_at(u32 chunk, int row, int unit) const {
        constexpr int SHIFT = WIDTH == 128 ? 0 : WIDTH == 64 ? 1 : 2, UNITS = WIDTH / 16;
        return chunk + row * WIDTH + ((unit ^ ((row >> SHIFT) % UNITS)) << 4);
    }

    // Probabilities in the dtype, for start_output; 0 behind the first N.
    template <int N>
    __device__ __forceinline__ void keep(const float (&s)[N / 2], Rows& rows) const {
        if constexpr (DTYPE_E4M3)
            keep_e4m3<N>(s, rows);
        else
            keep_16_bits<N>(s, rows);
    }

    // In the order of the keys of V^T.
    template <int N>
    __device__ __forceinline__ void keep_e4m3(const float (&s)[N / 2], Rows& rows) const {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 8; i++) {
            const float* x = s + (8 * (i / 2) + 2 * (i % 2)) % (N / 2);
            rows.p[i] = i < N / 8 ? packed_e4m3(x[0], x[1], x[4], x[5]) : 0;
        }
    }

    template <int N>
    __device__ __forceinline__ void keep_16_bits(const float (&s)[N / 2], Rows& rows) const {
        auto pair = [&](int i) {
            return i < N / 4 ? packed(s[2 * i % (N / 2)], s[2 * i % (N / 2) + 1]) : 0;
        };
        if constexpr (!P_IN_SMEM) {
#pragma unroll
            for (int i = 0; i < BLOCK_N / 4; i++) rows.p[i] = pair(i);
        } else {
            u32 to = shared + P_OFFSET + me * P_BYTES;
            int at = 16 * warp + lane % 16;
#pragma unroll
            for (int key = 0; key < BLOCK_N; key += 16) {
                u32 chunk = to + key / P_CHUNK * P_CHUNK_BYTES;
                int unit = key % P_CHUNK / 8 + lane / 16, i = key / 4;
                matrices_store(unit_at<P_SWIZZLE>(chunk, at, unit), pair(i), pair(i + 1), pair(i + 2),
                               pair(i + 3));
            }
            fence_async_proxy();
            // Each warp's quarter of a product reads the rows that the warp wrote, no others, as in
            // FlashAttention-3 (hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp).
            __syncwarp();
        }
    }

    // out times what its rows' maxima have grown by; a warp in which none has does nothing.
    __device__ __forceinline__ void rescale(Rows& rows) const {
        if (RESCALE_THRESHOLD && !__any_sync(~0u, rows.decay[0] != 1.0f || rows.decay[1] != 1.0f)) return;
#pragma unroll
        for (int i = 0; i < V_COLUMNS / 2; i++) rows.out[i] *= rows.decay[i / 2 % 2];
        for (int half = 0; half < 2; half++) rows.aside_decay[half] *= rows.decay[half];
    }

    // e4m3: what a tile's scores and outputs are multiplied with, `at` of each (batch, KV head).
    __device__ __forceinline__ void take_scales(const Descales& descales, int at) {
        auto of = [&](const float* all) { return all ? all[at] : 1.0f; };
        // 0 times a hidden key's -inf would be NaN.
        tile_scale = fmaxf(sizes.scale_log2 * of(descales.q) * of(descales.k), 1e-30f);
        out_scale = of(descales.v);
    }

    // e4m3: tensor cores add 8-bit products with about 14 bits, the rest cut off (DeepSeek-V3,
    // arXiv:2412.19437, section 3.5.2): after 16,384 keys a fourth of a sum can be missing. So every
    // SUM_BLOCKS blocks it is added to one in fp32, in memory of which each thread has its own part.
    __device__ __forceinline__ void put_aside(Rows& rows) const {
        if (!DTYPE_E4M3 || ++rows.blocks % SUM_BLOCKS != 0) return;
        bool is_first = rows.blocks == SUM_BLOCKS;
        if (is_first) {  // the output of the tile before leaves from there
            if (lane + warp == 0) tma_store_wait();
            threads_sync(1 + WARPGROUPS + me, 128);
        }
#pragma unroll
        for (int i = 0; i < V_COLUMNS / 2; i += 4) {
            if (!is_first) add_aside(rows, i);
            shared_store(aside_at(i), rows.out + i);
            for (int j = 0; j < 4; j++) rows.out[i + j] = 0.0f;
        }
        for (int half = 0; half < 2; half++) rows.aside_decay[half] = 1.0f;
    }
    __device__ __forceinline__ void take_back(Rows& rows) const {
        if (!DTYPE_E4M3 || rows.blocks < SUM_BLOCKS) return;
#pragma unroll
        for (int i = 0; i < V_COLUMNS / 2; i += 4) add_aside(rows, i);
    }
    __device__ __forceinline__ void add_aside(Rows& rows, int i) const {
        float4 aside = shared_load(aside_at(i));
        float* out = rows.out + i;
        out[0] = fmaf(aside.x, rows.aside_decay[0], out[0]);
        out[1] = fmaf(aside.y, rows.aside_decay[0], out[1]);
        out[2] = fmaf(aside.z, rows.aside_decay[1], out[2]);
        out[3] = fmaf(aside.w, rows.aside_decay[1], out[3]);
    }
    // Where out[i] to out[i + 3] lie, side by side with those of the other threads.
    __device__ __forceinline__ u32 aside_at(int i) const {
        return shared + O_OFFSET + me * O_BYTES + 4 * (128 * i + 4 * (32 * warp + lane));
    }

    // A tile's first block, or the first N keys of it: nothing to multiply with V yet.
    template <int N>
    __device__ __forceinline__ void first_block(Rows& rows, int slot, int use, int row, int block) const {
        float s[N / 2];
        k.wait_filled(use);
        wait_turn();
        start_scores<N>(s, slot, use);
        give_turn();
        wgmma_wait<0>();
        pin(s);
        release_block(k.freed(use % num_stages));
        if (CAUSAL || RAGGED) mask<N>(s, row, block * BLOCK_N);
        softmax<CAUSAL, N>(s, rows);
        keep<N>(s, rows);
    }

    // Scores and softmax of a block, and p @ v of the one before.
    template <bool MASKED>
    __device__ __forceinline__ void step(Rows& rows, int slot, int use, int row, int block) const {
        float s[BLOCK_N / 2];
        k.wait_filled(use);
        wait_turn();
        start_scores<BLOCK_N>(s, slot, use);
        rescale(rows);
        v.wait_filled(use - 1);
        start_output(rows, use - 1);
        give_turn();
        wgmma_wait<1>();
        pin(s);
        release_block(k.freed(use % num_stages));
        if (MASKED) mask<BLOCK_N>(s, row, block * BLOCK_N);
        softmax<MASKED && CAUSAL, BLOCK_N>(s, rows);
        wgmma_wait<0>();
        pin(rows.out);
        if constexpr (!P_IN_SMEM) pin(rows.p);
        release_block(v.freed((use - 1) % num_stages));
        put_aside(rows);
        keep<BLOCK_N>(s, rows);
    }

    // The same, one product after the other: fewer registers, and other warpgroups fill the gaps.
    template <bool MASKED>
    __device__ __forceinline__ void step_in_turn(Rows& rows, int slot, int use, int row,
                                                 int block) const {
        float s[BLOCK_N / 2];
        k.wait_filled(use);
        start_scores<BLOCK_N>(s, slot, use);
        wgmma_wait<0>();
        pin(s);
        release_block(k.freed(use % num_stages));
        if (MASKED) mask<BLOCK_N>(s, row, block * BLOCK_N);
        softmax<MASKED && CAUSAL, BLOCK_N>(s, rows);
        keep<BLOCK_N>(s, rows);
        rescale(rows);
        v.wait_filled(use);
        start_output(rows, use);
        wgmma_wait<0>();
        pin(rows.out);
        pin(rows.p);
        release_block(v.freed(use % num_stages));
        put_aside(rows);
    }

    // Hands back a block that other warpgroups of the tile need, and this one does not. Before it is
    // filled that would count for what was in the slot before.
    __device__ __forceinline__ void skip(int use) const {
        wait_turn();
        give_turn();
        k.wait_filled(use);
        release_block(k.freed(use % num_stages));
        v.wait_filled(use);
        release_block(v.freed(use % num_stages));
    }

    // 64 rows past the key blocks below `end`, from the last to the first; the next use of a slot.
    // `before_output` is called when there is time, `after_scores` when the queries have been read.
    template <class Before, class After>
    __device__ __forceinline__ int attend(Rows& rows, int slot, int use, int row, int end,
                                          Before before_output, After after_scores) const {
        int clear = sizes.seqlen_k;  // blocks of which each row sees each key
        if (CAUSAL) clear = min(clear, max(row + sizes.seqlen_k - sizes.seqlen_q + 1, 0));
        clear = CAUSAL || RAGGED ? clear / BLOCK_N : end;
        int block = end - 1;
        if (INTRA_WG_OVERLAP) {
            int seen = row + 64 + sizes.seqlen_k - sizes.seqlen_q - block * BLOCK_N;  // of this block
            if (CAUSAL && SPLIT_DIAGONAL_BLOCK && seen <= BLOCK_N / 2)
                first_block<SPLIT_DIAGONAL_BLOCK ? BLOCK_N / 2 : BLOCK_N>(rows, slot, use, row, block);
            else
                first_block<BLOCK_N>(rows, slot, use, row, block);
            use++, block--;
            before_output();
            if (CAUSAL)  // the ragged end was in the first block
                for (; block >= clear; block--, use++) step<true>(rows, slot, use, row, block);
            for (; block >= 0; block--, use++) step<false>(rows, slot, use, row, block);
            after_scores();
            rescale(rows);
            v.wait_filled(use - 1);
            start_output(rows, use - 1);
            wgmma_wait<0>();
            pin(rows.out);
            release_block(v.freed((use - 1) % num_stages));
        } else {
            before_output();
            if (CAUSAL || RAGGED)
                for (; block >= clear; block--, use++) step_in_turn<true>(rows, slot, use, row, block);
            for (; block >= 0; block--, use++) step_in_turn<false>(rows, slot, use, row, block);
            after_scores();
        }
        take_back(rows);
        return use;
    }

    // Divides by the sums and writes lse: what the output is still to be multiplied with.
    __device__ __forceinline__ void finish(Rows& rows, float* lse, int row) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = rows.sum[half];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            rows.share[half] = sum != 0.0f ? 1.0f / sum : 0.0f;  // 0: a row that saw no key
            if (DTYPE_E4M3) rows.share[half] *= out_scale;
            int mine = row + lane_row() + 8 * half;
            if (lane % 4 == 0 && mine < sizes.seqlen_q)
                lse[mine] = sum != 0.0f ? (rows.max_log2[half] + log2_approx(sum)) * LN_2 : -INFINITE;
        }
    }

    // Puts chunks [FIRST, FIRST + COUNT) of the output into shared memory, where TMA finds them.
    template <int FIRST, int COUNT>
    __device__ __forceinline__ void put(const Rows& rows, u32 to) const {
        threads_sync(1 + WARPGROUPS + me, 128);  // every warp has read what is there
        const float(&share)[2] = rows.share;
        int at = 16 * warp + lane % 16;
        constexpr int END = (FIRST + COUNT) * CHUNK < V_COLUMNS ? (FIRST + COUNT) * CHUNK : V_COLUMNS;
#pragma unroll
        for (int column = FIRST * CHUNK; column < END; column += 16) {
            const float* x = rows.out + column / 2;
            u32 chunk = to + (column / CHUNK - FIRST) * Q_CHUNK_BYTES;
            int unit = column % CHUNK / 8 + lane / 16;
            matrices_store(unit_at<SWIZZLE_BYTES>(chunk, at, unit), packed(x[0] * share[0], x[1] * share[0]),
                           packed(x[2] * share[1], x[3] * share[1]),
                           packed(x[4] * share[0], x[5] * share[0]),
                           packed(x[6] * share[1], x[7] * share[1]));
        }
        fence_async_proxy();
        threads_sync(1 + WARPGROUPS + me, 128);
    }
};
