// Sums of products of rows of 16-bit numbers, without the tensor cores.
//
// Included by kernels that define IS_BF16.
#pragma once

#include "cuda/numbers.cuh"

// The numbers of a word of two in fp16.
DEVICE float2 widened_fp16(u32 word) {
    float2 x;
    asm("{ .reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high; }"
        : "=f"(x.x), "=f"(x.y)
        : "r"(word));
    return x;
}

// The numbers of a word of two 16-bit elements.
DEVICE float2 widened(u32 word) {
    if (IS_BF16) return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
    return widened_fp16(word);
}

// The sum of products of eight 16-bit numbers.
DEVICE float dot(uint4 a, uint4 b) {
    const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 u = widened(x[i]), v = widened(y[i]);
        sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
    }
    return sum;
}
