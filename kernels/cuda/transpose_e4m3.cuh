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

constexpr int WORDS = 32;  // of four keys: 128 bytes of a row of V^T
constexpr int COLUMN_WORDS = HEAD_DIM_V / 4;
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

// Transposes V (batch, heads_kv, seqlen_k, HEAD_DIM_V) to vt (batch, heads_kv, HEAD_DIM_V,
// 4 * words), with keys in that order and zeros beyond seqlen_k. Both consist of words of four
// elements. Strides of V are in units of 16 bytes.
extern "C" __global__ void __launch_bounds__(TRANSPOSE_THREADS)
    transpose_v(const u32* v, u32* vt, int heads_kv, int seqlen_k, int words, long long v_batch,
                long long v_head, long long v_key) {
    // Word w of column c lies at w ^ c / 4, which avoids bank conflicts on both sides.
    __shared__ u32 tile[HEAD_DIM_V][WORDS];
    int pieces = (words + WORDS - 1) / WORDS, first = blockIdx.x % pieces * WORDS;
    int head = blockIdx.x / pieces;  // batch * heads_kv + head
    v += 4 * (head / heads_kv * v_batch + head % heads_kv * v_head);
    vt += (long long)head * HEAD_DIM_V * words;
    for (int i = threadIdx.x; i < WORDS * COLUMN_WORDS; i += TRANSPOSE_THREADS) {
        int word = i / COLUMN_WORDS, column = i % COLUMN_WORDS;
        // A word holds, from its lowest byte on, the keys of c2 c1 with c3 c0 = 0, 1, 2, 3.
        int key = (first + word) / 4 * 16 + (first + word) % 4 * 2;
        u32 x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int row = key + j / 2 * 8 + j % 2;
            x[j] = row < seqlen_k ? v[4 * v_key * row + column] : 0;
        }
        transpose_bytes(x);
#pragma unroll
        for (int j = 0; j < 4; j++) tile[4 * column + j][word ^ column % WORDS] = x[j];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < HEAD_DIM_V * WORDS; i += TRANSPOSE_THREADS) {
        int column = i / WORDS, word = i % WORDS;
        if (first + word < words)
            vt[(long long)column * words + first + word] = tile[column][word ^ column / 4 % WORDS];
    }
}
