// PTX instructions as device functions, named after the instruction. NVRTC comes without the CUDA
// toolkit's headers, so the kernels bring their own.
//
// A function whose instruction needs a newer chip compiles only where it is called. Sections:
// types, arithmetic, shared memory, matrix fragments, mma.sync, cp.async (sm80 and newer);
// mbarriers, named barriers, clusters, TMA, fences, register counts (sm90).
#pragma once

typedef unsigned int u32;  // also a shared-memory address, or two 16-bit elements, the first low
typedef unsigned long long u64;

// The layout of CUtensorMap, which the host encodes and TMA reads.
struct alignas(64) TensorMap {
    u64 words[16];
};

#define DEVICE __device__ __forceinline__

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// -------------------------------------------------------------------------------------- arithmetic

// 2^x within 2 units in the last place; -inf gives 0.
DEVICE float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x within 1 unit in the last place, for normal numbers.
DEVICE float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two numbers in bf16 or fp16; `low` goes to the lower half.
template <bool IS_BF16>
DEVICE u32 cvt_16bit_x2(float low, float high) {
    u32 packed;
    if constexpr (IS_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// Four numbers in e4m3; `a` goes to the lowest byte.
DEVICE u32 cvt_e4m3_x4(float a, float b, float c, float d) {
    u32 packed;
    asm("{ .reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high}; }"
        : "=r"(packed)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return packed;
}

// Returns x. The compiler cannot see that, so it computes what depends on the result here, instead
// of keeping it in registers from an earlier place.
DEVICE int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// ----------------------------------------------------------------------------------- shared memory

DEVICE void st_shared(u32 to, u32 x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

DEVICE u32 ld_shared(u32 from) {
    u32 x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}

DEVICE void st_shared_v4(u32 to, const float* x) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x[0]), "f"(x[1]),
                 "f"(x[2]), "f"(x[3])
                 : "memory");
}

// The same, if a condition holds; no branch.
DEVICE void st_shared_v4_if(bool condition, u32 to, const float* x) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0;\n"
                 "@p st.shared.v4.f32 [%1], {%2, %3, %4, %5}; }" ::"r"(int(condition)),
                 "r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}

DEVICE uint4 ld_shared_v4_u32(u32 from) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

DEVICE float4 ld_shared_v4_f32(u32 from) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

// -------------------------------------------------------------------------------- matrix fragments

// Loads four 8 x 8 matrices of 16-bit elements. Lanes 8 i to 8 i + 7 pass the addresses of the rows
// of matrix i. Each lane receives in x[i] elements 2 (lane % 4) and 2 (lane % 4) + 1 of row
// lane / 4 of matrix i.
DEVICE void ldmatrix_x4(u32* x, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
}

// Loads the same four matrices, transposed.
DEVICE void ldmatrix_x4_trans(u32* x, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
}

// Loads two matrices, transposed; lanes 0 to 15 pass the addresses.
DEVICE void ldmatrix_x2_trans(u32* x, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(row)
                 : "memory");
}

// Stores four 8 x 8 matrices: the inverse of ldmatrix_x4.
DEVICE void stmatrix_x4(u32 row, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// d (16 x 8, fp32) += a (16 x 16) b (16 x 8). A lane holds columns 2 (lane % 4) and
// 2 (lane % 4) + 1 of d: of row lane / 4 in d[0] and d[1], of row lane / 4 + 8 in d[2] and d[3].
template <bool IS_BF16>
DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (IS_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---------------------------------------------------------------------------------------- cp.async

// Starts to copy 16 bytes from global to shared memory. They bypass the L1 cache, which has no use
// for them later. The L2 cache fetches all 128 bytes around them.
DEVICE void cp_async_16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}

// Does the same where `is_inside`; elsewhere writes 16 bytes of zeros and does not read `from`.
DEVICE void cp_async_16_or_zero(u32 to, const void* from, bool is_inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(is_inside ? 16 : 0)
                 : "memory");
}

// Makes a group of all copies that this thread has started since the group before.
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's groups are unfinished.
template <int PENDING>
DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// --------------------------------------------------------------------------------------- mbarriers

DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

DEVICE void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase end only when TMA has written `bytes` more.
DEVICE void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Arrives at the barrier at the same address in CTA `rank` of the cluster. It is relaxed, which is
// enough where the arrival only says that shared memory was read. A release would wait for all of
// the thread's writes each time (MEMBAR.ALL.GPU).
DEVICE void mbarrier_arrive_cluster(u32 barrier, int rank) {
    asm volatile(
        "{ .reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote]; }" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

#define MBARRIER_WAIT(ORDER)                                                         \
    asm volatile(                                                                    \
        "{ .reg .pred done;\n"                                                       \
        "AGAIN: mbarrier.try_wait.parity" ORDER ".shared::cta.b64 done, [%0], %1;\n" \
        "@done bra DONE;\n"                                                          \
        "bra AGAIN;\n"                                                               \
        "DONE: }" ::"r"(barrier), "r"(parity)                                        \
        : "memory")

// Waits until the phase of that parity has ended. IS_CLUSTER: the other CTAs of the cluster arrive
// too, with mbarrier_arrive_cluster.
template <bool IS_CLUSTER = false>
DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
    if (IS_CLUSTER)
        MBARRIER_WAIT(".relaxed.cluster");
    else
        MBARRIER_WAIT("");
}

// -------------------------------------------------------------------- named barriers, the cluster

// The hardware's barriers 0 to 15 (0 is __syncthreads). `threads` of them arrive or wait in all.
DEVICE void named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

DEVICE void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The same with an immediate number.
template <int BARRIER>
DEVICE void named_barrier_sync_at(int threads) {
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "r"(threads) : "memory");
}
template <int BARRIER>
DEVICE void named_barrier_arrive_at(int threads) {
    asm volatile("bar.arrive %0, %1;" ::"n"(BARRIER), "r"(threads) : "memory");
}

// Waits for all threads of all CTAs of the cluster, and for what they wrote before.
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// --------------------------------------------------------------------------------------------- TMA

// Starts to copy a box of the tensor to shared memory. The bytes count for `barrier`.
DEVICE void tma_load(u32 to, const TensorMap* map, u32 barrier, int column, int row, int head,
                     int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

// Starts to copy the box to the same address in each CTA of the cluster that has a bit in `ctas`.
// The bytes count for the barrier at the same address in each.
DEVICE void tma_load_multicast(u32 to, const TensorMap* map, u32 barrier, int column, int row,
                               int head, int batch, int ctas) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "h"((short)ctas)
        : "memory");
}

// Starts to copy shared memory to a box of the tensor.
DEVICE void tma_store(const TensorMap* map, u32 from, int column, int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
        " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
        "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}

DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until this thread's stores have read their shared memory, which may then be overwritten.
DEVICE void tma_store_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// ------------------------------------------------------------------------- fences, register counts

// Makes this thread's writes to shared memory visible to TMA and WGMMA.
DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Makes initialised mbarriers visible to TMA and to the cluster.
DEVICE void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// All warps of a warpgroup execute it: their threads have REGISTERS registers from here on.
template <int REGISTERS>
DEVICE void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
DEVICE void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
