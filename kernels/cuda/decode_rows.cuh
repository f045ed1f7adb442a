// The query rows of one KV head, 8 * N_TILES of them, in the registers of the warps of a CTA: scores,
// softmax, output, and the sum of two softmaxes. Of a block, each warp computes the scores of its own
// keys, and all warps read the probabilities of all keys in shared memory: each multiplies them with
// its own columns of the values. All warps have the same maxima and sums.
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

#include "cuda/decode_exchange.cuh"
#include "cuda/decode_sums.cuh"
#include "cuda/e4m3.cuh"
#include "cuda/numbers.cuh"
#include "cuda/ptx.cuh"
#include "cuda/swizzled_tile.cuh"

template <class SHAPE>
struct DecodeRows {
    static constexpr int N_TILES = SHAPE::N_TILES, D_STEPS = SHAPE::D_STEPS;
    static constexpr int CONSUMER_WARPS = SHAPE::CONSUMER_WARPS;
    static constexpr int S_TILES = SHAPE::S_TILES, O_TILES = SHAPE::O_TILES;  // of a warp
    static constexpr bool IS_E4M3 = SHAPE::IS_E4M3;  // the cache
    static constexpr bool IS_BF16 = SHAPE::IS_BF16 && !IS_E4M3;  // the operands of products
    typedef typename SHAPE::KTile KTile;
    typedef typename SHAPE::VTile VTile;
    static_assert(!IS_E4M3 || D_STEPS % 4 == 0, "a chunk of e4m3 has two steps");
    static_assert(!IS_E4M3 || O_TILES == 1 || O_TILES % 2 == 0, "two tiles of e4m3 come at once");
    typedef float Scores[S_TILES][N_TILES][4];
    typedef float Factors[N_TILES][2];  // of each row

    typedef float Out[O_TILES][N_TILES][4];

    Out out;
    float max_log2[N_TILES][2];  // of scores times scale_log2
    float sum[N_TILES][2];       // of this lane's keys, until `sum_keys`

    DEVICE void init() {
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
            max_log2[n][0] = max_log2[n][1] = MINUS_INFINITY;
            sum[n][0] = sum[n][1] = 0.0f;
        }
        clear(out);
    }

    static DEVICE int warp() { return threadIdx.x / 32; }

    // The first of the warp's keys of a block.
    static DEVICE int first_key() { return warp() * 16 * S_TILES; }

    template <int TILES>
    static DEVICE void clear(float (&x)[TILES][N_TILES][4]) {
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int n = 0; n < N_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) x[t][n][i] = 0.0f;
    }

    template <int TILES>
    static DEVICE void add(float (&to)[TILES][N_TILES][4], const float (&x)[TILES][N_TILES][4]) {
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int n = 0; n < N_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) to[t][n][i] += x[t][n][i];
    }

    // s = k q^T, of the warp's keys. Two sums, of half of the dimensions each, take half as long: a
    // product waits for the one before it, and the warp has few that are independent.
    static DEVICE void compute_scores(Scores& s, const u32 (&q)[D_STEPS][N_TILES][2], u32 k_tile) {
        Scores other;
        clear(s);
        clear(other);
        add_products<0>(s, q, k_tile);
        add_products<D_STEPS / 2>(other, q, k_tile);
        add(s, other);
    }

    // Adds the products of half of the dimensions, from a step on.
    template <int FIRST>
    static DEVICE void add_products(Scores& s, const u32 (&q)[D_STEPS][N_TILES][2], u32 k_tile) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int step = FIRST; step < FIRST + D_STEPS / 2; step += 1 + IS_E4M3)
#pragma unroll
            for (int t = 0; t < S_TILES; ++t) {
                u32 a[4];
                if constexpr (IS_E4M3) {
                    u32 x[4];
                    ldmatrix_x4(x, k_tile + KTile::at(first_key() + 16 * t, step, lane % 16, lane / 16));
#pragma unroll
                    for (int next = 0; next < 2; ++next) {
                        a[0] = f16_of_e4m3<0>(x[2 * next]), a[2] = f16_of_e4m3<1>(x[2 * next]);
                        a[1] = f16_of_e4m3<0>(x[2 * next + 1]), a[3] = f16_of_e4m3<1>(x[2 * next + 1]);
                        multiply(s[t], a, q[step + next]);
                    }
                } else {
                    ldmatrix_x4(a, k_tile + KTile::at(first_key() + 16 * t, 2 * step, lane % 16, lane / 16));
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

    // The greatest scores of the warp's keys, times scale_log2.
    static DEVICE void find_maxima(Factors& maxima, const Scores& s, const Factors& scale_log2) {
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                float most = MINUS_INFINITY;
#pragma unroll
                for (int t = 0; t < S_TILES; ++t)
                    most = fmaxf(most, fmaxf(s[t][n][row], s[t][n][row + 2]));
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
                maxima[n][row] = most * scale_log2[n][row];
            }
    }

    // s becomes exp2(scale_log2 s - max_log2); output and sums follow the maximum of all warps' keys.
    DEVICE void softmax(Scores& s, const Factors& scale_log2, const Exchange<SHAPE>& exchange) {
        Factors maxima;
        find_maxima(maxima, s, scale_log2);
        exchange.put_and_wait(exchange.maxima, maxima);
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
#pragma unroll
            for (int from = 0; from < CONSUMER_WARPS; ++from) {
                const float2 two = ld_shared_v2_f32(exchange.part(exchange.maxima, from, n));
                maxima[n][0] = fmaxf(maxima[n][0], two.x);
                maxima[n][1] = fmaxf(maxima[n][1], two.y);
            }
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                const float old_max = max_log2[n][row];
                const float new_max = fmaxf(old_max, maxima[n][row]);
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
    }

    // Writes the warp's probabilities for all warps, and waits for theirs.
    static DEVICE void put_probabilities(const Scores& s, const Exchange<SHAPE>& exchange) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
            const u32 row = exchange.probabilities + (8 * n + lane / 4) * exchange.ROW_BYTES +
                            2 * first_key() + lane % 4 * 4;
#pragma unroll
            for (int t = 0; t < S_TILES; ++t)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    st_shared(row + 32 * t + 16 * half,
                              movmatrix_trans(cvt_16bit_x2<IS_BF16>(s[t][n][2 * half],
                                                                    s[t][n][2 * half + 1])));
        }
        exchange.sync();
    }

    // out += v^T p, of all keys of the block and the warp's columns, in two sums
    DEVICE void add_values(u32 v_tile, const Exchange<SHAPE>& exchange) {
        const int lane = threadIdx.x % 32;
        const u32 p_row = exchange.probabilities + lane % 8 * exchange.ROW_BYTES + lane / 8 * 16;
        Out other;
        clear(other);
#pragma unroll
        for (int two = 0; two < exchange.KEYS / 16; two += 2) {
            u32 p[N_TILES][4];
#pragma unroll
            for (int n = 0; n < N_TILES; ++n)
                ldmatrix_x4(p[n], p_row + 8 * n * exchange.ROW_BYTES + 32 * two);
#pragma unroll
            for (int next = 0; next < 2; ++next) {
                u32 b[N_TILES][2];
#pragma unroll
                for (int n = 0; n < N_TILES; ++n)
                    b[n][0] = p[n][2 * next], b[n][1] = p[n][2 * next + 1];
                add_16_values(next ? other : out, v_tile, 16 * (two + next), b);
            }
        }
        add(out, other);
    }

    // The same for 16 keys, whose probabilities are in b.
    static DEVICE void add_16_values(Out& out, u32 v_tile, int key, const u32 (&b)[N_TILES][2]) {
        const int lane = threadIdx.x % 32, lane_key = lane % 8 + lane / 16 * 8;
#pragma unroll
        for (int o = 0; o < O_TILES; o += 1 + IS_E4M3) {
            u32 a[4];
            if constexpr (IS_E4M3) {  // a chunk has 16 dimensions
                const int chunk = warp() * O_TILES + o;
                u32 x[4];
                if constexpr (O_TILES % 2 == 0) {
                    ldmatrix_x4_trans(x, v_tile + VTile::at(key, chunk, lane_key, lane / 8 % 2));
                } else {
                    ldmatrix_x2_trans(x, v_tile + VTile::at(key, chunk, lane % 16));
                    x[2] = x[1];
                }
#pragma unroll
                for (int next = 0; next < 1 + (O_TILES % 2 == 0); ++next) {
                    const u32 low = __byte_perm(x[next], 0, 0x3120);
                    const u32 high = __byte_perm(x[next + 2], 0, 0x3120);
                    a[0] = f16_of_e4m3<0>(low), a[1] = f16_of_e4m3<1>(low);
                    a[2] = f16_of_e4m3<0>(high), a[3] = f16_of_e4m3<1>(high);
                    multiply(out[o + next], a, b);
                }
            } else {
                const int chunk = 2 * (warp() * O_TILES + o);
                ldmatrix_x4_trans(a, v_tile + VTile::at(key, chunk, lane_key, lane / 8 % 2));
                multiply(out[o], a, b);
            }
        }
    }

    // The dimension of the output that a lane has in registers `half` of tile o.
    static DEVICE int dimension(int o, int half) {
        const int lane = threadIdx.x % 32;
        return 16 * (warp() * O_TILES + o) + (IS_E4M3 ? 2 * (lane / 4) + half : lane / 4 + 8 * half);
    }

    // All lanes and warps have the whole sums of rows from here on.
    DEVICE void sum_keys(const Exchange<SHAPE>& exchange) {
#pragma unroll
        for (int n = 0; n < N_TILES; ++n)
#pragma unroll
            for (int row = 0; row < 2; ++row)
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    sum[n][row] += __shfl_xor_sync(~0u, sum[n][row], step);
        exchange.put_and_wait(exchange.sums, sum);
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
            sum[n][0] = sum[n][1] = 0.0f;
#pragma unroll
            for (int from = 0; from < CONSUMER_WARPS; ++from) {
                const float2 two = ld_shared_v2_f32(exchange.part(exchange.sums, from, n));
                sum[n][0] += two.x, sum[n][1] += two.y;
            }
        }
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

    // Writes the rows to shared memory, for later.
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

    // Adds rows that `keep` has written, on the left of these.
    DEVICE void add_kept(u32 from) {
        from += 16 * (threadIdx.x % 32);
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) {
            const float4 x = ld_shared_v4_f32(from);
            float left_max[2] = {x.x, x.y};
            const float left_sum[2] = {x.z, x.w};
            float left_weight[2], weight[2];
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                const Weights weights(left_max[row], max_log2[n][row]);
                left_weight[row] = weights.left, weight[row] = weights.right;
                max_log2[n][row] = left_max[row];
                sum[n][row] = weighted_sum(left_sum[row], left_weight[row], sum[n][row], weight[row]);
            }
            from += 512;
#pragma unroll
            for (int o = 0; o < O_TILES; ++o, from += 512) {
                const float4 y = ld_shared_v4_f32(from);
                const float left[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    out[o][n][i] = weighted_sum(left[i], left_weight[i % 2], out[o][n][i],
                                                weight[i % 2]);
            }
        }
    }
};

// The sum of leaves, added up as a binary tree whatever their number is. At most one node
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
                rows.add_kept(node);
            } else if (!is_last) {
                rows.keep(node);
                return;
            }
        }
    }
};
