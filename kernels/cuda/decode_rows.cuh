// The query rows of one KV head, 8 * N_TILES of them, in the registers of one warp: scores, softmax,
// output, and the sum of two softmaxes.
//
// Keys are the rows of the first product, and dimensions of the second one, so that few queries fill
// a tile of mma.sync (16 x 8): S^T = K Q^T and O^T = V^T P^T. A lane has of each tile of S^T the keys
// lane / 4 and lane / 4 + 8, of O^T the dimensions lane / 4 and lane / 4 + 8, and of both the rows
// 2 (lane % 4) and 2 (lane % 4) + 1. The last index is that of the register: 2 * half + row % 2.
//
// A cache in e4m3 is converted to fp16, which holds its numbers exactly. ldmatrix moves two of them
// as one element, so a lane has the dimensions 4 (lane % 4) to 4 (lane % 4) + 3 of a key, and the
// queries are loaded in that way too (see load_queries); of O^T it has the dimensions
// 2 (lane / 4) and 2 (lane / 4) + 1.
#pragma once

#include "cuda/e4m3.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx.cuh"
#include "cuda/swizzled_tile.cuh"

// Returns x * a + y * b, rounded in the same way wherever it is.
DEVICE float weighted_sum(float x, float a, float y, float b) {
    return __fmaf_rn(x, a, __fmul_rn(y, b));
}

// The weights of two parts of a softmax with these maxima, in units of log2; `left` becomes the
// greater one. A part that has seen no key has -inf and weighs nothing.
struct Weights {
    float left, right;

    DEVICE Weights(float& left_max, float right_max) {
        const float new_max = fmaxf(left_max, right_max);
        const float shift = new_max == MINUS_INFINITY ? 0.0f : new_max;
        left = exp2_approx(left_max - shift);
        right = exp2_approx(right_max - shift);
        left_max = new_max;
    }
};

// The end of a row: its output is multiplied by `scale`.
struct RowEnd {
    float scale, lse;

    // From the maximum and the sum of a row, and the logit of its head without a value, if it has
    // one. A row that has seen nothing gives 0 and -inf.
    DEVICE RowEnd(float max_log2, float sum, const float* sink) {
        float of_rest = 1.0f;
        if (sink != nullptr) {
            const Weights weights(max_log2, *sink * 1.4426950408889634f);
            of_rest = weights.left;
            sum = weighted_sum(sum, weights.left, 1.0f, weights.right);
        }
        scale = sum > 0.0f ? __fdiv_rn(of_rest, sum) : 0.0f;
        lse = sum > 0.0f ? (max_log2 + log2_approx(sum)) * LN_2 : MINUS_INFINITY;
    }
};

template <class SHAPE>
struct DecodeRows {
    static constexpr int N_TILES = SHAPE::N_TILES, D_STEPS = SHAPE::D_STEPS;
    static constexpr int S_TILES = SHAPE::S_TILES, O_TILES = SHAPE::O_TILES;
    static constexpr bool IS_E4M3 = SHAPE::IS_E4M3;  // the cache
    static constexpr bool IS_BF16 = SHAPE::IS_BF16 && !IS_E4M3;  // the operands of products
    typedef typename SHAPE::KTile KTile;
    typedef typename SHAPE::VTile VTile;
    typedef float Scores[S_TILES][N_TILES][4];
    typedef float Factors[N_TILES][2];  // of each row

    float out[O_TILES][N_TILES][4];
    float max_log2[N_TILES][2];  // of scores times scale_log2
    float sum[N_TILES][2];       // of this lane's keys, until `sum_lanes`

    DEVICE void init() {
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
            max_log2[n][0] = max_log2[n][1] = MINUS_INFINITY;
            sum[n][0] = sum[n][1] = 0.0f;
#pragma unroll
            for (int o = 0; o < O_TILES; ++o)
#pragma unroll
                for (int i = 0; i < 4; ++i) out[o][n][i] = 0.0f;
        }
    }

    // s = k q^T
    static DEVICE void compute_scores(Scores& s, const u32 (&q)[D_STEPS][N_TILES][2], u32 k_tile) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int t = 0; t < S_TILES; ++t)
#pragma unroll
            for (int n = 0; n < N_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[t][n][i] = 0.0f;
#pragma unroll
        for (int step = 0; step < D_STEPS; step += 1 + IS_E4M3)
#pragma unroll
            for (int t = 0; t < S_TILES; ++t) {
                u32 a[4];
                if constexpr (IS_E4M3) {
                    u32 x[4];
                    ldmatrix_x4(x, k_tile + KTile::at(16 * t, step, lane % 16, lane / 16));
#pragma unroll
                    for (int next = 0; next < 2; ++next) {
                        a[0] = f16_of_e4m3<0>(x[2 * next]), a[2] = f16_of_e4m3<1>(x[2 * next]);
                        a[1] = f16_of_e4m3<0>(x[2 * next + 1]), a[3] = f16_of_e4m3<1>(x[2 * next + 1]);
                        multiply(s[t], a, q[step + next]);
                    }
                } else {
                    ldmatrix_x4(a, k_tile + KTile::at(16 * t, 2 * step, lane % 16, lane / 16));
                    multiply(s[t], a, q[step]);
                }
            }
    }

    // Adds the products of 16 rows and the query rows.
    static DEVICE void multiply(float (&to)[N_TILES][4], const u32 (&a)[4],
                                const u32 (&b)[N_TILES][2]) {
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) mma_m16n8k16<IS_BF16>(to[n], a, b[n][0], b[n][1]);
    }

    // s becomes exp2(scale_log2 s - max_log2); output and sums follow the new maximum.
    DEVICE void softmax(Scores& s, const Factors& scale_log2) {
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                float block_max = MINUS_INFINITY;
#pragma unroll
                for (int t = 0; t < S_TILES; ++t)
                    block_max = fmaxf(block_max, fmaxf(s[t][n][row], s[t][n][row + 2]));
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    block_max = fmaxf(block_max, __shfl_xor_sync(~0u, block_max, step));
                const float old_max = max_log2[n][row];
                const float new_max = fmaxf(old_max, block_max * scale_log2[n][row]);
                // -inf - -inf would be NaN.
                const float shift = new_max == MINUS_INFINITY ? 0.0f : new_max;
                const float row_scale = exp2_approx(old_max - shift);
                max_log2[n][row] = new_max;
                float block_sum = 0.0f;
#pragma unroll
                for (int t = 0; t < S_TILES; ++t)
#pragma unroll
                    for (int i = row; i < 4; i += 2) {
                        s[t][n][i] = exp2_approx(fmaf(s[t][n][i], scale_log2[n][row], -shift));
                        block_sum += s[t][n][i];
                    }
                sum[n][row] = fmaf(sum[n][row], row_scale, block_sum);
#pragma unroll
                for (int o = 0; o < O_TILES; ++o) {
                    out[o][n][row] *= row_scale;
                    out[o][n][row + 2] *= row_scale;
                }
            }
    }

    // out += v^T p, where s holds the probabilities p.
    DEVICE void add_values(const Scores& s, u32 v_tile) {
        const int lane = threadIdx.x % 32, key = lane % 8 + lane / 16 * 8;
#pragma unroll
        for (int t = 0; t < S_TILES; ++t) {
            u32 b[N_TILES][2];
#pragma unroll
            for (int n = 0; n < N_TILES; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    b[n][half] = movmatrix_trans(
                        cvt_16bit_x2<IS_BF16>(s[t][n][2 * half], s[t][n][2 * half + 1]));
#pragma unroll
            for (int o = 0; o < O_TILES; o += 1 + IS_E4M3) {
                u32 a[4];
                if constexpr (IS_E4M3) {
                    u32 x[4];
                    ldmatrix_x4_trans(x, v_tile + VTile::at(16 * t, o, key, lane / 8 % 2));
#pragma unroll
                    for (int i = 0; i < 4; ++i) x[i] = __byte_perm(x[i], 0, 0x3120);
#pragma unroll
                    for (int next = 0; next < 2; ++next) {
                        a[0] = f16_of_e4m3<0>(x[next]), a[1] = f16_of_e4m3<1>(x[next]);
                        a[2] = f16_of_e4m3<0>(x[next + 2]), a[3] = f16_of_e4m3<1>(x[next + 2]);
                        multiply(out[o + next], a, b);
                    }
                } else {
                    ldmatrix_x4_trans(a, v_tile + VTile::at(16 * t, 2 * o, key, lane / 8 % 2));
                    multiply(out[o], a, b);
                }
            }
        }
    }

    // The dimension of the output that a lane has in registers `half` of tile o.
    static DEVICE int dimension(int o, int half) {
        const int lane = threadIdx.x % 32;
        return 16 * o + (IS_E4M3 ? 2 * (lane / 4) + half : lane / 4 + 8 * half);
    }

    // All lanes of a row have its whole sum from here on.
    DEVICE void sum_lanes() {
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int row = 0; row < 2; ++row)
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    sum[n][row] += __shfl_xor_sync(~0u, sum[n][row], step);
    }

    // The softmax over the keys of `left`, which is replaced, and of this: `left` comes first in the
    // sum.
    DEVICE void add_to(DecodeRows& left) const {
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                const Weights weights(left.max_log2[n][row], max_log2[n][row]);
                left.sum[n][row] =
                    weighted_sum(left.sum[n][row], weights.left, sum[n][row], weights.right);
#pragma unroll
                for (int o = 0; o < O_TILES; ++o)
#pragma unroll
                    for (int i = row; i < 4; i += 2)
                        left.out[o][n][i] = weighted_sum(left.out[o][n][i], weights.left,
                                                         out[o][n][i], weights.right);
            }
    }

    static constexpr int KEPT_BYTES = 32 * 16 * N_TILES * (O_TILES + 1);  // of a warp

    // Writes the rows to shared memory, for another warp or for later.
    DEVICE void keep(u32 to) const {
        to += 16 * (threadIdx.x % 32);
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
            const float x[4] = {max_log2[n][0], max_log2[n][1], sum[n][0], sum[n][1]};
            st_shared_v4(to, x);
            to += 512;
#pragma unroll
            for (int o = 0; o < O_TILES; ++o, to += 512) st_shared_v4(to, out[o][n]);
        }
    }

    // Adds rows that `keep` has written, on the left or on the right of these.
    template <bool IS_LEFT>
    DEVICE void add_kept(u32 from) {
        from += 16 * (threadIdx.x % 32);
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
            const float4 x = ld_shared_v4_f32(from);
            const float kept_max[2] = {x.x, x.y}, kept_sum[2] = {x.z, x.w};
            float own_weight[2], kept_weight[2];
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                float first_max = IS_LEFT ? kept_max[row] : max_log2[n][row];
                const Weights weights(first_max, IS_LEFT ? max_log2[n][row] : kept_max[row]);
                max_log2[n][row] = first_max;
                own_weight[row] = IS_LEFT ? weights.right : weights.left;
                kept_weight[row] = IS_LEFT ? weights.left : weights.right;
                sum[n][row] = in_turn<IS_LEFT>(sum[n][row], own_weight[row], kept_sum[row],
                                               kept_weight[row]);
            }
            from += 512;
#pragma unroll
            for (int o = 0; o < O_TILES; ++o, from += 512) {
                const float4 y = ld_shared_v4_f32(from);
                const float kept[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    out[o][n][i] = in_turn<IS_LEFT>(out[o][n][i], own_weight[i % 2], kept[i],
                                                    kept_weight[i % 2]);
            }
        }
    }

    // A sum whose left term comes first, whichever is kept.
    template <bool IS_LEFT>
    static DEVICE float in_turn(float own, float own_weight, float kept, float kept_weight) {
        return IS_LEFT ? weighted_sum(kept, kept_weight, own, own_weight)
                       : weighted_sum(own, own_weight, kept, kept_weight);
    }
};

// The sum of a warp's leaves, added up as a binary tree whatever their number is. At most one node
// of each height waits for its right neighbour, in shared memory; a leaf, which is not wide, in
// registers.
template <class ROWS, bool IS_WIDE>
struct LeafTree {
    ROWS leaf;
    u32 nodes;  // where there is memory for the nodes of heights (0,) 1, 2, ...
    int count;

    // Adds the next leaf; is_last: `rows` then has the sum of all.
    DEVICE void push(ROWS& rows, bool is_last) {
        int left = count++;  // bit h: whether a node of height h waits
        if (!IS_WIDE) {
            if (left & 1) {
                rows.add_to(leaf);
                rows = leaf;
            } else if (!is_last) {
                leaf = rows;
                return;
            }
            left >>= 1;
        }
        u32 node = nodes;
#pragma unroll 1  // copies of the loop would take registers
        for (; left || !is_last; left >>= 1, node += ROWS::KEPT_BYTES) {
            if (left & 1) {
                rows.template add_kept<true>(node);
            } else if (!is_last) {
                rows.keep(node);
                return;
            }
        }
    }
};
