// Writes V^T for 8-bit attention on Hopper: WGMMA reads 8-bit operands along the summed dimension
// only (PTX ISA, "wgmma": only 16-bit matrices can be transposed), and p @ v sums over keys.
//
// The keys of V^T are in the order in which probabilities lie in registers. A lane holds 2 of each
// 8 columns of an accumulator, but 4 consecutive ones of each 16 columns of an 8-bit left operand.
// Write a column of the accumulator in bits as c3 c2 c1 c0: lane c2 c1 holds it, for any c3 and c0.
// As column c2 c1 c3 c0 of the operand it is in the lane that needs it, and nothing moves between
// lanes.
//
// A CTA transposes WORDS words of four keys, of all columns, through shared memory. It reads and
// writes 16 bytes at a time: 16 columns of a key, then 16 keys of a column.
#pragma once

constexpr int WORDS = 32;  // of four keys: 128 bytes of a row of V^T
constexpr int GROUPS = HEAD_DIM_V / 16;
constexpr int TRANSPOSE_THREADS = 256;
// Groups of columns that threads next to each other read: a power of two, up to 128 bytes of a key.
constexpr int NEAR_GROUPS = GROUPS >= 8 ? 8 : GROUPS > 2 ? 4 : GROUPS;

// Element j of row i becomes element i of row j.
__device__ __forceinline__ void transpose_bytes(u32 (&x)[4]) {
    u32 low01 = __byte_perm(x[0], x[1], 0x5140), high01 = __byte_perm(x[0], x[1], 0x7362);
    u32 low23 = __byte_perm(x[2], x[3], 0x5140), high23 = __byte_perm(x[2], x[3], 0x7362);
    x[0] = __byte_perm(low01, low23, 0x5410);
    x[1] = __byte_perm(low01, low23, 0x7632);
    x[2] = __byte_perm(high01, high23, 0x5410);
    x[3] = __byte_perm(high01, high23, 0x7632);
}

// A column's words lie at word ^ swizzle: threads of other groups then write to other banks, and
// four words stay together.
__device__ __forceinline__ u32 swizzle(u32 group) {
    return group % NEAR_GROUPS * (WORDS / NEAR_GROUPS) % WORDS;
}

// Transposes V (batch, heads_kv, seqlen_k, HEAD_DIM_V) to vt (batch, heads_kv, HEAD_DIM_V,
// 16 * words), with keys in that order and zeros beyond seqlen_k. A word of `v` and of `vt` has 16
// elements.
extern "C" __global__ void __launch_bounds__(TRANSPOSE_THREADS)
    transpose_v(const uint4* v, uint4* vt, int heads_kv, int seqlen_k, int words,
                long long v_batch, long long v_head, long long v_key) {
    __shared__ __align__(16) u32 tile[HEAD_DIM_V][WORDS];
    launch_dependents();  // attention needs no V^T for its first scores
    int pieces = (words + WORDS / 4 - 1) / (WORDS / 4), first = blockIdx.x % pieces * (WORDS / 4);
    int head = blockIdx.x / pieces;  // batch * heads_kv + head
    v += head / heads_kv * v_batch + head % heads_kv * v_head;
    vt += (long long)head * HEAD_DIM_V * words;
    constexpr u32 NEAR = NEAR_GROUPS, READS = (GROUPS + NEAR - 1) / NEAR * NEAR * WORDS;
#pragma unroll
    for (u32 step = 0; step < READS; step += TRANSPOSE_THREADS) {
        u32 i = step + threadIdx.x, word = i / NEAR % WORDS;
        u32 group = i / NEAR / WORDS * NEAR + i % NEAR;
        if (group >= GROUPS) continue;
        // A word holds, from its lowest byte on, the keys of c2 c1 with c3 c0 = 0, 1, 2, 3.
        int key = 16 * (first + word / 4) + word % 4 * 2;
        uint4 rows[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int row = key + j / 2 * 8 + j % 2;
            rows[j] = row < seqlen_k ? v[v_key * row + group] : uint4{0, 0, 0, 0};
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 x[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = k == 0 ? rows[j].x : k == 1 ? rows[j].y : k == 2 ? rows[j].z : rows[j].w;
            transpose_bytes(x);
#pragma unroll
            for (int j = 0; j < 4; j++)
                tile[16 * group + 4 * k + j][word ^ swizzle(group)] = x[j];
        }
    }
    __syncthreads();
    constexpr u32 WRITES = HEAD_DIM_V * WORDS / 4;
#pragma unroll
    for (u32 step = 0; step < WRITES; step += TRANSPOSE_THREADS) {
        u32 i = step + threadIdx.x, column = i / (WORDS / 4), word = i % (WORDS / 4);
        if (i < WRITES && first + word < words)
            vt[(long long)column * words + first + word] =
                *(const uint4*)(tile[column] + (4 * word ^ swizzle(column / 16)));
    }
}
