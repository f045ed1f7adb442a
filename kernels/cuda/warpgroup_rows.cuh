// The 64 query rows of one consumer warpgroup: mask, softmax, probabilities and output, in
// registers.
//
// Included by attention_fwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

#include "cuda/two_level_sums.cuh"

// The address of a unit of 16 bytes of a row, in a chunk with rows of WIDTH bytes.
template <int WIDTH>
DEVICE u32 swizzled_address(u32 chunk, int row, int unit) {
    constexpr int SHIFT = WIDTH == 128 ? 0 : WIDTH == 64 ? 1 : 2, UNITS = WIDTH / 16;
    return chunk + row * WIDTH + ((unit ^ ((row >> SHIFT) % UNITS)) << 4);
}

// The softmax and the output of the rows. Scores and output lie in registers as WGMMA leaves them:
// see wgmma.cuh. Each pair has one element for each of the lane's two rows.
struct RowState {
    float out[V_COLUMNS / 2];
    u32 p[P_IN_SMEM ? 1 : BLOCK_N / (E4M3_PV ? 8 : 4)];  // probabilities, as a left operand
    float max_log2[2];        // of scores times scale_log2; up to THRESHOLD_LOG2 too low
    float sum[2];             // of this lane's columns
    float row_scale[2];       // the factor of the output of earlier steps, from the last softmax
    float output_scale[2];    // the factor of the output in the end: v_descale / sum
    // PROMOTES, blocks: the step in which the warpgroup looks at its sums, and the last that it had
    // added when it promoted them.
    int look_at, promoted;
    enum { NOT_PROMOTED = 1 << 30 };

    DEVICE void init() {
        promoted = NOT_PROMOTED;
#pragma unroll
        for (int i = 0; i < V_COLUMNS / 2; i++) out[i] = 0.0f;
        for (int half = 0; half < 2; half++) {
            max_log2[half] = MINUS_INFINITY;
            sum[half] = 0.0f;
        }
    }
};

// The operations of a warpgroup on the state of its rows. Warp w has rows 16 w to 16 w + 15. Of
// them a lane has row lane / 4 (half 0) and row lane / 4 + 8 (half 1), and of each 8 columns
// 2 (lane % 4) and 2 (lane % 4) + 1. Four lanes share a row.
struct Warpgroup {
    const Sizes& sizes;
    const Descales& descales;
    u32 shared;
    int warpgroup, lane, warp;
    float e4m3_scale_log2, v_descale;  // e4m3: of the tile's KV head
    int entry;                         // e4m3: (batch, KV head) of the tile

    // This lane's first row and column, counted from those of the block.
    DEVICE int lane_row() const { return 16 * warp + lane / 4; }
    DEVICE int lane_column() const { return 2 * (lane % 4); }

    // e4m3: reads the scales of entry `i`, a (batch, KV head).
    DEVICE void load_descales(int i) {
        auto of = [&](const float* scales) { return scales ? scales[i] : 1.0f; };
        // It must not be 0, which times the -inf of a masked score would be NaN.
        e4m3_scale_log2 = fmaxf(sizes.scale_log2 * of(descales.q) * of(descales.k), 1e-30f);
        v_descale = of(descales.v);
        entry = i;
    }

    DEVICE float scale_log2() const { return DTYPE_E4M3 ? e4m3_scale_log2 : sizes.scale_log2; }

    // Sets the scores of keys that a row does not see to -inf.
    template <int N>
    DEVICE void mask(float (&s)[N / 2], int first_row, int first_key) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int last = sizes.seqlen_k - 1;
            if (CAUSAL)
                last = min(last,
                           first_row + lane_row() + 8 * half + sizes.seqlen_k - sizes.seqlen_q);
            last -= first_key + lane_column();
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                float* pair = s + 4 * i + 2 * half;
                if (8 * i > last) pair[0] = MINUS_INFINITY;
                if (8 * i + 1 > last) pair[1] = MINUS_INFINITY;
            }
        }
    }

    // Scores become probabilities: FlashAttention-2, arXiv:2307.08691, algorithm 1, lines 8 and 9.
    // With RESCALE_THRESHOLD a maximum stays until a score exceeds it by that power of two. Then
    // row_scale is nearly always 1, and rescale_output has nothing to do.
    // EMPTY: some row may have seen no key yet.
    template <bool EMPTY, int N>
    DEVICE void softmax(float (&s)[N / 2], RowState& rows) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float block_max = MINUS_INFINITY;
#pragma unroll
            for (int i = 0; i < N / 8; i++)
                block_max = fmaxf(block_max, fmaxf(s[4 * i + 2 * half], s[4 * i + 2 * half + 1]));
            block_max = fmaxf(block_max, __shfl_xor_sync(~0u, block_max, 1));
            block_max = fmaxf(block_max, __shfl_xor_sync(~0u, block_max, 2)) * scale_log2();
            if (P_SCALE_LOG2 > 0) block_max -= P_SCALE_LOG2;
            float old_max = rows.max_log2[half];
            float new_max = THRESHOLD_LOG2
                                ? (block_max > old_max + THRESHOLD_LOG2 ? block_max : old_max)
                                : fmaxf(block_max, old_max);
            // -inf - -inf would be NaN.
            float shift = EMPTY && new_max == MINUS_INFINITY ? 0.0f : new_max;
            rows.row_scale[half] = exp2_approx(old_max - shift);
            rows.max_log2[half] = new_max;
            float block_sum = 0.0f;
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                float* pair = s + 4 * i + 2 * half;
                pair[0] = exp2_approx(fmaf(pair[0], scale_log2(), -shift));
                pair[1] = exp2_approx(fmaf(pair[1], scale_log2(), -shift));
                block_sum += pair[0] + pair[1];
            }
            rows.sum[half] = fmaf(rows.sum[half], rows.row_scale[half], block_sum);
        }
    }

    // A warp in which no maximum has grown skips it.
    DEVICE void rescale_output(RowState& rows) const {
        bool has_grown = rows.row_scale[0] != 1.0f || rows.row_scale[1] != 1.0f;
        if (RESCALE_THRESHOLD && !__any_sync(~0u, has_grown)) return;
#pragma unroll
        for (int i = 0; i < V_COLUMNS / 2; i++) rows.out[i] *= rows.row_scale[i / 2 % 2];
    }

    // Converts the first N probabilities of a block to V's dtype, for p @ v; the others are 0.
    template <int N>
    DEVICE void convert_p(const float (&s)[N / 2], RowState& rows) const {
        if constexpr (E4M3_PV)
            convert_p_e4m3<N>(s, rows);
        else
            convert_p_16bit<N>(s, rows);
    }

    // The keys of V^T are in the order of the registers, so that nothing moves between lanes.
    template <int N>
    DEVICE void convert_p_e4m3(const float (&s)[N / 2], RowState& rows) const {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 8; i++) {
            const float* x = s + (8 * (i / 2) + 2 * (i % 2)) % (N / 2);
            rows.p[i] = i < N / 8 ? cvt_e4m3_x4(x[0], x[1], x[4], x[5]) : 0;
        }
    }

    template <int N>
    DEVICE void convert_p_16bit(const float (&s)[N / 2], RowState& rows) const {
        auto pair = [&](int i) {
            const float* x = s + 2 * i % (N / 2);
            return i < N / 4 ? cvt_16bit_x2<IS_BF16 && !FP16_PV>(x[0], x[1]) : 0;
        };
        if constexpr (!P_IN_SMEM) {
#pragma unroll
            for (int i = 0; i < BLOCK_N / 4; i++) rows.p[i] = pair(i);
        } else {
            u32 to = shared + P_OFFSET + warpgroup * P_BYTES;
            int row = 16 * warp + lane % 16;
#pragma unroll
            for (int key = 0; key < BLOCK_N; key += 16) {
                u32 chunk = to + key / P_CHUNK * P_CHUNK_BYTES;
                int unit = key % P_CHUNK / 8 + lane / 16, i = key / 4;
                stmatrix_x4(swizzled_address<P_SWIZZLE>(chunk, row, unit), pair(i), pair(i + 1),
                            pair(i + 2), pair(i + 3));
            }
            fence_proxy_async();
            // Each warp's quarter of WGMMA reads only rows that the same warp wrote, as in
            // FlashAttention-3 (hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp).
            __syncwarp();
        }
    }

    DEVICE PromotedSums promoted_sums() const {
        int thread = 32 * warp + lane, number = blockIdx.x * WARPGROUPS + warpgroup;
        return {shared + O_OFFSET + warpgroup * O_BYTES + 16 * thread,
                descales.sums + number * (SUM_BYTES / 16) + thread};
    }

    // PROMOTES: the inverse mean magnitudes of V in 128 keys, some of which are of the block: the
    // largest of all columns in fp32, and from word 4 on those of the columns in bf16.
    enum { MAGNITUDE_WORDS = 4 + V_COLUMNS / 2 };
    DEVICE const u32* inverse_magnitudes(int block) const {
        int pieces = (sizes.seqlen_k + 127) / 128;
        return descales.inverse_magnitudes +
               ((long long)entry * pieces + block * BLOCK_N / 128) * MAGNITUDE_WORDS;
    }

    // PROMOTES: sets the last block that is added before the warpgroup looks at its sums.
    DEVICE void look_after(RowState& rows, int block) const {
        rows.look_at = block - 1 - INTRA_WG_OVERLAP;
        if (32 * lane < MAGNITUDE_WORDS) prefetch_l1(inverse_magnitudes(max(block, 0)) + 32 * lane);
    }

    // PROMOTES: looks at the sums, and promotes them where one has grown large. `block` is the last
    // that was added.
    //
    // A sum is large if it will have more than MOST_PRODUCTS typical products at the next look, if
    // it grows as before. Typical is the mean probability of its row times the mean magnitude of
    // its column. First all columns count as the smallest one, for a late look; then as they are,
    // for an earlier one.
    DEVICE void promote_large_sums(RowState& rows, int first_row, int block) const {
        constexpr int MOST_LOOK_BLOCKS = 2048 / BLOCK_N;
        constexpr float MOST_PRODUCTS = 896.0f;
        const u32* inverse = inverse_magnitudes(block);
        float largest_inverse = __uint_as_float(inverse[0]);
        int blocks = visible_blocks(sizes, first_row, 64), added = blocks - block;
        int own = min(rows.promoted, blocks) - block;  // blocks in the sums
        int late = min(3 * own, MOST_LOOK_BLOCKS), early = min(own, MOST_LOOK_BLOCKS);
        float means = 1.0f;  // the product of both rows' mean probabilities
        for (int half = 0; half < 2; half++) {
            float sum = rows.sum[half] + __shfl_xor_sync(~0u, rows.sum[half], 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            means *= sum * reciprocal_approx((added + INTRA_WG_OVERLAP) * BLOCK_N);
        }
        auto is_any_large = [&](float largest_product, int next) {
            float most = MOST_PRODUCTS * own * reciprocal_approx(own + next);
            return named_barrier_any(1 + WARPGROUPS + warpgroup, 128,
                                     largest_product > most * most * means);
        };
        // The TMA store of the tile before reads the place of the promoted sums.
        if (!SUMS_IN_GLOBAL && lane + warp == 0) tma_store_wait();
        int next = late;
        if (is_any_large(largest_product(rows.out, largest_inverse), late)) {
            next = early;
            if (is_any_large(largest_product(rows.out, inverse + 4 + lane % 4), early)) {
                bool is_first = rows.promoted == rows.NOT_PROMOTED;
                promoted_sums().promote(rows.out, rows.max_log2, is_first);
                rows.promoted = block;
                next = SUM_BLOCKS;
            }
        }
        look_after(rows, block - next);
    }

    // Adds the promoted sums to the output, at the end of a tile.
    DEVICE void add_promoted_sums(RowState& rows) const {
        if (!PROMOTES || rows.promoted == rows.NOT_PROMOTED) return;
        float scale[2];
        promoted_sums().get_scale(scale, rows.max_log2);
        promoted_sums().add_to(rows.out, scale);
    }

    // Writes lse, and computes output_scale: the inverse row sums, times the scale of V.
    DEVICE void finalize(RowState& rows, float* lse, int first_row) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float row_sum = rows.sum[half];
            row_sum += __shfl_xor_sync(~0u, row_sum, 1);
            row_sum += __shfl_xor_sync(~0u, row_sum, 2);
            // A row that sees no key has the sum 0, and gives 0 and -inf.
            rows.output_scale[half] = row_sum != 0.0f ? 1.0f / row_sum : 0.0f;
            if (DTYPE_E4M3) rows.output_scale[half] *= v_descale;
            int row = first_row + lane_row() + 8 * half;
            if (lane % 4 == 0 && row < sizes.seqlen_q)
                lse[row] = row_sum != 0.0f ? (rows.max_log2[half] + log2_approx(row_sum)) * LN_2
                                           : MINUS_INFINITY;
        }
    }

    // Writes chunks [FIRST, FIRST + COUNT) of the output to shared memory, for a TMA store.
    template <int FIRST, int COUNT>
    DEVICE void write_output(const RowState& rows, u32 to) const {
        // All warps have read what it overwrites.
        named_barrier_sync(1 + WARPGROUPS + warpgroup, 128);
        const float(&scale)[2] = rows.output_scale;
        int row = 16 * warp + lane % 16;
        constexpr int COLUMNS = (FIRST + COUNT) * CHUNK;
        constexpr int END = COLUMNS < V_COLUMNS ? COLUMNS : V_COLUMNS;
#pragma unroll
        for (int column = FIRST * CHUNK; column < END; column += 16) {
            const float* x = rows.out + column / 2;
            u32 chunk = to + (column / CHUNK - FIRST) * Q_CHUNK_BYTES;
            int unit = column % CHUNK / 8 + lane / 16;
            stmatrix_x4(swizzled_address<SWIZZLE_BYTES>(chunk, row, unit),
                        cvt_16bit_x2<IS_BF16>(x[0] * scale[0], x[1] * scale[0]),
                        cvt_16bit_x2<IS_BF16>(x[2] * scale[1], x[3] * scale[1]),
                        cvt_16bit_x2<IS_BF16>(x[4] * scale[0], x[5] * scale[0]),
                        cvt_16bit_x2<IS_BF16>(x[6] * scale[1], x[7] * scale[1]));
        }
        fence_proxy_async();
        named_barrier_sync(1 + WARPGROUPS + warpgroup, 128);
    }
};
