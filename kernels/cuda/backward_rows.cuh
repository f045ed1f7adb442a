// The kernels before and after the attention backward: row sums, and dQ's dtype. A CTA works on one
// block of BLOCK_M query rows of one head. The last blocks come first: the L2 cache still has what the
// kernel before wrote last, and the kernel after begins with what this one wrote last.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

#include "cuda/row_dots.cuh"

constexpr int ROW_THREADS = 256;
constexpr int UNITS = HEAD_DIM / 8;       // of 16 bytes in a row
constexpr int LANES = CHUNKS == 1 ? 8 : 16;  // that share a row
// Stands for -infinity among the three parts of a term: it is a number in bf16, and the sum of three
// of them is finite.
constexpr float MOST_NEGATIVE = -0x1p126f;

// In elements; the elements of a row are contiguous.
struct Strides {
    long long batch, head, row;
};

// The block of a CTA: rows from `first` on of a head's seqlen_q rows, which begin with the tensors'
// row `begin`.
struct Block {
    int number, batch, head, begin, first, seqlen_q;

    // Packed sequences have fewer blocks than there is room for.
    DEVICE bool exists() const { return !VARLEN || first < seqlen_q; }
    DEVICE bool has(int row) const { return row < BLOCK_M && first + row < seqlen_q; }
};

DEVICE Block block_of_cta(int heads, int seqlen_q, int blocks, const int* starts_q, int bounds) {
    const int number = gridDim.x - 1 - blockIdx.x, head = number / blocks, block = number % blocks;
    if (!VARLEN) return {number, head / heads, head % heads, 0, block * BLOCK_M, seqlen_q};
    // The last sequence whose blocks begin here or earlier.
    int sequence = 0;
    for (int end = bounds - 1; sequence + 1 < end;) {
        const int middle = (sequence + end) / 2;
        const bool here = first_block_number(starts_q[middle], middle) <= block;
        (here ? sequence : end) = middle;
    }
    const int begin = starts_q[sequence], length = starts_q[sequence + 1] - begin;
    const int first = (block - first_block_number(begin, sequence)) * BLOCK_M;
    return {number, 0, head, begin, first, length};
}

template <class T>
DEVICE T* at(T* tensor, const Strides& strides, const Block& block, int row) {
    return tensor + block.batch * strides.batch + block.head * strides.head + row * strides.row;
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
    const Block block = block_of_cta(heads, seqlen_q, blocks, starts_q, bounds);
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
        a[i] = *(const uint4*)(at(out, out_strides, block, row) + 8 * lane);
        b[i] = *(const uint4*)(at(dout, do_strides, block, row) + 8 * lane);
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
        sum = of_row == MINUS_INFINITY ? 0.0f : sum - *at(dlse, dlse_strides, block, row);
        store_term(lse_terms, to, lse_term(of_row, lse_factor));
        store_term(delta_terms, to, FOLD_ROW_TERMS ? -sum : sum);
    }
}
#endif

#if WRITE_DQ
// Writes dQ = scale * its accumulator.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    write_dq(const float* dq_sum, const Arrivals* arrivals, unsigned short* dq,
             const int* starts_q, int bounds, float scale, int heads, int seqlen_q, int blocks,
             Strides dq_strides) {
    constexpr int PITCH = COLUMNS + 8;  // elements of a row in shared memory, without conflicts
    __shared__ __align__(16) unsigned short rows[BLOCK_M * PITCH];
    const Block block = block_of_cta(heads, seqlen_q, blocks, starts_q, bounds);
    const int part = threadIdx.x / 128, thread = threadIdx.x % 128;
    const int column = (CHUNKS == 1 ? 0 : 64 * part) + thread / 32 * 16 + thread % 32 / 4;
    const int row = (CHUNKS == 1 ? DQ_ROWS * part : 0) + 2 * (thread % 4);
    const float4* from =
        (const float4*)(dq_sum + ((long long)block.number * DQ_PARTS + part) * DQ_FLOATS);
    wait_for_kernel_before();
    if (!block.exists()) return;
    arrivals += DQ_PARTS;
    // Where nothing was zeroed, a part that no CTA came to has no numbers: its rows see no key.
    const bool is_there = ZERO_DQ || arrivals[block.number * DQ_PARTS + part].count > 0;
    float4 all[DQ_ROWS / 8];
#pragma unroll
    for (int i = 0; i < DQ_ROWS / 8; i++) {
        all[i] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (is_there) all[i] = from[i * 128 + thread];
    }
#pragma unroll
    for (int i = 0; i < DQ_ROWS / 8; i++) {
        const float4 x = all[i];
        const u32 a = cvt_16bit_x2<IS_BF16>(x.x * scale, x.y * scale);
        const u32 b = cvt_16bit_x2<IS_BF16>(x.z * scale, x.w * scale);
        unsigned short* to = rows + (row + 8 * i) * PITCH + column;
        to[0] = a, to[PITCH] = a >> 16, to[8] = b, to[PITCH + 8] = b >> 16;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < BLOCK_M * LANES; i += ROW_THREADS) {
        const int own = i / LANES, unit = i % LANES;
        if (block.has(own) && unit < UNITS)
            *(uint4*)(at(dq, dq_strides, block, block.begin + block.first + own) + 8 * unit) =
                *(const uint4*)(rows + own * PITCH + 8 * unit);
    }
}
#endif
