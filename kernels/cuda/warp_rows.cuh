// The query rows of one warp, 16 * M_TILES of them: scores, softmax and output, in registers.
#pragma once

#include "cuda/numbers.cuh"
#include "cuda/ptx.cuh"
#include "cuda/swizzled_tile.cuh"

// Of each 16 rows a lane has row lane / 4 (half 0) and row lane / 4 + 8 (half 1). Four lanes share
// a row. The last index of S and O is the register of an mma.sync result: 2 * half + column % 2.
template <class SHAPE>
struct WarpRows {
    static constexpr int M_TILES = SHAPE::M_TILES, D_STEPS = SHAPE::D_STEPS;
    static constexpr int S_TILES = SHAPE::S_TILES, O_TILES = SHAPE::O_TILES;
    static constexpr bool IS_BF16 = SHAPE::IS_BF16, KEEP_Q = SHAPE::KEEP_Q;
    static constexpr int THRESHOLD_LOG2 = SHAPE::THRESHOLD_LOG2;  // RESCALE_THRESHOLD
    typedef typename SHAPE::QTile QTile;
    typedef typename SHAPE::KTile KTile;
    typedef typename SHAPE::VTile VTile;
    typedef typename SHAPE::OTile OTile;
    typedef float Scores[M_TILES][S_TILES][4];

    u32 q[M_TILES][KEEP_Q ? D_STEPS : 1][4];
    float out[M_TILES][O_TILES][4];
    float max_log2[M_TILES][2];  // of scores times scale_log2; up to THRESHOLD_LOG2 too low
    float sum[M_TILES][2];       // of this lane's columns
    int lane, first_row;         // first_row counts from the CTA's first

    DEVICE void init() {
        lane = threadIdx.x % 32;
        first_row = threadIdx.x / 32 * 16 * M_TILES;
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
            max_log2[m][0] = max_log2[m][1] = MINUS_INFINITY;
            sum[m][0] = sum[m][1] = 0.0f;
#pragma unroll
            for (int o = 0; o < O_TILES; ++o)
#pragma unroll
                for (int i = 0; i < 4; ++i) out[m][o][i] = 0.0f;
        }
    }

    DEVICE void load_q_fragment(u32 tile, int m, int step, u32 (&to)[4]) const {
        const u32 lane_row = tile + QTile::at(0, 2 * step, lane % 16, lane / 16);
        ldmatrix_x4(to, lane_row + (first_row + 16 * m) * 16 * QTile::width(2 * step));
    }

    // Loads the queries into registers, for the whole loop.
    DEVICE void load_q(u32 tile) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int step = 0; step < D_STEPS; ++step) load_q_fragment(tile, m, step, q[m][step]);
    }

    // s = q k^T
    DEVICE void compute_scores(Scores& s, u32 q_tile, u32 k_tile) const {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int n = 0; n < S_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = 0.0f;
#pragma unroll
        for (int step = 0; step < D_STEPS; ++step) {
            u32 a[M_TILES][4];
#pragma unroll
            for (int m = 0; m < M_TILES; ++m)
                if constexpr (KEEP_Q) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) a[m][i] = q[m][step][i];
                } else {
                    load_q_fragment(q_tile, m, step, a[m]);
                }
#pragma unroll
            for (int n = 0; n < S_TILES; n += 2) {
                u32 b[4];  // 16 keys x 16 columns
                const int key = lane % 8 + lane / 16 * 8;
                ldmatrix_x4(b, k_tile + KTile::at(8 * n, 2 * step, key, lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < M_TILES; ++m) {
                    mma_m16n8k16<IS_BF16>(s[m][n], a[m], b[0], b[1]);
                    mma_m16n8k16<IS_BF16>(s[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    // Sets the scores of keys that a row does not see to -inf. The warp's row lane / 4 sees the
    // first `visible` keys of the block, row lane / 4 + r sees `more` * r more, and the block has
    // `keys`.
    DEVICE void mask(Scores& s, int visible, int more, int keys) const {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int limit = min(visible + more * (16 * m + 8 * half), keys) - 2 * (lane % 4);
#pragma unroll
                for (int n = 0; n < S_TILES; ++n)
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        if (8 * n + i >= limit) s[m][n][2 * half + i] = MINUS_INFINITY;
            }
    }

    // s becomes exp2(scale_log2 s - max_log2); output and row sums are rescaled to the new maximum.
    // With RESCALE_THRESHOLD a maximum stays until a score exceeds it by that power of two.
    // MASKED: some row may have seen no key yet.
    template <bool MASKED>
    DEVICE void softmax(Scores& s, float scale_log2) {
        float row_scale[M_TILES][2];
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float block_max = MINUS_INFINITY;
#pragma unroll
                for (int n = 0; n < S_TILES; ++n)
                    block_max = fmaxf(block_max, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                block_max = fmaxf(block_max, __shfl_xor_sync(~0u, block_max, 1));
                block_max = fmaxf(block_max, __shfl_xor_sync(~0u, block_max, 2)) * scale_log2;
                const float old_max = max_log2[m][half];
                const float new_max = block_max > old_max + THRESHOLD_LOG2 ? block_max : old_max;
                // -inf - -inf would be NaN.
                const float shift = MASKED && new_max == MINUS_INFINITY ? 0.0f : new_max;
                row_scale[m][half] = exp2_approx(old_max - shift);
                max_log2[m][half] = new_max;
                float block_sum = 0.0f;
#pragma unroll
                for (int n = 0; n < S_TILES; ++n)
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; ++i) {
                        s[m][n][i] = exp2_approx(fmaf(s[m][n][i], scale_log2, -shift));
                        block_sum += s[m][n][i];
                    }
                sum[m][half] = fmaf(sum[m][half], row_scale[m][half], block_sum);
            }
        rescale_output(row_scale);
    }

    // A warp in which no maximum has grown skips it. With RESCALE_THRESHOLD these are most steps.
    DEVICE void rescale_output(const float (&row_scale)[M_TILES][2]) {
        bool has_grown = THRESHOLD_LOG2 == 0;
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
            has_grown |= row_scale[m][0] != 1.0f || row_scale[m][1] != 1.0f;
        if (THRESHOLD_LOG2 && !__any_sync(~0u, has_grown)) return;
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int o = 0; o < O_TILES; ++o)
#pragma unroll
                for (int i = 0; i < 4; ++i) out[m][o][i] *= row_scale[m][i / 2];
    }

    // out += p v, where s holds the probabilities p. The registers of a q k^T result are, converted
    // to 16 bits, those of an mma.sync operand: nothing moves between lanes.
    DEVICE void add_values(const Scores& s, u32 v_tile) {
#pragma unroll
        for (int n = 0; n < S_TILES; n += 2) {
            u32 a[M_TILES][4];
#pragma unroll
            for (int m = 0; m < M_TILES; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float(&p)[4] = s[m][n + i / 2];
                    a[m][i] = cvt_16bit_x2<IS_BF16>(p[i % 2 * 2], p[i % 2 * 2 + 1]);
                }
#pragma unroll
            for (int o = 0; o < O_TILES; o += 2) {
                u32 b[4];  // 16 keys x 16 columns, or x 8 at the end of an odd O_TILES
                if (o + 1 < O_TILES)
                    ldmatrix_x4_trans(b, v_tile + VTile::at(8 * n, o, lane % 16, lane / 16));
                else
                    ldmatrix_x2_trans(b, v_tile + VTile::at(8 * n, o, lane % 16));
#pragma unroll
                for (int m = 0; m < M_TILES; ++m) {
                    mma_m16n8k16<IS_BF16>(out[m][o], a[m], b[0], b[1]);
                    if (o + 1 < O_TILES) mma_m16n8k16<IS_BF16>(out[m][o + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    // Divides the output by the row sums, and writes the logsumexp of the first `rows` rows. A row
    // that sees no key gives 0 and -inf.
    DEVICE void finalize(float* lse, int rows) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float row_sum = sum[m][half];
                row_sum += __shfl_xor_sync(~0u, row_sum, 1);
                row_sum += __shfl_xor_sync(~0u, row_sum, 2);
                const bool is_empty = row_sum == 0.0f;
                const float inverse = is_empty ? 0.0f : reciprocal_approx(row_sum);
#pragma unroll
                for (int o = 0; o < O_TILES; ++o) {
                    out[m][o][2 * half] *= inverse;
                    out[m][o][2 * half + 1] *= inverse;
                }
                const int row = 16 * m + 8 * half + lane / 4;
                const float lse_log2 = max_log2[m][half] + log2_approx(row_sum);
                if (lane % 4 == 0 && row < rows)
                    lse[row] = is_empty ? MINUS_INFINITY : lse_log2 * LN_2;
            }
    }

    // Writes the first `rows` rows of the output, by way of shared memory: a lane then writes 16
    // bytes of a row at a time. Each warp uses its own rows of the tile.
    DEVICE void store(Element* to, int stride, int rows, u32 tile) const {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int o = 0; o < O_TILES; ++o)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = first_row + 16 * m + 8 * half;
                    const u32 place = tile + OTile::at(0, o, lane / 4) + 4 * (lane % 4);
                    st_shared(place + row * 16 * OTile::width(o),
                              cvt_16bit_x2<IS_BF16>(out[m][o][2 * half], out[m][o][2 * half + 1]));
                }
        __syncwarp();
        for_panels<OTile>([&](int first, auto panel) {
            constexpr int width = decltype(panel)::value;
            const int chunk = lane % width;
#pragma unroll
            for (int more = 0; more < 16 * M_TILES; more += 32 / width) {
                const int row = more + lane / width;
                if (row >= min(rows, 16 * M_TILES)) break;
                const int place = OTile::swizzled(width, row, chunk) + (first_row + row) * width;
                const uint4 x = ld_shared_v4_u32(tile + 16 * (first * OTile::HEIGHT + place));
                Element* row_to = to + Offset(row) * stride + 8 * (first + chunk);
                *reinterpret_cast<uint4*>(row_to) = x;
            }
        });
    }
};
