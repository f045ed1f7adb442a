// A consumer warpgroup of attention_decode_mla_cuda_sm90: it has the scores of every second block of
// keys, and half of the columns of the output.
//
// Included by attention_decode_mla_cuda_sm90.cu, whose sizes it uses. A lane has two of the 64 rows
// of the tile, 16 warp + lane / 4 and 8 more: see wgmma.cuh. Pairs have an element for each of them.
#pragma once

#include "cuda/mla_problem.cuh"
#include "cuda/numbers.cuh"
#include "cuda/wgmma.cuh"

// Named barriers: what one warpgroup says to the other, and one for the warps of each.
enum { FIRST_MAXIMUM = 1, FIRST_PROBABILITIES, SECOND_PROBABILITIES, SUMS, OWN_WARPS };

struct Consumer {
    float out[COLUMNS / 2];
    float max_log2[2];  // of scores times scale_log2
    float sum[2];       // of this lane's columns, over the blocks of this warpgroup
    u32 shared;
    int warpgroup, warp, lane;
    int block;  // the blocks of both warpgroups that were read, over all work

    DEVICE int lane_row() const { return 16 * warp + lane / 4; }

    // Each warp arrives once.
    DEVICE void release_stage(int stage) const {
        __syncwarp();
        if (CLUSTER_SIZE == 1) {
            if (lane == 0) mbarrier_arrive(empty_barrier(shared, stage));
        } else if (lane < CLUSTER_SIZE) {
            mbarrier_arrive_cluster(empty_barrier(shared, stage), lane);
        }
    }
    DEVICE void release_queries() const {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared + QUERY_BARRIERS + 8);
    }

    DEVICE void init() {
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) out[i] = 0.0f;
        for (int half = 0; half < 2; ++half) max_log2[half] = MINUS_INFINITY, sum[half] = 0.0f;
    }

    // s = q @ k^T of the block in a stage, as its parts arrive.
    DEVICE void compute_scores(float (&s)[BLOCK_N / 2], int stage, u32 parity) const {
        const u64 a = matrix_descriptor<128>(shared + Q_OFFSET, 16, 1024);
        const u64 b = matrix_descriptor<128>(stage_address(shared, stage), 16, 1024);
        mbarrier_wait(full_barrier(shared, stage, 0), parity);
        wgmma_fence();
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            if (chunk > 0 && chunk % PART_CHUNKS == 0)
                mbarrier_wait(full_barrier(shared, stage, chunk / PART_CHUNKS), parity);
#pragma unroll
            for (int byte = 0; byte < 128; byte += 32)
                Wgmma<BLOCK_N>::ss(s, a + ((chunk * ROWS * 128 + byte) >> 4),
                                   b + ((chunk * CHUNK_BYTES + byte) >> 4), chunk + byte > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_fence_operand(s);
    }

    // Sets the scores of keys that a row does not see to -inf. The block begins at key `first`.
    DEVICE void mask(float (&s)[BLOCK_N / 2], const Work& work, const Sizes& sizes,
                     int first) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int end = work.end;
            if (CAUSAL) {
                const int query = (work.row_tile * ROWS + lane_row() + 8 * half) / GROUP;
                end = min(end, work.keys - sizes.seqlen_q + query + 1);
            }
            end -= first + 2 * (lane % 4);
#pragma unroll
            for (int i = 0; i < BLOCK_N / 8; ++i) {
                if (8 * i >= end) s[4 * i + 2 * half] = MINUS_INFINITY;
                if (8 * i + 1 >= end) s[4 * i + 2 * half + 1] = MINUS_INFINITY;
            }
        }
    }

    // Numbers of the lane's rows, for the other warpgroup or from it.
    DEVICE u32 rows_address(int slot) const {
        return shared + ROWS_OFFSET + slot * ROWS_BYTES + 8 * (8 * warp + lane / 4);
    }
    DEVICE void give(int slot, const float (&x)[2]) const {
        if (lane % 4 != 0) return;
        st_shared(rows_address(slot), __float_as_uint(x[0]));
        st_shared(rows_address(slot) + 4, __float_as_uint(x[1]));
    }
    DEVICE float2 take(int slot) const { return ld_shared_v2_f32(rows_address(slot)); }

    // A new maximum of the rows, and the factors of all that was computed with the one before.
    DEVICE float2 take_maximum(float first, float second) {
        float row_scale[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float new_max = half ? second : first;
            const float shift = new_max == MINUS_INFINITY ? 0.0f : new_max;  // -inf - -inf is NaN
            row_scale[half] = exp2_approx(max_log2[half] - shift);
            max_log2[half] = new_max;
            sum[half] *= row_scale[half];
        }
        return make_float2(row_scale[0], row_scale[1]);
    }

    // The same for the maximum with a block's scores. It stays until a score exceeds it by
    // 2^THRESHOLD_LOG2, so that the output seldom has another factor than 1 (FlashAttention-4).
    DEVICE float2 raise_maximum(const float (&s)[BLOCK_N / 2], float scale_log2) {
        float new_max[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float block_max = MINUS_INFINITY;
#pragma unroll
            for (int i = 0; i < BLOCK_N / 8; ++i)
                block_max = fmaxf(block_max, fmaxf(s[4 * i + 2 * half], s[4 * i + 2 * half + 1]));
            for (int step = 1; step < 4; step *= 2)
                block_max = fmaxf(block_max, __shfl_xor_sync(~0u, block_max, step));
            block_max *= scale_log2;
            new_max[half] =
                block_max > max_log2[half] + THRESHOLD_LOG2 ? block_max : max_log2[half];
        }
        return take_maximum(new_max[0], new_max[1]);
    }

    // Scores become probabilities.
    DEVICE void exponentiate(float (&s)[BLOCK_N / 2], float scale_log2) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float shift = max_log2[half] == MINUS_INFINITY ? 0.0f : max_log2[half];
#pragma unroll
            for (int i = 0; i < BLOCK_N / 8; ++i) {
                float* pair = s + 4 * i + 2 * half;
                pair[0] = exp2_approx(fmaf(pair[0], scale_log2, -shift));
                pair[1] = exp2_approx(fmaf(pair[1], scale_log2, -shift));
                sum[half] += pair[0] + pair[1];
            }
        }
    }

    // Converts probabilities to the dtype: left operands of four registers for each 16 keys.
    DEVICE static void convert(u32 (&p)[BLOCK_N / 4], const float (&s)[BLOCK_N / 2]) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 4; ++i) p[i] = cvt_16bit_x2<BF16>(s[2 * i], s[2 * i + 1]);
    }

    // Writes the probabilities over the last chunk of the block, whose scores are computed.
    DEVICE void write_probabilities(const u32 (&p)[BLOCK_N / 4], int stage) const {
        const u32 to = stage_address(shared, stage) + P_AT;
#pragma unroll
        for (int key = 0; key < BLOCK_N; key += 16) {
            const u32* x = p + key / 4;
            stmatrix_x4(swizzled_address<P_SWIZZLE>(to, 16 * warp + lane % 16,
                                                    key / 8 + lane / 16),
                        x[0], x[1], x[2], x[3]);
        }
    }

    // Writes zeros over the values behind the last key: what lies there may be NaN, and NaN times the
    // probability 0 is NaN.
    DEVICE void clear_values(int stage, int from_row) const {
        const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const int thread = threadIdx.x % 128;
        for (int row = from_row + thread / 8; row < BLOCK_N; row += 16)
#pragma unroll
            for (int chunk = 0; chunk < V_CHUNKS; ++chunk)
                st_shared_v4(stage_address(shared, stage) + chunk * CHUNK_BYTES + row * 128 +
                                 16 * (thread % 8),
                             zeros);
    }

    DEVICE void rescale_output(float2 row_scale) {
        if (!__any_sync(~0u, row_scale.x != 1.0f || row_scale.y != 1.0f)) return;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) out[i] *= i / 2 % 2 ? row_scale.y : row_scale.x;
    }

    // The values of a block in a stage that this warpgroup multiplies.
    DEVICE u64 values_descriptor(int stage) const {
        return matrix_descriptor<128>(
            stage_address(shared, stage) + warpgroup * (COLUMNS / 64) * CHUNK_BYTES, CHUNK_BYTES,
            1024);
    }

    // Issues out += p @ v, with the probabilities that the other warpgroup wrote.
    DEVICE void issue_values(int stage) {
        const u64 a = matrix_descriptor<P_SWIZZLE>(stage_address(shared, stage) + P_AT, 16,
                                                   8 * P_SWIZZLE);
        const u64 b = values_descriptor(stage);
        wgmma_fence();
#pragma unroll
        for (int key = 0; key < BLOCK_N; key += 16)
            Wgmma<COLUMNS>::template ss<1>(out, a + (2 * key >> 4), b + (key * 128 >> 4), 1);
        wgmma_commit();
    }
    // The same with this warpgroup's own ones, from registers.
    DEVICE void issue_values(int stage, u32 (&p)[BLOCK_N / 4]) {
        const u64 b = values_descriptor(stage);
        wgmma_fence_operand(p);
        wgmma_fence();
#pragma unroll
        for (int key = 0; key < BLOCK_N; key += 16)
            Wgmma<COLUMNS>::template rs<1>(out, p + key / 4, b + (key * 128 >> 4));
        wgmma_commit();
    }

    // The scores of this warpgroup's block, which begins at `key`.
    DEVICE void compute_own_scores(float (&s)[BLOCK_N / 2], const Work& work, const Sizes& sizes,
                                   int at, int key) const {
        compute_scores(s, at % num_stages, at / num_stages & 1);
        if (key + BLOCK_N > work.end || (CAUSAL && key + BLOCK_N > work.keys - sizes.seqlen_q))
            mask(s, work, sizes, key);
    }

    // Probabilities of this warpgroup's block, in registers and for the other warpgroup, which sees
    // them after `hand_over`.
    DEVICE void write_own(u32 (&p)[BLOCK_N / 4], float (&s)[BLOCK_N / 2], const Work& work,
                          const Sizes& sizes, int stage, int key) {
        exponentiate(s, sizes.scale_log2);
        convert(p, s);
        named_barrier_sync(OWN_WARPS + warpgroup, 128);  // all have read the keys under them
        write_probabilities(p, stage);
        if (key + BLOCK_N <= work.end) return;
        clear_values(stage, work.end - key);
        fence_proxy_async();
        named_barrier_sync(OWN_WARPS + warpgroup, 128);  // each multiplies all values
    }

    // Comes after the next products were issued: the fence waits until all stores are done. Each
    // warp's quarter of WGMMA reads only rows of P that the same warp of the other warpgroup wrote,
    // as in FlashAttention-3 (hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp).
    DEVICE void hand_over(int barrier) const {
        fence_proxy_async();
        __syncwarp();
        named_barrier_arrive(barrier, 256);
    }

    // Waits until a block was multiplied, and releases its stage.
    DEVICE void finish_values(int stage) {
        wgmma_wait<0>();
        wgmma_fence_operand(out);
        release_stage(stage);
    }

    // Attends the rows to the two blocks from `key` on, or to one, if the split ends there: as
    // warpgroup 0, whose block is the first one.
    DEVICE void step_as_first(const Work& work, const Sizes& sizes, int key) {
        const bool has_second = key + BLOCK_N < work.end;
        const int stage = block % num_stages, second = (block + 1) % num_stages;
        float s[BLOCK_N / 2];
        compute_own_scores(s, work, sizes, block, key);
        if (key + 2 * BLOCK_N >= work.end) release_queries();
        float2 row_scale = raise_maximum(s, sizes.scale_log2);
        give(0, max_log2);
        named_barrier_arrive(FIRST_MAXIMUM, 256);
        u32 p[BLOCK_N / 4];
        write_own(p, s, work, sizes, stage, key);
        rescale_output(row_scale);
        issue_values(stage, p);
        hand_over(FIRST_PROBABILITIES);
        if (has_second) {
            named_barrier_sync(SECOND_PROBABILITIES, 256);
            const float2 maximum = take(1);
            row_scale = take_maximum(maximum.x, maximum.y);
        }
        finish_values(stage);
        wgmma_fence_operand(p);
        if (has_second) {
            rescale_output(row_scale);
            issue_values(second);
            finish_values(second);
        }
        block += 1 + has_second;
    }

    // The same as warpgroup 1, whose block is the second one.
    DEVICE void step_as_second(const Work& work, const Sizes& sizes, int key) {
        const bool has_second = key + BLOCK_N < work.end;
        const int first = block % num_stages, stage = (block + 1) % num_stages;
        float s[BLOCK_N / 2];
        if (has_second) compute_own_scores(s, work, sizes, block + 1, key + BLOCK_N);
        if (key + 2 * BLOCK_N >= work.end) release_queries();
        named_barrier_sync(FIRST_MAXIMUM, 256);
        const float2 maximum = take(0);
        const float2 row_scale = take_maximum(maximum.x, maximum.y);
        float2 next_scale = make_float2(1.0f, 1.0f);
        u32 p[BLOCK_N / 4];
        if (has_second) {
            next_scale = raise_maximum(s, sizes.scale_log2);
            give(1, max_log2);
            write_own(p, s, work, sizes, stage, key + BLOCK_N);
        }
        // Before the other barrier: the first warpgroup may then go on to its next arrival here.
        named_barrier_sync(FIRST_PROBABILITIES, 256);
        rescale_output(row_scale);
        issue_values(first);
        if (has_second) hand_over(SECOND_PROBABILITIES);
        finish_values(first);
        if (has_second) {
            rescale_output(next_scale);
            issue_values(stage, p);
            finish_values(stage);
            wgmma_fence_operand(p);
        }
        block += 1 + has_second;
    }

    DEVICE void step(const Work& work, const Sizes& sizes, int key) {
        if (warpgroup == 0)
            step_as_first(work, sizes, key);
        else
            step_as_second(work, sizes, key);
    }
};
