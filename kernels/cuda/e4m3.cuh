// Numbers in e4m3, converted to fp16, which holds them exactly.
#pragma once

#include "cuda/ptx.cuh"

// Two numbers in e4m3 as two in fp16: those in the low or the high half of x.
template <int HALF>
DEVICE u32 f16_of_e4m3(u32 x) {
    u32 y;
    asm("{ .reg .b16 half0, half1;\n"
        "mov.b32 {half0, half1}, %1;\n"
        "cvt.rn.f16x2.e4m3x2 %0, half0; }"
        : "=r"(y)
        : "r"(HALF ? x >> 16 : x));
    return y;
}
