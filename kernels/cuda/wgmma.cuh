// WGMMA, the matrix product of a warpgroup (PTX ISA, "wgmma"): D is 64 x N in fp32, N a multiple of
// 16.
//
// The thread of lane l in warp w holds rows 16 w + l / 4 and 16 w + l / 4 + 8. d[4 j] and
// d[4 j + 1] are columns 8 j + 2 (l % 4) and 8 j + 2 (l % 4) + 1 of the first row, d[4 j + 2] and
// d[4 j + 3] the same columns of the second.
#pragma once

#include "cuda/ptx.cuh"

// The types of A and B. One instruction sums over 32 bytes of a row.
enum OperandType { E4M3, FP16, BFLOAT16 };
#if DTYPE_E4M3
#define OPERANDS E4M3
#elif DTYPE_FP16
#define OPERANDS FP16
#else
#define OPERANDS BFLOAT16
#endif

// Shape and types of the instruction, and how it says that A and B lie by rows or by columns: with
// 16 bits B may lie by rows (operand e of `ss`, always in `rs`), with 8 bits it may not.
#define KIND_E4M3 "k32.f32.e4m3.e4m3 "
#define KIND_FP16 "k16.f32.f16.f16 "
#define KIND_BFLOAT16 "k16.f32.bf16.bf16 "
#define SS_ORDER_E4M3(e) ""
#define SS_ORDER_FP16(e) ", 0, %" #e
#define SS_ORDER_BFLOAT16 SS_ORDER_FP16
#define RS_ORDER_E4M3 ""
#define RS_ORDER_FP16 ", 1"
#define RS_ORDER_BFLOAT16 RS_ORDER_FP16

// ---------------------------------------------------------------------- operands in shared memory

// The matrix descriptor (see the PTX ISA) of a tile whose chunks have rows of WIDTH bytes, swizzled
// in groups of 8 rows. `stride_bytes` is from one group of 8 rows to the next; `leading_bytes` from
// one chunk to the next, where B lies by rows.
template <int WIDTH>
DEVICE u64 matrix_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes) {
    constexpr u64 swizzle = WIDTH == 128 ? 1 : WIDTH == 64 ? 2 : 3;
    return (swizzle << 62) | ((u64)((stride_bytes & 0x3FFFF) >> 4) << 32) |
           ((u64)((leading_bytes & 0x3FFFF) >> 4) << 16) | ((address & 0x3FFFF) >> 4);
}

// ------------------------------------------------------------------------------- order and waiting

// Orders earlier accesses to the operands' registers before the products.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Makes a group of the products issued since the group before.
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING groups are unfinished.
template <int PENDING>
DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving accesses to these registers across it. The compiler does not know
// that an unfinished product still reads or writes them.
template <int N>
DEVICE void wgmma_fence_operand(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N>
DEVICE void wgmma_fence_operand(u32 (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i])::"memory");
}

// ------------------------------------------------------------------------------------ the products

// d += a b. ss: A and B are in shared memory, B by columns (as B^T) or with BY_ROWS by rows. rs: A
// is in registers, B in shared memory by rows, e4m3 by columns. With `add` = 0 (ADD = 0) d = a b.
template <int N, OperandType TYPE = OPERANDS>
struct Wgmma;

// Inline PTX numbers its operands. R<k> are the names of the first 8 k, the accumulator; D<k> are
// the constraints that bind them.
#define R1 "%0,%1,%2,%3,%4,%5,%6,%7"
#define R2 R1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define R3 R2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define R4 R3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define R5 R4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define R6 R5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define R7 R6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define R8 R7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define R9 R8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define R10 R9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define R11 R10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define R12 R11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define R13 R12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define R14 R13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define R15 R14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define R16 R15 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define EIGHT(i)                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define D1 EIGHT(0)
#define D2 D1, EIGHT(8)
#define D3 D2, EIGHT(16)
#define D4 D3, EIGHT(24)
#define D5 D4, EIGHT(32)
#define D6 D5, EIGHT(40)
#define D7 D6, EIGHT(48)
#define D8 D7, EIGHT(56)
#define D9 D8, EIGHT(64)
#define D10 D9, EIGHT(72)
#define D11 D10, EIGHT(80)
#define D12 D11, EIGHT(88)
#define D13 D12, EIGHT(96)
#define D14 D13, EIGHT(104)
#define D15 D14, EIGHT(112)
#define D16 D15, EIGHT(120)

// a, b, ... are the numbers of the operands behind the accumulator, from 8 k on.
#define WGMMA(T, N, k, a, b, c, e, f, g)                                                          \
    template <>                                                                                   \
    struct Wgmma<N, T> {                                                                          \
        template <int BY_ROWS = 0>                                                                \
        static DEVICE void ss(float (&d)[N / 2], u64 a_, u64 b_, int add) {                       \
            asm volatile("{ .reg .pred add; setp.ne.b32 add, %" #c ", 0;\n"                       \
                         "wgmma.mma_async.sync.aligned.m64n" #N KIND_##T "{" R##k "}, %" #a       \
                         ", %" #b ", add, 1, 1" SS_ORDER_##T(e) "; }"                             \
                         : D##k                                                                   \
                         : "l"(a_), "l"(b_), "r"(add), "n"(BY_ROWS));                             \
        }                                                                                         \
        template <int ADD = 1>                                                                    \
        static DEVICE void rs(float (&d)[N / 2], const u32* a_, u64 b_) {                         \
            asm volatile("{ .reg .pred add; setp.ne.b32 add, %" #g ", 0;\n"                       \
                         "wgmma.mma_async.sync.aligned.m64n" #N KIND_##T "{" R##k "}, {%" #a      \
                         ",%" #b ",%" #c ",%" #e "}, %" #f ", add, 1, 1" RS_ORDER_##T "; }"       \
                         : D##k                                                                   \
                         : "r"(a_[0]), "r"(a_[1]), "r"(a_[2]), "r"(a_[3]), "l"(b_), "n"(ADD));    \
        }                                                                                         \
    };
#define WGMMAS(T)                                        \
    WGMMA(T, 16, 1, 8, 9, 10, 11, 12, 13)                \
    WGMMA(T, 32, 2, 16, 17, 18, 19, 20, 21)              \
    WGMMA(T, 48, 3, 24, 25, 26, 27, 28, 29)              \
    WGMMA(T, 64, 4, 32, 33, 34, 35, 36, 37)              \
    WGMMA(T, 80, 5, 40, 41, 42, 43, 44, 45)              \
    WGMMA(T, 96, 6, 48, 49, 50, 51, 52, 53)              \
    WGMMA(T, 112, 7, 56, 57, 58, 59, 60, 61)             \
    WGMMA(T, 128, 8, 64, 65, 66, 67, 68, 69)             \
    WGMMA(T, 144, 9, 72, 73, 74, 75, 76, 77)             \
    WGMMA(T, 160, 10, 80, 81, 82, 83, 84, 85)            \
    WGMMA(T, 176, 11, 88, 89, 90, 91, 92, 93)            \
    WGMMA(T, 192, 12, 96, 97, 98, 99, 100, 101)          \
    WGMMA(T, 208, 13, 104, 105, 106, 107, 108, 109)      \
    WGMMA(T, 224, 14, 112, 113, 114, 115, 116, 117)      \
    WGMMA(T, 240, 15, 120, 121, 122, 123, 124, 125)      \
    WGMMA(T, 256, 16, 128, 129, 130, 131, 132, 133)
#if DTYPE_E4M3
WGMMAS(E4M3)
#if FP16_PV  // p @ v of attention in e4m3
WGMMAS(FP16)
#endif
#elif DTYPE_FP16
WGMMAS(FP16)
#else
WGMMAS(BFLOAT16)
#endif
