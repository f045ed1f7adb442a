// What CUDA C++ adds to C++, for kernels whose inline PTX is translated (inline_ptx.py).
#pragma once

#include "ptx.h"

#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

template <class T> constexpr T min(T x, T y) { return y < x ? y : x; }
template <class T> constexpr T max(T x, T y) { return x < y ? y : x; }
inline float fabsf(float x) { return __builtin_fabsf(x); }
inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float fmaxf(float x, float y) { return y > x || x != x ? y : x; }

struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

inline unsigned char *dynamic_shared_memory() { return machine::dynamic_shared_memory(); }
inline size_t __cvta_generic_to_shared(const void *pointer) {
    const auto *byte = static_cast<const unsigned char *>(pointer);
    return machine::SHARED_BASE + (byte - dynamic_shared_memory());
}

inline void __syncthreads() { machine::sync_threads(); }
inline void __syncwarp() { machine::show({}); }
inline void __nanosleep(unsigned) {}

template <class T> T __shfl_sync(unsigned, T value, int lane) {
    machine::Shown own = {};
    __builtin_memcpy(own.words, &value, sizeof value);
    __builtin_memcpy(&value, machine::show(own)[lane].words, sizeof value);
    return value;
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int distance) {
    return __shfl_sync(mask, value, threadIdx.x % machine::WARP ^ distance);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, int distance) {
    const int lane = threadIdx.x % machine::WARP;
    return __shfl_sync(mask, value, lane < distance ? lane : lane - distance);
}
inline unsigned __ballot_sync(unsigned, bool value) {
    const machine::Shown *all = machine::show({{value}});
    unsigned found = 0;
    for (int lane = 0; lane < machine::WARP; ++lane)
        found |= unsigned(all[lane].words[0] != 0) << lane;
    return found;
}
inline int __reduce_add_sync(unsigned, int value) {
    const machine::Shown *all = machine::show({{unsigned(value)}});
    int sum = 0;
    for (int lane = 0; lane < machine::WARP; ++lane) sum += int(all[lane].words[0]);
    return sum;
}
inline int __reduce_max_sync(unsigned lanes, int value) {
    if (lanes == 1) return value;
    const machine::Shown *all = machine::show({{unsigned(value)}});
    for (int lane = 0; lane < machine::WARP; ++lane)
        value = max(value, int(all[lane].words[0]));
    return value;
}
inline int __reduce_min_sync(unsigned, int value) {
    const machine::Shown *all = machine::show({{unsigned(value)}});
    for (int lane = 0; lane < machine::WARP; ++lane)
        value = min(value, int(all[lane].words[0]));
    return value;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return u64(a) * b >> 32; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }

inline bool __any_sync(unsigned, bool value) {
    const machine::Shown *all = machine::show({{value}});
    for (int lane = 0; lane < machine::WARP; ++lane)
        if (all[lane].words[0]) return true;
    return false;
}

inline float2 make_float2(float x, float y) { return {x, y}; }
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}
inline float __int_as_float(unsigned bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
inline float __uint_as_float(unsigned bits) { return __int_as_float(bits); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned order) {
    const u64 both = u64(b) << 32 | a;
    unsigned made = 0;
    for (int i = 0; i < 4; i++) made |= (both >> 8 * (order >> 4 * i & 7) & 255) << 8 * i;
    return made;
}
