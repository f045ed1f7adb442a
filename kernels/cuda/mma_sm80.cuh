// Tensor cores, asynchronous copies and conversions of sm80 and newer, as PTX: NVRTC comes without
// the toolkit's headers.
#pragma once

// Two 16-bit elements in a register, the first in the lower half; an address in shared memory.
typedef unsigned int Pair;
typedef unsigned int Shared;

#define DEVICE static __device__ __forceinline__

DEVICE Shared shared_address(const void *pointer) {
    return static_cast<Shared>(__cvta_generic_to_shared(pointer));
}

// ------------------------------------------------------------------------------------- copies

// 16 bytes past the L1 cache, which has nothing of K and V to keep, and the rest of their 128 bytes
// into the L2 cache.
DEVICE void copy_16(Shared to, const void *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}

// The same, or 16 bytes of zeros: then nothing is read, wherever `from` points.
DEVICE void copy_16_or_zero(Shared to, const void *from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(inside ? 16 : 0)
                 : "memory");
}

// Copies are waited for by the group: all that this thread has begun since the last `end_group`.
DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most PENDING of this thread's groups are under way.
template <int PENDING> DEVICE void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ----------------------------------------------------------------------------------- matrices

// Four 8 x 8 matrices. Lanes 8 i to 8 i + 7 hold the addresses of the rows of matrix i; a lane gets
// elements 2 (lane % 4) and the next of row lane / 4.
DEVICE void load_matrices(Pair (&to)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// The same of the transposed matrices.
DEVICE void load_transposed(Pair (&to)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// Two of them, whose rows lanes 0 to 15 hold.
DEVICE void load_two_transposed(Pair (&to)[4], Shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(row)
                 : "memory");
}

// sum (16 x 8) += a (16 x 16) b (16 x 8). A lane holds of `sum` columns 2 (lane % 4) and the next,
// of row lane / 4 in sum[0] and sum[1], of row 8 + lane / 4 in sum[2] and sum[3].
template <bool IS_BF16>
DEVICE void multiply(float (&sum)[4], const Pair (&a)[4], Pair b0, Pair b1) {
    if constexpr (IS_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ------------------------------------------------------------------------------------ numbers

template <bool IS_BF16> DEVICE Pair rounded(float low, float high) {
    Pair both;
    if constexpr (IS_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Within 2 units in the last place; -inf gives 0 (PTX ISA, ex2).
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Of normal numbers, within 1 unit in the last place.
DEVICE float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float fast_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The number itself. What depends on it is computed here and not kept in registers from before.
DEVICE int computed_anew(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// ----------------------------------------------------------------------------- shared memory

DEVICE void store_pair(Shared to, Pair both) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(both) : "memory");
}

DEVICE uint4 load_16(Shared from) {
    uint4 found;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "r"(from)
                 : "memory");
    return found;
}
