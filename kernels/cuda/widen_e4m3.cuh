// Converts V from e4m3 to fp16, for p @ v in fp16 (FP16_PV).
//
// A CTA converts WIDEN_KEYS keys of one head. A thread takes 16 elements of a row at a time.
#pragma once

#include "cuda/e4m3.cuh"

constexpr int WIDEN_KEYS = 128;
constexpr int ROW_PARTS = HEAD_DIM_V / 16;
constexpr int WIDEN_THREADS = 256;

DEVICE uint4 widened(u32 a, u32 b) {
    return {f16_of_e4m3<0>(a), f16_of_e4m3<1>(a), f16_of_e4m3<0>(b), f16_of_e4m3<1>(b)};
}

// Converts V (batch, heads_kv, seqlen_k, HEAD_DIM_V) to `wide`, which is contiguous. Strides of V
// are in units of 16 bytes.
extern "C" __global__ void __launch_bounds__(WIDEN_THREADS)
    widen_v(const uint4* v, uint4* wide, int heads_kv, int seqlen_k, long long v_batch,
            long long v_head, long long v_key) {
    int pieces = (seqlen_k + WIDEN_KEYS - 1) / WIDEN_KEYS;
    int first = blockIdx.x % pieces * WIDEN_KEYS, head = blockIdx.x / pieces;
    int parts = min(WIDEN_KEYS, seqlen_k - first) * ROW_PARTS;
    v += head / heads_kv * v_batch + head % heads_kv * v_head + first * v_key;
    wide += ((long long)head * seqlen_k + first) * (2 * ROW_PARTS);
#pragma unroll 4
    for (int i = threadIdx.x; i < parts; i += WIDEN_THREADS) {
        uint4 x = v[i / ROW_PARTS * v_key + i % ROW_PARTS];
        wide[2 * i] = widened(x.x, x.y);
        wide[2 * i + 1] = widened(x.z, x.w);
    }
}
