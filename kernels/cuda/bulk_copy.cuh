// What the attention backward needs beyond ptx.cuh. Copies of contiguous bytes between global and shared memory by TMA without a tensor map, and
// their additions to global memory (PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk"). Addresses and
// sizes are multiples of 16 bytes.
#pragma once

#include "cuda/ptx.cuh"

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

// Programmatic dependent launch (CUDA C++ Programming Guide): the next kernel of the stream may start
// when all CTAs have executed it, and what it does before it waits overlaps with this one.
DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Waits until the kernel before has ended, and its writes are visible.
DEVICE void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
