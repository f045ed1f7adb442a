// Products of 16-bit operands with B in shared memory by columns (as B^T). See wgmma.cuh, whose macros
// it uses. With `add` = 0 d = a b.
#pragma once

#include "cuda/wgmma.cuh"

#if DTYPE_FP16
#define KIND KIND_FP16
#else
#define KIND KIND_BFLOAT16
#endif

// d += a^T b: A in shared memory by columns, so that a^T has its rows together.
template <int N>
struct WgmmaTransposed;

// a, b and c are the numbers of the operands behind the accumulator, from 8 k on.
#define WGMMA_TRANSPOSED(N, k, a, b, c)                                                           \
    template <>                                                                                   \
    struct WgmmaTransposed<N> {                                                                   \
        static DEVICE void ss(float (&d)[N / 2], u64 a_, u64 b_, int add) {                       \
            asm volatile("{ .reg .pred add; setp.ne.b32 add, %" #c ", 0;\n"                       \
                         "wgmma.mma_async.sync.aligned.m64n" #N KIND "{" R##k "}, %" #a ", %" #b  \
                         ", add, 1, 1, 1, 0; }"                                                   \
                         : D##k                                                                   \
                         : "l"(a_), "l"(b_), "r"(add));                                           \
        }                                                                                         \
    };
WGMMA_TRANSPOSED(32, 2, 16, 17, 18)
WGMMA_TRANSPOSED(48, 3, 24, 25, 26)
WGMMA_TRANSPOSED(64, 4, 32, 33, 34)
WGMMA_TRANSPOSED(80, 5, 40, 41, 42)
WGMMA_TRANSPOSED(96, 6, 48, 49, 50)
WGMMA_TRANSPOSED(128, 8, 64, 65, 66)

// d += a b: A in registers.
template <int N>
struct WgmmaByColumns;

// a, b, ... are the numbers of the operands behind the accumulator, from 8 k on.
#define WGMMA_BY_COLUMNS(N, k, a, b, c, e, f, g)                                                  \
    template <>                                                                                   \
    struct WgmmaByColumns<N> {                                                                    \
        static DEVICE void rs(float (&d)[N / 2], const u32* a_, u64 b_, int add) {                \
            asm volatile("{ .reg .pred add; setp.ne.b32 add, %" #g ", 0;\n"                       \
                         "wgmma.mma_async.sync.aligned.m64n" #N KIND "{" R##k "}, {%" #a ",%" #b  \
                         ",%" #c ",%" #e "}, %" #f ", add, 1, 1, 0; }"                            \
                         : D##k                                                                   \
                         : "r"(a_[0]), "r"(a_[1]), "r"(a_[2]), "r"(a_[3]), "l"(b_), "r"(add));    \
        }                                                                                         \
    };
WGMMA_BY_COLUMNS(64, 4, 32, 33, 34, 35, 36, 37)
WGMMA_BY_COLUMNS(80, 5, 40, 41, 42, 43, 44, 45)
WGMMA_BY_COLUMNS(96, 6, 48, 49, 50, 51, 52, 53)
WGMMA_BY_COLUMNS(128, 8, 64, 65, 66, 67, 68, 69)
