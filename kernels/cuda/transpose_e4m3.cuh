// Writes V^T for 8-bit attention on Hopper: WGMMA reads 8-bit operands along the summed dimension
// only (PTX ISA, "wgmma": only 16-bit matrices can be transposed), and p @ v sums over keys.
//
// The keys of V^T are in the order in which probabilities lie in registers. A lane holds 2 of each
// 8 columns of an accumulator, but 4 consecutive ones of each 16 columns of an 8-bit left operand.
// Write a column of the accumulator in bits as c3 c2 c1 c0: lane c2 c1 holds it, for any c3 and c0.
// As column c2 c1 c3 c0 of the operand it is in the lane that needs it, and nothing moves between
// lanes.
//
// A CTA transposes WORDS words of four keys, of all columns, through shared memory, so that both
// its reads and its writes are contiguous.
#pragma once

#include "cuda/e4m3.cuh"

constexpr int WORDS = 32;                   // of four keys: 128 bytes of a row of V^T
constexpr int ROW_UNITS = HEAD_DIM_V / 16;  // of 16 elements
constexpr int TRANSPOSE_THREADS = 256;

// Element j of row i becomes element i of row j.
__device__ __forceinline__ void transpose_bytes(u32 (&x)[4]) {
    u32 low01 = __byte_perm(x[0], x[1], 0x5140), high01 = __byte_perm(x[0], x[1], 0x7362);
    u32 low23 = __byte_perm(x[2], x[3], 0x5140), high23 = __byte_perm(x[2], x[3], 0x7362);
    x[0] = __byte_perm(low01, low23, 0x5410);
    x[1] = __byte_perm(low01, low23, 0x7632);
    x[2] = __byte_perm(high01, high23, 0x5410);
    x[3] = __byte_perm(high01, high23, 0x7632);
}

// Word w of a column lies at w ^ swizzled(column), which avoids bank conflicts.
DEVICE int swizzled(int column) { return column / 16 * (HEAD_DIM_V > 64 ? 4 : 8) % WORDS; }

// Stores a word of four columns, whose rows have four elements of them each.
DEVICE void store_columns(u32 (&tile)[HEAD_DIM_V][WORDS], int column, int word, u32 a, u32 b, u32 c,
                          u32 d) {
    u32 x[4] = {a, b, c, d};
    transpose_bytes(x);
#pragma unroll
    for (int j = 0; j < 4; j++) tile[column + j][word ^ swizzled(column)] = x[j];
}

// Sums of two numbers in fp16.
DEVICE u32 add_f16x2(u32 a, u32 b) {
    u32 sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

// The sum of two numbers in fp16.
DEVICE float sum_of_f16x2(u32 x) {
    float low, high;
    asm("{ .reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high; }"
        : "=f"(low), "=f"(high)
        : "r"(x));
    return low + high;
}

// The magnitudes of four elements, summed to two in fp16.
DEVICE u32 sum_of_magnitudes(u32 x) {
    x &= 0x7F7F7F7F;
    return add_f16x2(f16_of_e4m3<0>(x), f16_of_e4m3<1>(x));
}

// Writes the inverse of each column's mean magnitude over `keys` keys: first the largest in fp32,
// and from word 4 on each in bf16. An attention kernel judges its sums by them.
DEVICE void write_inverse_magnitudes(const u32 (&tile)[HEAD_DIM_V][WORDS], u32* to, int keys) {
    __shared__ float inverse[HEAD_DIM_V];
    for (int i = threadIdx.x; i < 2 * HEAD_DIM_V; i += TRANSPOSE_THREADS) {
        // A thread adds one half of a column's words. A warp's threads read from different banks.
        int column = i / 2, first = i % 2 * 16 ^ column % 16 ^ swizzled(column);
        u32 sums = 0;
#pragma unroll
        for (int word = 0; word < WORDS / 2; word++)
            sums = add_f16x2(sums, sum_of_magnitudes(tile[column][word ^ first]));
        float sum = sum_of_f16x2(sums);
        sum += __shfl_xor_sync(~0u, sum, 1);
        inverse[column] = keys / fmaxf(sum, 1e-6f);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < HEAD_DIM_V / 2; i += TRANSPOSE_THREADS)
        to[4 + i] = cvt_16bit_x2<true>(inverse[2 * i], inverse[2 * i + 1]);
    if (threadIdx.x < 32) {
        float most = 0.0f;
        for (int i = threadIdx.x; i < HEAD_DIM_V; i += 32) most = fmaxf(most, inverse[i]);
        u32 bits = __reduce_max_sync(~0u, __float_as_uint(most));
        if (threadIdx.x == 0) to[0] = bits;
    }
}

// Transposes V (batch, heads_kv, seqlen_k, HEAD_DIM_V) to vt (batch, heads_kv, HEAD_DIM_V,
// 4 * words), with keys in that order and zeros beyond seqlen_k. Both consist of words of four
// elements. Strides of V are in units of 16 bytes.
extern "C" __global__ void __launch_bounds__(TRANSPOSE_THREADS)
    transpose_v(const uint4* v, u32* vt,
#if TWO_LEVEL_SUMS
                u32* inverse_magnitudes,
#endif
                int heads_kv, int seqlen_k, int words, long long v_batch, long long v_head,
                long long v_key) {
    __shared__ __align__(16) u32 tile[HEAD_DIM_V][WORDS];
    int pieces = (words + WORDS - 1) / WORDS, first = blockIdx.x % pieces * WORDS;
    int head = blockIdx.x / pieces;  // batch * heads_kv + head
    v += head / heads_kv * v_batch + head % heads_kv * v_head;
    vt += (long long)head * HEAD_DIM_V * words;
    for (int i = threadIdx.x; i < WORDS * ROW_UNITS; i += TRANSPOSE_THREADS) {
        int word = i / ROW_UNITS, unit = i % ROW_UNITS;
        // A word holds, from its lowest byte on, the keys of c2 c1 with c3 c0 = 0, 1, 2, 3.
        int key = (first + word) / 4 * 16 + (first + word) % 4 * 2;
        uint4 x[4] = {};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int row = key + j / 2 * 8 + j % 2;
            if (row < seqlen_k) x[j] = v[v_key * row + unit];
        }
        store_columns(tile, 16 * unit, word, x[0].x, x[1].x, x[2].x, x[3].x);
        store_columns(tile, 16 * unit + 4, word, x[0].y, x[1].y, x[2].y, x[3].y);
        store_columns(tile, 16 * unit + 8, word, x[0].z, x[1].z, x[2].z, x[3].z);
        store_columns(tile, 16 * unit + 12, word, x[0].w, x[1].w, x[2].w, x[3].w);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < HEAD_DIM_V * (WORDS / 4); i += TRANSPOSE_THREADS) {
        int column = i / (WORDS / 4), word = i % (WORDS / 4) * 4;
        if (first + word < words)
            *(uint4*)(vt + (long long)column * words + first + word) =
                *(const uint4*)&tile[column][word ^ swizzled(column)];
    }
#if TWO_LEVEL_SUMS
    inverse_magnitudes += (long long)blockIdx.x * (4 + HEAD_DIM_V / 2);
    write_inverse_magnitudes(tile, inverse_magnitudes, min(4 * WORDS, seqlen_k - 4 * first));
#endif
}
