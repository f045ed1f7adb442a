// V^T for 8-bit attention on Hopper, whose products read V along the keys only (PTX ISA, "wgmma": no
// transposed matrices but of 16 bits).
//
// The keys of V^T are in the order in which probabilities lie in registers. Of each 8 columns of an
// accumulator a lane holds 2, of each 16 columns of an 8-bit left operand 4 consecutive ones. With
// the bits of a column of the former c3 c2 c1 c0, lane c2 c1 holds those with any c3 and c0; as column
// c2 c1 c3 c0 of the latter they are where they must be, and nothing moves between lanes.
//
// It writes some words of four keys of all columns at a time, through shared memory, so that what it
// reads and writes lies together.
#pragma once

constexpr int WORDS = 32;  // words of four keys: rows of V^T leave in pieces of 128 bytes
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

// V (batch, heads_kv, seqlen_k, HEAD_DIM_V) as vt (batch, heads_kv, HEAD_DIM_V, 4 * words), keys in
// that order, zeros beyond seqlen_k. Both are words of four elements; strides of V are in 16 bytes.
extern "C" __global__ void __launch_bounds__(TRANSPOSE_THREADS)
    transpose_v(const u32* v, u32* vt, int heads_kv, int seqlen_k, int words, long long v_batch,
                long long v_head, long long v_key) {
    // Word w of column c lies at w ^ c / 4: lanes of 128 columns and more meet in no bank, either way.
    __shared__ u32 tile[HEAD_DIM_V][WORDS];
    int pieces = (words + WORDS - 1) / WORDS, first = blockIdx.x % pieces * WORDS;
    int head = blockIdx.x / pieces;  // of all batches
    v += 4 * (head / heads_kv * v_batch + head % heads_kv * v_head);
    vt += (long long)head * HEAD_DIM_V * words;
    for (int i = threadIdx.x; i < WORDS * COLUMN_WORDS; i += TRANSPOSE_THREADS) {
        int word = i / COLUMN_WORDS, column = i % COLUMN_WORDS;
        // The word of lane c2 c1 holds, from its lowest byte on, the keys with c3 c0 = 0, 1, 2, 3.
        int key = (first + word) / 4 * 16 + (first + word) % 4 * 2;
        u32 x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int mine = key + j / 2 * 8 + j % 2;
            x[j] = mine < seqlen_k ? v[4 * v_key * mine + column] : 0;
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
