// A consumer warpgroup of attention_decode_mla_cuda_sm90: it has the scores of every second block of
// keys, and half of the columns of the output.
//
// Included by attention_decode_mla_cuda_sm90.cu, whose sizes it uses. A lane has two of the 64 rows
// of the tile, 16 warp + lane / 4 and 8 more: see wgmma.cuh. Pairs have an element for each of them.
#pragma once

#include "cuda/mla_problem.cuh"
#include "cuda/numbers.cuh"
#include "cuda/wgmma.cuh"

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

    // Gives two numbers of the lane's rows to the other warpgroup, and returns that one's.
    DEVICE float2 exchanged(float first, float second, int barrier) const {
        const u32 to = shared + ROWS_OFFSET + 8 * (8 * warp + lane / 4);
        if (lane % 4 == 0) {
            st_shared(to + warpgroup * ROWS_BYTES, __float_as_uint(first));
            st_shared(to + warpgroup * ROWS_BYTES + 4, __float_as_uint(second));
        }
        named_barrier_sync(barrier, 256);
        return ld_shared_v2_f32(to + (1 - warpgroup) * ROWS_BYTES);
    }

    // Scores become probabilities, for the maximum of both warpgroups' blocks. Without a block of its
    // own a warpgroup has no scores. Returns the factors of the output so far.
    DEVICE float2 softmax(float (&s)[BLOCK_N / 2], bool has_block, float scale_log2) {
        float block_max[2] = {MINUS_INFINITY, MINUS_INFINITY}, row_scale[2];
        if (has_block)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int i = 0; i < BLOCK_N / 8; ++i)
                    block_max[half] = fmaxf(block_max[half], fmaxf(s[4 * i + 2 * half],
                                                                   s[4 * i + 2 * half + 1]));
                for (int step = 1; step < 4; step *= 2)
                    block_max[half] =
                        fmaxf(block_max[half], __shfl_xor_sync(~0u, block_max[half], step));
            }
        const float2 other = exchanged(block_max[0], block_max[1], 1);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float both = fmaxf(block_max[half], half ? other.y : other.x) * scale_log2;
            const float new_max = fmaxf(max_log2[half], both);
            const float shift = new_max == MINUS_INFINITY ? 0.0f : new_max;  // -inf - -inf is NaN
            row_scale[half] = exp2_approx(max_log2[half] - shift);
            max_log2[half] = new_max;
            float block_sum = 0.0f;
            if (has_block)
#pragma unroll
                for (int i = 0; i < BLOCK_N / 8; ++i) {
                    float* pair = s + 4 * i + 2 * half;
                    pair[0] = exp2_approx(fmaf(pair[0], scale_log2, -shift));
                    pair[1] = exp2_approx(fmaf(pair[1], scale_log2, -shift));
                    block_sum += pair[0] + pair[1];
                }
            sum[half] = fmaf(sum[half], row_scale[half], block_sum);
        }
        return make_float2(row_scale[0], row_scale[1]);
    }

    // Writes the probabilities over the last chunk of the block, whose scores are computed.
    DEVICE void write_probabilities(const float (&s)[BLOCK_N / 2], int stage) const {
        const u32 to = stage_address(shared, stage) + P_AT;
#pragma unroll
        for (int key = 0; key < BLOCK_N; key += 16) {
            const float* x = s + key / 2;
            stmatrix_x4(swizzled_address<P_SWIZZLE>(to, 16 * warp + lane % 16,
                                                    key / 8 + lane / 16),
                        cvt_16bit_x2<BF16>(x[0], x[1]), cvt_16bit_x2<BF16>(x[2], x[3]),
                        cvt_16bit_x2<BF16>(x[4], x[5]), cvt_16bit_x2<BF16>(x[6], x[7]));
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

    // Issues out += p @ v, of the block in a stage.
    DEVICE void issue_values(int stage) {
        const u32 tile = stage_address(shared, stage);
        const u64 a = matrix_descriptor<P_SWIZZLE>(tile + P_AT, 16, 8 * P_SWIZZLE);
        const u64 b = matrix_descriptor<128>(tile + warpgroup * (COLUMNS / 64) * CHUNK_BYTES,
                                             CHUNK_BYTES, 1024);
        wgmma_fence();
#pragma unroll
        for (int key = 0; key < BLOCK_N; key += 16)
            Wgmma<COLUMNS>::template ss<1>(out, a + (2 * key >> 4), b + (key * 128 >> 4), 1);
        wgmma_commit();
    }

    // Attends the rows to the two blocks from `key` on, or to one, if the split ends there.
    DEVICE void step(const Work& work, const Sizes& sizes, int key) {
        const int blocks = key + BLOCK_N < work.end ? 2 : 1, own = key + warpgroup * BLOCK_N;
        const int first = block % num_stages, second = (block + 1) % num_stages;
        const bool has_block = warpgroup < blocks;
        const int at = block + warpgroup, stage = at % num_stages;
        float s[BLOCK_N / 2];
        if (has_block) {
            compute_scores(s, stage, at / num_stages & 1);
            if (own + BLOCK_N > work.end || (CAUSAL && own + BLOCK_N > work.keys - sizes.seqlen_q))
                mask(s, work, sizes, own);
        }
        if (key + 2 * BLOCK_N >= work.end) release_queries();
        const float2 row_scale = softmax(s, has_block, sizes.scale_log2);
        if (has_block) {
            write_probabilities(s, stage);
            if (own + BLOCK_N > work.end) clear_values(stage, work.end - own);
            fence_proxy_async();
        }
        rescale_output(row_scale);
        named_barrier_sync(2, 256);
        issue_values(first);
        if (blocks == 2) {
            issue_values(second);
            wgmma_wait<1>();
            release_stage(first);
        }
        wgmma_wait<0>();
        wgmma_fence_operand(out);
        release_stage(blocks == 2 ? second : first);
        block += blocks;
    }
};
