// What a warp-specialised kernel for Hopper needs beside its matrix products: barriers in shared
// memory, copies by TMA, registers moved between warpgroups. Names follow the PTX ISA.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
// A CUtensorMap, which the host encodes and TMA reads.
struct alignas(64) TensorMap {
    u64 words[16];
};

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return (u32)__cvta_generic_to_shared(pointer);
}

// ---------------------------------------------------------------------------------------- barriers

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
#define MBARRIER_WAIT(ORDER)                                                          \
    asm volatile(                                                                     \
        "{ .reg .pred done;\n"                                                        \
        "AGAIN: mbarrier.try_wait.parity" ORDER ".shared::cta.b64 done, [%0], %1;\n"  \
        "@done bra DONE;\n"                                                           \
        "bra AGAIN;\n"                                                                \
        "DONE: }" ::"r"(barrier), "r"(parity)                                         \
        : "memory")
// REMOTE: programs of the whole cluster arrive at it, by barrier_arrive_at.
template <bool REMOTE = false>
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    if (REMOTE)
        MBARRIER_WAIT(".relaxed.cluster");
    else
        MBARRIER_WAIT("");
}
// Arrives at the barrier that program `rank` of the cluster has at the same address. It says only
// that shared memory has been read, so nothing written has to be seen: to release to a cluster would
// wait for all of the thread's writes each time (MEMBAR.ALL.GPU).
__device__ __forceinline__ void barrier_arrive_at(u32 barrier, int rank) {
    asm volatile(
        "{ .reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
        "r"(rank)
        : "memory");
}
// All threads of all its programs; what they wrote before is seen behind it.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Barriers of the hardware, by number: `threads` in all, of which some only arrive.
__device__ __forceinline__ void threads_sync(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void threads_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// -------------------------------------------------------------------------------------------- TMA

__device__ __forceinline__ void tma_load(u32 to, const TensorMap* map, u32 barrier, int column,
                                         int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
// To the same address in each program of the cluster that has a bit in `programs`; the bytes count
// for the barrier at the same address in each.
__device__ __forceinline__ void tma_load_multicast(u32 to, const TensorMap* map, u32 barrier,
                                                   int column, int row, int head, int batch,
                                                   int programs) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "h"((short)programs)
        : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap* map, u32 from, int column, int row,
                                          int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
            map),
        "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
__device__ __forceinline__ void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the stores have read their shared memory.
__device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// What threads wrote to shared memory is there for TMA.
__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Four matrices of 8 x 8 elements of 16 bits from fragments to rows; lanes 8 i to 8 i + 7 say where
// those of matrix i lie.
__device__ __forceinline__ void matrices_store(u32 row, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// The same back: x[i] is a part of matrix i.
__device__ __forceinline__ void matrices_load(u32* x, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
}
__device__ __forceinline__ void shared_store(u32 to, const float* x) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
}
__device__ __forceinline__ float4 shared_load(u32 from) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

// --------------------------------------------------------------------------------------- registers

template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ------------------------------------------------------------------------------------------- maths

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Four numbers in e4m3, the first in the lowest byte.
__device__ __forceinline__ u32 packed_e4m3(float a, float b, float c, float d) {
    u32 all;
    asm("{ .reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high}; }"
        : "=r"(all)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return all;
}
// Two numbers in the dtype of the output, the first in the lower half.
__device__ __forceinline__ u32 packed(float low, float high) {
    u32 both;
#if DTYPE_FP16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}
