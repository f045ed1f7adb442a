// A consumer warpgroup: it multiplies Q with blocks of K and probabilities with blocks of V, and
// stores the output of its 64 rows of each tile.
//
// Included by attention_fwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

#include "cuda/warpgroup_rows.cuh"

// pipe_read counts the blocks of K and V that were read, over all tiles: block pipe_read lies in
// slot pipe_read % num_stages. q_slot is the slot of the tile's queries.
struct Consumer : Warpgroup {
    KPipeline k;
    VPipeline v;
    QPipeline q;
    u32 q_fragments[Q_IN_REGS ? ELEMENT * K_COLUMNS / 8 : 1];

    // PING_PONG: warpgroups issue their products one after the other, so that the softmax of one
    // runs while the products of another are computed (FlashAttention-3, section 3.1).
    DEVICE void scheduler_barrier_sync() const {
        if (PING_PONG) named_barrier_sync(1 + warpgroup, 256);
    }
    DEVICE void scheduler_barrier_arrive() const {
        if (PING_PONG)
            named_barrier_arrive(1 + (warpgroup + 1 == WARPGROUPS ? 0 : warpgroup + 1), 256);
    }

    // Each warp arrives once at an empty barrier.
    DEVICE void release(u32 empty_barrier) const {
        if (lane == 0) mbarrier_arrive(empty_barrier);
    }
    // A slot of K or V is released to the producers of all CTAs of the cluster, which all write to
    // it.
    DEVICE void release_kv(u32 empty_barrier) const {
        if (CLUSTER_SIZE == 1)
            release(empty_barrier);
        else if (lane < CLUSTER_SIZE)
            mbarrier_arrive_cluster(empty_barrier, lane);
    }

    // Q_IN_REGS: loads the queries from shared memory, as the left operand of q @ k^T.
    DEVICE void load_q(int q_slot) {
        int row = 16 * warp + lane % 16;
#pragma unroll
        for (int byte = 0; byte < ELEMENT * K_COLUMNS; byte += 32) {
            u32 chunk = shared + Q_OFFSET + q_slot * Q_BYTES + byte / SWIZZLE_BYTES * Q_CHUNK_BYTES;
            int unit = byte % SWIZZLE_BYTES / 16 + lane / 16;
            ldmatrix_x4(q_fragments + byte / 8, swizzled_address<SWIZZLE_BYTES>(chunk, row, unit));
        }
        wgmma_fence_operand(q_fragments);  // they are loaded before the slot is released
        __syncwarp();
    }

    // Issues s = q @ k^T of the first N keys of a block.
    template <int N>
    DEVICE void issue_qk(float (&s)[N / 2], int q_slot, int pipe_read) const {
        u64 a = matrix_descriptor<SWIZZLE_BYTES>(shared + Q_OFFSET + q_slot * Q_BYTES, 16,
                                                 8 * SWIZZLE_BYTES);
        u64 b = matrix_descriptor<SWIZZLE_BYTES>(
            shared + K_OFFSET + pipe_read % num_stages * K_BYTES, 16, 8 * SWIZZLE_BYTES);
        wgmma_fence();
#pragma unroll
        for (int byte = 0; byte < ELEMENT * K_COLUMNS; byte += 32) {
            int chunk = byte / SWIZZLE_BYTES, rest = byte % SWIZZLE_BYTES;
            int q_at = chunk * Q_CHUNK_BYTES + rest, k_at = chunk * KV_CHUNK_BYTES + rest;
            if constexpr (!Q_IN_REGS)
                Wgmma<N>::ss(s, a + (q_at >> 4), b + (k_at >> 4), byte > 0);
            else if (byte == 0)
                Wgmma<N>::template rs<0>(s, q_fragments, b);
            else
                Wgmma<N>::rs(s, q_fragments + byte / 8, b + (k_at >> 4));
        }
        wgmma_commit();
    }

    // Issues out += p @ v.
    DEVICE void issue_pv(RowState& rows, int pipe_read) const {
        if constexpr (E4M3_PV)
            issue_pv_e4m3(rows, pipe_read);
        else
            issue_pv_16bit(rows, pipe_read);
    }

    // WGMMA takes V^T in e4m3.
    DEVICE void issue_pv_e4m3(RowState& rows, int pipe_read) const {
        u64 b = matrix_descriptor<VT_SWIZZLE>(
            shared + V_OFFSET + pipe_read % num_stages * V_BYTES, 16, 8 * VT_SWIZZLE);
        wgmma_fence();
#pragma unroll
        for (int key = 0; key < BLOCK_N; key += 32) {
            int bytes = key / VT_SWIZZLE * VT_CHUNK_BYTES + key % VT_SWIZZLE;
            Wgmma<V_COLUMNS>::rs(rows.out, rows.p + key / 8, b + (bytes >> 4));
        }
        wgmma_commit();
    }

    DEVICE void issue_pv_16bit(RowState& rows, int pipe_read) const {
        // Columns of V lie side by side, chunk behind chunk; groups of 8 keys follow each other.
        u64 b = matrix_descriptor<SWIZZLE_BYTES>(
            shared + V_OFFSET + pipe_read % num_stages * V_BYTES, KV_CHUNK_BYTES,
            8 * SWIZZLE_BYTES);
        u64 a =
            matrix_descriptor<P_SWIZZLE>(shared + P_OFFSET + warpgroup * P_BYTES, 16,
                                         8 * P_SWIZZLE);
        wgmma_fence();
#pragma unroll
        for (int key = 0; key < BLOCK_N; key += 16) {
            u64 v_rows = b + ((key * SWIZZLE_BYTES) >> 4);
            int bytes = key / P_CHUNK * P_CHUNK_BYTES + key % P_CHUNK * 2;
            typedef Wgmma<V_COLUMNS, FP16_PV ? FP16 : OPERANDS> Product;
            if constexpr (P_IN_SMEM)
                Product::template ss<1>(rows.out, a + (bytes >> 4), v_rows, 1);
            else
                Product::rs(rows.out, rows.p + key / 4, v_rows);
        }
        wgmma_commit();
    }

    // A tile's first block, or the first N keys of it: there are no probabilities to multiply yet.
    template <int N>
    DEVICE void first_step(RowState& rows, int q_slot, int pipe_read, int row, int block) const {
        float s[N / 2];
        k.wait_full(pipe_read);
        scheduler_barrier_sync();
        issue_qk<N>(s, q_slot, pipe_read);
        scheduler_barrier_arrive();
        wgmma_wait<0>();
        wgmma_fence_operand(s);
        release_kv(k.empty(pipe_read % num_stages));
        if (CAUSAL || RAGGED) mask<N>(s, row, block * BLOCK_N);
        softmax<CAUSAL, N>(s, rows);
        convert_p<N>(s, rows);
    }

    // INTRA_WG_OVERLAP: q @ k^T and softmax of a block, while p @ v of the block before is
    // computed. LOOKS: it looks at the sums while q @ k^T is computed.
    template <bool MASKED, bool LOOKS = false>
    DEVICE void overlapped_step(RowState& rows, int q_slot, int pipe_read, int row,
                                int block) const {
        float s[BLOCK_N / 2];
        k.wait_full(pipe_read);
        scheduler_barrier_sync();
        issue_qk<BLOCK_N>(s, q_slot, pipe_read);
        rescale_output(rows);
        if (LOOKS) {
            scheduler_barrier_arrive();
            promote_large_sums(rows, row, block + 2);
        }
        v.wait_full(pipe_read - 1);
        issue_pv(rows, pipe_read - 1);
        if (!LOOKS) scheduler_barrier_arrive();
        wgmma_wait<1>();
        wgmma_fence_operand(s);
        release_kv(k.empty(pipe_read % num_stages));
        if (MASKED) mask<BLOCK_N>(s, row, block * BLOCK_N);
        softmax<MASKED && CAUSAL, BLOCK_N>(s, rows);
        wgmma_wait<0>();
        wgmma_fence_operand(rows.out);
        if constexpr (!P_IN_SMEM) wgmma_fence_operand(rows.p);
        release_kv(v.empty((pipe_read - 1) % num_stages));
        convert_p<BLOCK_N>(s, rows);
    }

    // q @ k^T, softmax and p @ v of one block in this order: needs fewer registers.
    template <bool MASKED>
    DEVICE void serial_step(RowState& rows, int q_slot, int pipe_read, int row, int block) const {
        float s[BLOCK_N / 2];
        k.wait_full(pipe_read);
        issue_qk<BLOCK_N>(s, q_slot, pipe_read);
        wgmma_wait<0>();
        wgmma_fence_operand(s);
        release_kv(k.empty(pipe_read % num_stages));
        if (MASKED) mask<BLOCK_N>(s, row, block * BLOCK_N);
        softmax<MASKED && CAUSAL, BLOCK_N>(s, rows);
        convert_p<BLOCK_N>(s, rows);
        rescale_output(rows);
        v.wait_full(pipe_read);
        issue_pv(rows, pipe_read);
        wgmma_wait<0>();
        wgmma_fence_operand(rows.out);
        wgmma_fence_operand(rows.p);
        release_kv(v.empty(pipe_read % num_stages));
    }

    // Releases a block that other warpgroups of the cluster need and this one does not. It waits
    // for the block first: an earlier arrival would count for the block before in the same slot.
    DEVICE void skip_block(int pipe_read) const {
        scheduler_barrier_sync();
        scheduler_barrier_arrive();
        k.wait_full(pipe_read);
        release_kv(k.empty(pipe_read % num_stages));
        v.wait_full(pipe_read);
        release_kv(v.empty(pipe_read % num_stages));
    }

    // Computes the blocks from `block` on that no row's mask cuts. Steps that look at the sums are
    // apart from the others, which take no longer for them. With PROMOTES the last loop has nothing
    // to do. Without it NVRTC 13.0 makes code for 256 columns, causal, that takes 28 % longer.
    DEVICE void unmasked_steps(RowState& rows, int q_slot, int& pipe_read, int row,
                               int block) const {
        auto step = [&] {
            if (INTRA_WG_OVERLAP)
                overlapped_step<false>(rows, q_slot, pipe_read++, row, block--);
            else
                serial_step<false>(rows, q_slot, pipe_read++, row, block--);
        };
        while (PROMOTES && block >= 0) {
            while (block > max(rows.look_at, -1)) step();
            if (block < 0) break;
            if (INTRA_WG_OVERLAP) {
                overlapped_step<false, true>(rows, q_slot, pipe_read++, row, block--);
            } else {
                promote_large_sums(rows, row, block + 1);
                step();
            }
        }
        while (block >= 0) step();
    }

    // Computes the key blocks [0, blocks) for the 64 rows from `row` on, from the last to the
    // first. Returns the next pipe_read. Calls `near_start` before the first step that computes p @
    // v, and `after_last_scores` when the queries have been read.
    template <class NearStart, class AfterLastScores>
    DEVICE int attend(RowState& rows, int q_slot, int pipe_read, int row, int blocks,
                      NearStart near_start, AfterLastScores after_last_scores) const {
        int unmasked = sizes.seqlen_k;  // keys that all rows see
        if (CAUSAL) unmasked = min(unmasked, max(row + sizes.seqlen_k - sizes.seqlen_q + 1, 0));
        int unmasked_blocks = CAUSAL || RAGGED ? unmasked / BLOCK_N : blocks;
        int block = blocks - 1;
        if (INTRA_WG_OVERLAP) {
            // Keys of the block that some row sees.
            int visible = row + 64 + sizes.seqlen_k - sizes.seqlen_q - block * BLOCK_N;
            if (CAUSAL && SPLIT_DIAGONAL_BLOCK && visible <= BLOCK_N / 2)
                first_step<SPLIT_DIAGONAL_BLOCK ? BLOCK_N / 2 : BLOCK_N>(rows, q_slot, pipe_read,
                                                                         row, block);
            else
                first_step<BLOCK_N>(rows, q_slot, pipe_read, row, block);
            pipe_read++, block--;
            near_start();
            if (CAUSAL)  // without CAUSAL only the first block is masked
                for (; block >= unmasked_blocks; block--, pipe_read++)
                    overlapped_step<true>(rows, q_slot, pipe_read, row, block);
            if constexpr (DTYPE_E4M3)
                unmasked_steps(rows, q_slot, pipe_read, row, block);
            else
                for (; block >= 0; block--, pipe_read++)
                    overlapped_step<false>(rows, q_slot, pipe_read, row, block);
            after_last_scores();
            rescale_output(rows);
            v.wait_full(pipe_read - 1);
            issue_pv(rows, pipe_read - 1);
            wgmma_wait<0>();
            wgmma_fence_operand(rows.out);
            release_kv(v.empty((pipe_read - 1) % num_stages));
        } else {
            near_start();
            if (CAUSAL || RAGGED)
                for (; block >= unmasked_blocks; block--, pipe_read++)
                    serial_step<true>(rows, q_slot, pipe_read, row, block);
            if constexpr (DTYPE_E4M3)
                unmasked_steps(rows, q_slot, pipe_read, row, block);
            else
                for (; block >= 0; block--, pipe_read++)
                    serial_step<false>(rows, q_slot, pipe_read, row, block);
            after_last_scores();
        }
        add_promoted_sums(rows);
        return pipe_read;
    }
};

// Computes the rows of warpgroup `warpgroup` in each tile of the CTA.
DEVICE void consume(const TensorMap* o_map, float* lse, const Descales& descales,
                    const Sizes& sizes, const int* schedule, const int* tiles, u32 shared,
                    int warpgroup) {
    u32 barriers = shared + BARRIERS_OFFSET;
    int thread = threadIdx.x % 128;
    Consumer c{{sizes, descales, shared, warpgroup, thread % 32, thread / 32},
               {barriers}, {barriers}, {barriers}};
    int first = first_tile(schedule), count = tile_count(schedule, first);
    int last_cta_offset = (CLUSTER_SIZE - 1 - cluster_rank()) * count;
    WorkInfo next_work = load_work_info(tiles, first, last_cta_offset);
    if (DEPENDENT_LAUNCH) wait_for_kernel_before();
    int pipe_read = 0;
    if (warpgroup == WARPGROUPS - 1) c.scheduler_barrier_arrive();  // warpgroup 0 goes first
    for (int i = 0; i < count; i++) {
        WorkInfo work = next_work;
        next_work = load_work_info(tiles, first + i + 1, last_cta_offset);
        int row = work.row + 64 * warpgroup, q_slot = i % Q_STAGES * WARPGROUPS + warpgroup;
        int blocks = visible_blocks(sizes, row, 64);
        if (CAUSAL) {
            int skipped = visible_blocks(sizes, work.cluster_row, ROWS) - blocks;
            for (; skipped > 0; skipped--) c.skip_block(pipe_read++);
        }
        if (DTYPE_E4M3) c.load_descales(work.batch * descales.heads_kv + work.head_kv);
        RowState rows;
        rows.init();
        if (PROMOTES) c.look_after(rows, blocks - SUM_BLOCKS);
        // With EPILOGUE_SUBTILE = 0 the output leaves through the slot of the queries. The slot is
        // released when TMA has read it: with two stages near the start of the next tile.
        auto release_stored = [&] {
            if (EPILOGUE_SUBTILE == 0 && Q_STAGES > 1 && i > 0 && thread == 0) {
                tma_store_wait();
                mbarrier_arrive(c.q.empty((i - 1) % Q_STAGES * WARPGROUPS + warpgroup));
            }
        };
        auto release_q = [&] {
            if (EPILOGUE_SUBTILE > 0 && !Q_IN_REGS) c.release(c.q.empty(q_slot));
        };
        mbarrier_wait(c.q.full(q_slot), (i / Q_STAGES) & 1);
        if (Q_IN_REGS) {
            c.load_q(q_slot);
            if (EPILOGUE_SUBTILE > 0) c.release(c.q.empty(q_slot));
        }
        pipe_read = c.attend(rows, q_slot, pipe_read, row, blocks, release_stored, release_q);
        long long head_row = (long long)(work.batch * sizes.heads + work.head) * sizes.seqlen_q;
        c.finalize(rows, lse + head_row, row);
        auto store_chunks = [&](u32 from, int chunk) {
            if (thread == 0) {
                for (int j = 0; j < O_CHUNKS; j++)
                    tma_store(o_map, from + j * Q_CHUNK_BYTES, (chunk + j) * CHUNK, row, work.head,
                              work.batch);
                tma_store_commit();
            }
        };
        u32 to = EPILOGUE_SUBTILE ? shared + O_OFFSET + warpgroup * O_BYTES
                                  : shared + Q_OFFSET + q_slot * Q_BYTES;
        if (EPILOGUE_SUBTILE > 0 && thread == 0) tma_store_wait();  // of the tile before
        c.write_output<0, O_CHUNKS>(rows, to);
        store_chunks(to, 0);
        if (EPILOGUE_SUBTILE == 2) {
            if (thread == 0) tma_store_wait();
            c.write_output<V_CHUNKS - O_CHUNKS, O_CHUNKS>(rows, to);
            store_chunks(to, O_CHUNKS);
        }
        if (EPILOGUE_SUBTILE == 0 && Q_STAGES == 1 && thread == 0) {
            tma_store_wait();
            mbarrier_arrive(c.q.empty(q_slot));
        }
    }
    // Shared memory, which stores read and the other CTA arrives in, ends with the CTA.
    if (thread == 0) tma_store_wait();
    if (CLUSTER_SIZE > 1 && thread == 0)
        for (int i = 0; i < num_stages; i++) {
            c.k.wait_empty(pipe_read + i);
            c.v.wait_empty(pipe_read + i);
        }
}
