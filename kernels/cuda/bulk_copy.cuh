// Instructions that only the attention backward and decode need: copies by TMA without a tensor map, or
// from packed sequences, and others (PTX ISA).
#pragma once

#include "cuda/dependent_launch.cuh"
#include "cuda/ptx.cuh"

// Copies of contiguous bytes ("cp.async.bulk"), and their additions to global memory
// ("cp.reduce.async.bulk"): addresses and sizes are multiples of 16 bytes.

// Starts to copy bytes to shared memory. They count for `barrier`.
DEVICE void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

// Starts to add numbers in fp32 from shared memory to global memory. Additions of several CTAs have
// no fixed order. Commit it and wait for it as for a TMA store.
DEVICE void bulk_add(void* to, u32 from, u32 bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

// Rows of a tensor that TMA copies: those of a batch, or of a packed sequence.
struct Rows {
    int batch, begin, length;
};
constexpr int ROW_LIMIT = 1 << 30;  // the length of the axis of rows in a map of packed sequences

// As `tma_load` in ptx.cuh, from a packed sequence. The row's coordinate is outside of its axis
// where the sequence ends: loads give zeros there, and stores write nothing. The strides of the two
// last axes make the address right, as addresses wrap at 2^64 (see the host side).
DEVICE void tma_load_packed(u32 to, const TensorMap* map, u32 barrier, int column, int row,
                            int head, const Rows& of) {
    int from_end = ROW_LIMIT - of.length + row, end = of.begin + of.length, last = ROW_LIMIT;
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(from_end), "r"(head), "r"(end), "r"(last)
        : "memory");
}

// As `tma_store`, to a packed sequence.
DEVICE void tma_store_packed(const TensorMap* map, u32 from, int column, int row, int head,
                             const Rows& of) {
    int from_end = ROW_LIMIT - of.length + row, end = of.begin + of.length, last = ROW_LIMIT;
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group"
        " [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
        "r"(from), "r"(column), "r"(from_end), "r"(head), "r"(end), "r"(last)
        : "memory");
}

// Starts to copy bytes from shared to global memory. Commit it and wait for it as for a TMA store.
DEVICE void bulk_store(void* to, u32 from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

// Waits until this thread's stores and additions are done: their writes are visible to it.
DEVICE void bulk_wait_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Orders this thread's accesses to memory with those of TMA.
DEVICE void fence_proxy_async_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Adds to a number that other CTAs add to, and returns what it was.
DEVICE u32 atomic_add(u32* to, u32 x) {
    u32 before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(to), "r"(x)
                 : "memory");
    return before;
}

// Writes a number, after all that this thread has written or seen before.
DEVICE void st_release(u32* to, u32 x) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

// Reads what another CTA writes with st_release. What that thread did before is visible then.
DEVICE u32 ld_acquire(const u32* from) {
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

// Reads two numbers, once: they do not go to the L1 cache.
DEVICE float2 ld_global_v2_f32(const float* from) {
    float2 x;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x.x), "=f"(x.y)
                 : "l"(from)
                 : "memory");
    return x;
}

DEVICE void st_global_v4(void* to, const u32 (&x)[4]) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]),
                 "r"(x[3])
                 : "memory");
}

// Transposes an 8 x 8 matrix of 16-bit elements. A lane has elements 2 (lane % 4) and the next one of row
// lane / 4.
DEVICE u32 movmatrix_trans(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Stores four 8 x 8 matrices of 16-bit elements, transposed: the inverse of ldmatrix_x4_trans.
DEVICE void stmatrix_x4_trans(u32 row, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     row),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

DEVICE float2 ld_shared_v2_f32(u32 from) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
    return x;
}
