// The rows of one warp: scores, softmax and output of 16 or 32 of them, in registers.
#pragma once

#include "cuda/ptx.cuh"
#include "cuda/swizzled_tile.cuh"

constexpr float LN_2 = 0.693147181f;
#define MINUS_INFINITY __int_as_float(0xff800000)

// What one warp knows of its rows. A lane has row lane / 4 of each 16 in half 0, that row + 8 in
// half 1, and four lanes share a row.
template <class SHAPE> struct Warp {
    static constexpr int M_TILES = SHAPE::M_TILES, D_STEPS = SHAPE::D_STEPS;
    static constexpr int S_TILES = SHAPE::S_TILES, O_TILES = SHAPE::O_TILES;
    static constexpr bool IS_BF16 = SHAPE::IS_BF16, KEEP_Q = SHAPE::KEEP_Q;
    static constexpr int LAG = SHAPE::LAG;  // RESCALE_THRESHOLD
    typedef typename SHAPE::QTile QTile;
    typedef typename SHAPE::KTile KTile;
    typedef typename SHAPE::VTile VTile;
    typedef typename SHAPE::OTile OTile;
    typedef float Scores[M_TILES][S_TILES][4];

    u32 q[M_TILES][KEEP_Q ? D_STEPS : 1][4];
    float out[M_TILES][O_TILES][4];
    float max_log2[M_TILES][2];  // of the scores times scale_log2, of late, at most LAG less
    float sum[M_TILES][2];       // of this lane's columns
    int lane, first_row;        // of the block's tile

    __device__ __forceinline__ void begin() {
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

    __device__ __forceinline__ void load_q(u32 tile, int m, int step, u32 (&to)[4]) const {
        const u32 rows = tile + QTile::at(0, 2 * step, lane % 16, lane / 16);
        ldmatrix_x4(to, rows + (first_row + 16 * m) * 16 * QTile::width(2 * step));
    }

    __device__ __forceinline__ void keep_q(u32 tile) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int step = 0; step < D_STEPS; ++step) load_q(tile, m, step, q[m][step]);
    }

    // s = q k^T
    __device__ __forceinline__ void scores(Scores &s, u32 q_tile, u32 k_tile) const {
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
                    load_q(q_tile, m, step, a[m]);
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

    // Keys that a row does not see score -inf. `seen` is how many keys from the block's first on
    // the row `first_row + lane / 4` sees, `more` how many more each further row does, and `there`
    // how many there are.
    __device__ __forceinline__ void mask(Scores &s, int seen, int more, int there) const {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int limit = min(seen + more * (16 * m + 8 * half), there) - 2 * (lane % 4);
#pragma unroll
                for (int n = 0; n < S_TILES; ++n)
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        if (8 * n + i >= limit) s[m][n][2 * half + i] = MINUS_INFINITY;
            }
    }

    // s becomes exp2(scale_log2 s - the row's maximum); what was summed so far is scaled to it. With
    // RESCALE_THRESHOLD a maximum stays until a score exceeds it by so many powers of two.
    template <bool MASKED>
    __device__ __forceinline__ void softmax(Scores &s, float scale_log2) {
        float decay[M_TILES][2];
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float highest = MINUS_INFINITY;
#pragma unroll
                for (int n = 0; n < S_TILES; ++n)
                    highest = fmaxf(highest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
                highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2)) * scale_log2;
                const float before = max_log2[m][half];
                const float now = highest > before + LAG ? highest : before;
                // A row that has seen no key yet: -inf - -inf would be NaN.
                const float shift = MASKED && now == MINUS_INFINITY ? 0.0f : now;
                decay[m][half] = exp2_approx(before - shift);
                max_log2[m][half] = now;
                float total = 0.0f;
#pragma unroll
                for (int n = 0; n < S_TILES; ++n)
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; ++i) {
                        s[m][n][i] = exp2_approx(fmaf(s[m][n][i], scale_log2, -shift));
                        total += s[m][n][i];
                    }
                sum[m][half] = fmaf(sum[m][half], decay[m][half], total);
            }
        rescale(decay);
    }

    // A warp in which no maximum has grown, as with RESCALE_THRESHOLD in most steps, does nothing.
    __device__ __forceinline__ void rescale(const float (&decay)[M_TILES][2]) {
        bool grown = LAG == 0;
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) grown |= decay[m][0] != 1.0f || decay[m][1] != 1.0f;
        if (LAG && !__any_sync(~0u, grown)) return;
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int o = 0; o < O_TILES; ++o)
#pragma unroll
                for (int i = 0; i < 4; ++i) out[m][o][i] *= decay[m][i / 2];
    }

    // out += s v. A sum of q k^T lies in registers as a factor of the next product does.
    __device__ __forceinline__ void add_values(const Scores &s, u32 v_tile) {
#pragma unroll
        for (int n = 0; n < S_TILES; n += 2) {
            u32 a[M_TILES][4];
#pragma unroll
            for (int m = 0; m < M_TILES; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float(&from)[4] = s[m][n + i / 2];
                    a[m][i] = cvt_16bit_x2<IS_BF16>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
                }
#pragma unroll
            for (int o = 0; o < O_TILES; o += 2) {
                u32 b[4];  // 16 keys x 16 columns, 8 at an odd end
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

    // Divides by the sums, and writes the logsumexp of the `rows` that are there.
    __device__ __forceinline__ void finish(float *lse, int rows) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float total = sum[m][half];
                total += __shfl_xor_sync(~0u, total, 1);
                total += __shfl_xor_sync(~0u, total, 2);
                const bool none = total == 0.0f;  // a row that sees no key gives 0
                const float inverse = none ? 0.0f : reciprocal_approx(total);
#pragma unroll
                for (int o = 0; o < O_TILES; ++o) {
                    out[m][o][2 * half] *= inverse;
                    out[m][o][2 * half + 1] *= inverse;
                }
                const int row = 16 * m + 8 * half + lane / 4;
                const float log2 = max_log2[m][half] + log2_approx(total);
                if (lane % 4 == 0 && row < rows) lse[row] = none ? MINUS_INFINITY : log2 * LN_2;
            }
    }

    // The output by way of shared memory, so that 16 bytes of a row are written at a time.
    __device__ __forceinline__ void store(Element *to, int stride, int rows, u32 tile) const {
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
                const uint4 found = ld_shared_v4_u32(tile + 16 * (first * OTile::HEIGHT + place));
                Element *there = to + Offset(row) * stride + 8 * (first + chunk);
                *reinterpret_cast<uint4 *>(there) = found;
            }
        });
    }
};
