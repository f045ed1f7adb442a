// The kernels before and after the attention backward: row sums, and dQ's dtype. A CTA works on one
// block of BLOCK_M query rows of one head. The last blocks come first: the L2 cache still has what the
// kernel before wrote last, and the kernel after begins with what this one wrote last; with
// EARLY_POSTPROCESS it begins with the first blocks, which are finished first. With GROUP_SPLITS the last
// CTAs of the kernel after work on dK or dV of a tile of keys each.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

#include "cuda/backward_blocks.cuh"
#include "cuda/row_dots.cuh"

constexpr int ROW_THREADS = 256;
constexpr int LANES = CHUNKS == 1 ? 8 : 16;  // that share a row
// Stands for -infinity among the three parts of a term: it is a number in bf16, and the sum of three
// of them is finite.
constexpr float MOST_NEGATIVE = -0x1p126f;

// The number of a CTA's block, the last one first.
DEVICE int from_last(int ctas) {
    return ctas - 1 - blockIdx.x;
}

#if PREPARE_ROWS
// Stores a term of a row: a number or, with FOLD_ROW_TERMS, its parts in bf16, which add up to it. Zeros
// for the other columns of a product are finite as the parts must be.
DEVICE void store_term(float* terms, long long row, float x) {
    if (!FOLD_ROW_TERMS) {
        terms[row] = x;
        return;
    }
    u32 parts[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        parts[i] = cvt_16bit_x2<true>(x, 0.0f) & 0xffff;
        x -= __uint_as_float(parts[i] << 16);
    }
    ((uint4*)terms)[row] = {parts[0] | parts[1] << 16, parts[2], 0, 0};
}

// Clears the count of tiles, and those of a block's parts.
DEVICE void clear(Arrivals* arrivals, const Block& block) {
    if (threadIdx.x >= DQ_PARTS) return;
    if (block.number == 0) arrivals[threadIdx.x] = {0, 0};
    if (block.exists()) arrivals[(block.number + 1) * DQ_PARTS + threadIdx.x] = {0, 0};
}

// The term of lse of a row; that of one which sees no key makes its probabilities 0.
DEVICE float lse_term(float lse, float factor) {
    const bool sees = lse != MINUS_INFINITY;  // NaN stays NaN
    const float term = sees ? lse * factor : -MINUS_INFINITY;
    if (!FOLD_ROW_TERMS) return term;
    return !sees || term < MOST_NEGATIVE ? MOST_NEGATIVE : term;
}

// Writes lse in powers of two and delta = rowsum(dout * out) - dlse, and zeros to dQ's accumulator
// or, without ZERO_DQ, only to the counts of its parts. Rows that see no key, and rows beyond
// seqlen_q, get lse = inf, so that their probabilities are 0. With FOLD_ROW_TERMS the terms are what is
// added to products: -lse / scale, at least MOST_NEGATIVE, and -delta.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    prepare_rows(const unsigned short* out, const unsigned short* dout, const float* lse,
                 const float* dlse, float* lse_terms, float* delta_terms, float* dq_sum,
                 Arrivals* arrivals, const int* starts_q, int bounds, float lse_factor, int heads,
                 int seqlen_q, int lse_rows, int blocks, Strides out_strides, Strides do_strides,
                 Strides dlse_strides) {
    constexpr int STEP = ROW_THREADS / LANES, PASSES = (BLOCK_M + STEP - 1) / STEP;
    const Block block = block_at<BLOCK_M>(from_last(gridDim.x), heads, seqlen_q, blocks, starts_q, bounds);
    const int lane = threadIdx.x % LANES, own = threadIdx.x / LANES;
    launch_dependents();
    clear(arrivals, block);
    if (!block.exists()) return;
    uint4 a[PASSES], b[PASSES];  // all loads are on their way before the first one is used
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        const int block_row = own + i * STEP, row = block.begin + block.first + block_row;
        a[i] = b[i] = {0, 0, 0, 0};
        if (!block.has(block_row) || lane >= UNITS) continue;
        a[i] = *(const uint4*)(block.at(out, out_strides, row) + 8 * lane);
        b[i] = *(const uint4*)(block.at(dout, do_strides, row) + 8 * lane);
    }
    float4* zeros = (float4*)(dq_sum + (long long)block.number * BLOCK_M * COLUMNS);
#pragma unroll
    for (int i = threadIdx.x; ZERO_DQ && i < BLOCK_M * COLUMNS / 4; i += ROW_THREADS)
        zeros[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    lse += (long long)(block.batch * heads + block.head) * lse_rows;
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        float sum = dot(a[i], b[i]);
#pragma unroll
        for (int other = 1; other < LANES; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
        const int block_row = own + i * STEP, row = block.begin + block.first + block_row;
        if (lane != 0 || block_row >= BLOCK_M) continue;
        const float of_row = block.has(block_row) ? lse[row] : MINUS_INFINITY;
        const long long to = (long long)block.number * BLOCK_M + block_row;
        sum = of_row == MINUS_INFINITY ? 0.0f : sum - *block.at(dlse, dlse_strides, row);
        store_term(lse_terms, to, lse_term(of_row, lse_factor));
        store_term(delta_terms, to, FOLD_ROW_TERMS ? -sum : sum);
    }
}
#endif

#if WRITE_DQ
#include "cuda/backward_convert.cuh"

#if GROUP_SPLITS > 1
constexpr int PITCH = COLUMNS + 8;  // elements of a row in shared memory, without conflicts

// Puts dK or dV of a tile of keys into shared memory: the sum of what its CTAs have written.
DEVICE void add_key_sums(const float* key_sums, int number, int key_tiles, bool is_dv, float factor,
                         unsigned short* rows) {
    const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    // Batches, then heads, have their tiles one after the other, each head once for each split.
    const long long first =
        (long long)(number / key_tiles) * GROUP_SPLITS * key_tiles + number % key_tiles;
    float4 sum[WIDTH / 8];
#pragma unroll
    for (int split = 0; split < GROUP_SPLITS; split++) {
        const long long of_split = first + (long long)split * key_tiles;
        const float4* from = (const float4*)(key_sums + ((2 * of_split + is_dv) * WARPGROUPS +
                                                         warpgroup) * KEY_SUM_FLOATS);
#pragma unroll
        for (int i = 0; i < WIDTH / 8; i++) {
            const float4 x = from[i * 128 + thread];
            if (split == 0) {
                sum[i] = x;
            } else {
                sum[i].x += x.x, sum[i].y += x.y, sum[i].z += x.z, sum[i].w += x.w;
            }
        }
    }
    // As WGMMA has accumulators: rows of a warp, and eight below; two adjacent columns.
    const int row = 64 * warpgroup + thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++) {
        u32* to = (u32*)(rows + row * PITCH + column + 8 * i);
        to[0] = cvt_16bit_x2<IS_BF16>(sum[i].x * factor, sum[i].y * factor);
        to[4 * PITCH] = cvt_16bit_x2<IS_BF16>(sum[i].z * factor, sum[i].w * factor);
    }
}

// Writes the keys of a tile that there are, from shared memory.
DEVICE void write_keys(const unsigned short* rows, const BlockOf<KEYS>& tile, unsigned short* to,
                       const Strides& strides) {
    __syncthreads();
    for (int i = threadIdx.x; i < KEYS * LANES; i += ROW_THREADS) {
        const int own = i / LANES, unit = i % LANES;
        if (tile.has(own) && unit < UNITS)
            *(uint4*)(tile.at(to, strides, tile.begin + tile.first + own) + 8 * unit) =
                *(const uint4*)(rows + own * PITCH + 8 * unit);
    }
}
#endif

// The tiles whose CTAs add to a block. With packed sequences those of its sequence; there are no tiles for
// keys behind the length that the call gives as the longest one.
DEVICE SeenTiles seen_by(const Block& block, const int* starts_k, int keys, int diagonal,
                         int window_keys) {
    if (VARLEN) {
        const int own = starts_k[block.sequence + 1] - starts_k[block.sequence];
        diagonal += own - block.length, keys = min(own, keys);
    }
    return seen_tiles(block.first, keys, diagonal, window_keys);
}

// Waits until so many CTAs have added to a block of dQ.
DEVICE void wait_for_additions(const Arrivals* arrivals, const Block& block, u32 additions) {
    if (threadIdx.x < DQ_PARTS) {
        const u32* count = &arrivals[(block.number + 1) * DQ_PARTS + threadIdx.x].count;
        while (ld_acquire(count) != additions) __nanosleep(100);
    }
    __syncthreads();
}

// Writes a block of dQ. Where nothing was zeroed, a part that no CTA came to has no numbers: its rows see
// no key.
DEVICE void write_block(const float* dq_sum, const Arrivals* arrivals, const DqOutput& output,
                        const Block& block) {
    constexpr int WARPS_OF_PART = ROW_THREADS / 32 / DQ_PARTS, TILES = TRANSPOSED_TILES / WARPS_OF_PART;
    static_assert(TRANSPOSED_TILES % WARPS_OF_PART == 0, "each warp has as many");
    const int warp = threadIdx.x / 32, part = warp / WARPS_OF_PART;
    const bool is_there = ZERO_DQ || arrivals[(block.number + 1) * DQ_PARTS + part].count > 0;
    const PartOfDq share{dq_sum, output, block, part, (int)threadIdx.x % 32};
    share.write<TILES>(warp % WARPS_OF_PART * TILES, is_there);
}

// Writes dQ. With GROUP_SPLITS the CTAs behind those of dQ write dK and dV.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    write_dq(const float* dq_sum, const Arrivals* arrivals, unsigned short* dq,
             const int* starts_q, const int* starts_k, int bounds, float scale, int heads, int seqlen_q,
             int blocks, int seqlen_k, int diagonal, int window_keys, Strides dq_strides
#if GROUP_SPLITS > 1
             , const float* key_sums, unsigned short* dk, unsigned short* dv, int heads_kv,
             int key_tiles, int dq_ctas, Strides dk_strides, Strides dv_strides) {
    __shared__ __align__(16) unsigned short rows[KEYS * PITCH];
    if (const int behind = (int)blockIdx.x - dq_ctas; behind >= 0) {
        const int tile = behind / 2, is_dv = behind % 2;
        const auto keys = block_at<KEYS>(tile, heads_kv, seqlen_k, key_tiles, starts_k, bounds);
        wait_for_kernel_before();
        if (!keys.exists()) return;
        add_key_sums(key_sums, tile, key_tiles, is_dv, is_dv ? 1.0f : scale, rows);
        return write_keys(rows, keys, is_dv ? dv : dk, is_dv ? dv_strides : dk_strides);
    }
#else
             ) {
    const int dq_ctas = gridDim.x;
#endif
    // The first heads of a batch are finished first. The last CTA waits for the end of the kernel before,
    // so that this one does not end earlier.
    const bool is_early = EARLY_POSTPROCESS && blockIdx.x + 1 < gridDim.x;
    const int number = EARLY_POSTPROCESS ? blockIdx.x : from_last(dq_ctas);
    const Block block = block_at<BLOCK_M>(number, heads, seqlen_q, blocks, starts_q, bounds);
    if (!is_early) wait_for_kernel_before();
    if (!block.exists()) return;
    if (is_early) {
        const SeenTiles seen = seen_by(block, starts_k, seqlen_k, diagonal, window_keys);
        wait_for_additions(arrivals, block, seen.count());
    }
    write_block(dq_sum, arrivals, {dq, dq_strides, scale}, block);
}
#endif
