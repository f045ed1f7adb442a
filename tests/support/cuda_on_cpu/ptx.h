// PTX instructions as functions, with the names that inline_ptx.py gives them. An operand in
// brackets is an address; one in braces is an array of the registers' addresses.
#pragma once

#include "thread.h"

namespace ptx {

// ------------------------------------------------------------------------------------- numbers

inline void setp_ne_b32(bool &to, int a, int b) { to = a != b; }
inline void selp_b32(int &to, int a, int b, bool first) { to = first ? a : b; }
void add_rn_f16x2(u32 &to, u32 a, u32 b);
inline void mov_b32(u32 &to, unsigned short *const (&parts)[2]) {
    to = *parts[0] | u32(*parts[1]) << 16;
}
void tanh_approx_f32(float &to, float x);
void cvt_rn_f16x2_e4m3x2(u32 &to, unsigned short from);
void ex2_approx_ftz_f32(float &to, float x);
void lg2_approx_ftz_f32(float &to, float x);
inline void rcp_approx_ftz_f32(float &to, float x) { to = 1 / x; }
void cvt_rn_bf16x2_f32(u32 &to, float high, float low);
void cvt_rn_f16x2_f32(u32 &to, float high, float low);
inline void mov_b32(unsigned short *const (&parts)[2], u32 from) {
    *parts[0] = from, *parts[1] = from >> 16;
}
void cvt_f32_f16(float &to, unsigned short from);
void cvt_rn_satfinite_e4m3x2_f32(unsigned short &to, float high, float low);

// ------------------------------------------------------------------------------- shared memory

inline void ld_shared_b32(u32 &to, u32 from) { machine::read(&to, from, 4); }
inline void st_shared_b32(u32 to, u32 x) { machine::write(to, &x, 4); }
template <class T> void st_shared_v4_f32(u32 to, T *const (&x)[4]) {
    const float all[4] = {*x[0], *x[1], *x[2], *x[3]};
    machine::write(to, all, 16);
}
template <class T> void ld_shared_v4_b32(T *const (&to)[4], u32 from) {
    T all[4];
    machine::read(all, from, 16);
    for (int i = 0; i < 4; ++i) *to[i] = all[i];
}
template <class T> void ld_shared_v2_f32(T *const (&to)[2], u32 from) {
    T all[2];
    machine::read(all, from, 8);
    for (int i = 0; i < 2; ++i) *to[i] = all[i];
}
template <class T> void ld_shared_v4_f32(T *const (&to)[4], u32 from) {
    ld_shared_v4_b32(to, from);
}

void load_matrices(u32 *const *to, int count, u32 row, bool transposed);
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(u32 *const (&to)[4], u32 row) {
    load_matrices(to, 4, row, false);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(u32 *const (&to)[4], u32 row) {
    load_matrices(to, 4, row, true);
}
inline void ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(u32 *const (&to)[2], u32 row) {
    load_matrices(to, 2, row, true);
}
void movmatrix_sync_aligned_m8n8_trans_b16(u32 &to, u32 from);
void store_matrices(u32 row, const u32 *const *from, bool transposed);
inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(u32 row, const u32 *const (&from)[4]) {
    store_matrices(row, from, false);
}
inline void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(u32 row, const u32 *const (&from)[4]) {
    store_matrices(row, from, true);
}

// ------------------------------------------------------------------------------- global memory

inline void atom_relaxed_gpu_global_add_u32(u32 &before, u32 *to, u32 x) { before = *to, *to += x; }
inline void atom_relaxed_gpu_global_cas_b64(u64 &before, u64 *to, u64 old, u64 x) {
    before = *to;
    if (before == old) *to = x;
}
inline void atom_acq_rel_gpu_global_add_u64(u64 &before, u64 *to, u64 x) {
    before = *to, *to += x;
    machine::stop();
}
inline void atom_acq_rel_gpu_global_cas_b64(u64 &before, u64 *to, u64 old, u64 x) {
    atom_relaxed_gpu_global_cas_b64(before, to, old, x);
    machine::stop();
}
inline void ld_global_cg_b32(int &to, const int *from) { to = *from; }
template <class T> void ld_global_cg_v2_f32(T *const (&to)[2], const float *from) {
    *to[0] = from[0], *to[1] = from[1];
}
template <class T> void st_global_v4_b32(void *to, T *const (&x)[4]) {
    const u32 all[4] = {*x[0], *x[1], *x[2], *x[3]};
    __builtin_memcpy(to, all, 16);
}
template <class T> void red_global_add_v4_f32(void *to, T *const (&x)[4]) {
    for (int i = 0; i < 4; ++i) static_cast<float *>(to)[i] += *x[i];
}
inline void prefetch_global_L1(const void *) {}
inline void st_release_gpu_global_u32(u32 *to, u32 x) { *to = x, ++machine::releases; }
inline void st_release_gpu_global_u64(u64 *to, u64 x) { *to = x, ++machine::releases; }
void ld_acquire_gpu_global_u32(u32 &to, const u32 *from);
void ld_acquire_gpu_global_u64(u64 &to, const u64 *from);

// ------------------------------------------------------------------------------------ cp.async

void cp_async_cg_shared_global_L2_128B(u32 to, const void *from, int bytes, int read);
inline void cp_async_cg_shared_global_L2_128B(u32 to, const void *from, int bytes) {
    cp_async_cg_shared_global_L2_128B(to, from, bytes, bytes);
}
void cp_async_commit_group();
void cp_async_wait_group(int pending);

// ------------------------------------------------------------------------------------ barriers

void bar_sync(int number, int threads);
void bar_red_or_pred(bool &any, int number, int threads, bool one);
void bar_arrive(int number, int threads);
void barrier_cluster_arrive_release_aligned();
void barrier_cluster_wait_acquire_aligned();

void mbarrier_init_shared_cta_b64(u32 barrier, u32 count);
inline void fence_mbarrier_init_release_cluster() {}
void mbarrier_arrive_shared_cta_b64(u32 barrier);
void mbarrier_arrive_expect_tx_shared_cta_b64(u32 barrier, u32 bytes);
// The shared::cluster address of `address` in the CTA of that rank.
void mapa_shared_cluster_u32(u32 &to, u32 address, int rank);
void mbarrier_arrive_relaxed_cluster_shared_cluster_b64(u32 barrier);
// The hardware may give up before the phase ends. Here it does so at the first try, so that a
// kernel has to loop; the second try waits.
void mbarrier_try_wait_parity_shared_cta_b64(bool &done, u32 barrier, u32 parity);
inline void mbarrier_try_wait_parity_relaxed_cluster_shared_cta_b64(bool &done, u32 barrier,
                                                                    u32 parity) {
    mbarrier_try_wait_parity_shared_cta_b64(done, barrier, parity);
}

// ----------------------------------------------------------------------------------------- TMA

struct Coordinates {
    int axes, at[5];
};
template <class T, int AXES> Coordinates coordinates(T *const (&registers)[AXES]) {
    Coordinates all = {AXES};
    for (int axis = 0; axis < AXES; ++axis) all.at[axis] = *registers[axis];
    return all;
}
void load_tensor(u32 to, const void *map, const Coordinates &at, u32 barrier, u32 ranks);
void store_tensor(const void *map, const Coordinates &at, u32 from);
void prefetch_tensor(const void *map, const Coordinates &at);
// The mask of this CTA alone.
u32 own_mask();

template <class T>
void cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(
    u32 to, const void *map, T *const (&at)[4], u32 barrier) {
    load_tensor(to, map, coordinates(at), barrier, own_mask());
}
inline void prefetch_tensormap(const void *) {}
template <class T>
void cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_L2_cache_hint(
    u32 to, const void *map, T *const (&at)[4], u32 barrier, u64) {
    cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(to, map, at,
                                                                                 barrier);
}
template <class T>
void cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_multicast_cluster(
    u32 to, const void *map, T *const (&at)[4], u32 barrier, short ranks) {
    load_tensor(to, map, coordinates(at), barrier, ranks);
}
template <class T>
void cp_async_bulk_tensor_5d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(
    u32 to, const void *map, T *const (&at)[5], u32 barrier) {
    load_tensor(to, map, coordinates(at), barrier, own_mask());
}
template <class T>
void cp_async_bulk_tensor_5d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_L2_cache_hint(
    u32 to, const void *map, T *const (&at)[5], u32 barrier, u64) {
    cp_async_bulk_tensor_5d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(to, map, at,
                                                                                 barrier);
}
// Hints. Coordinates may lie outside of the tensor.
template <class T>
void cp_async_bulk_prefetch_tensor_4d_L2_global_tile(const void *map, T *const (&at)[4]) {
    prefetch_tensor(map, coordinates(at));
}
template <class T>
void cp_async_bulk_prefetch_tensor_5d_L2_global_tile_L2_cache_hint(const void *map,
                                                                   T *const (&at)[5], u64) {
    prefetch_tensor(map, coordinates(at));
}
inline void prefetch_global_L2(const void *) {}
template <class T>
void cp_async_bulk_tensor_5d_global_shared_cta_tile_bulk_group(const void *map, T *const (&at)[5],
                                                               u32 from) {
    store_tensor(map, coordinates(at), from);
}
template <class T>
void cp_async_bulk_tensor_4d_global_shared_cta_tile_bulk_group(const void *map, T *const (&at)[4],
                                                               u32 from) {
    store_tensor(map, coordinates(at), from);
}
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(u32 to, const void *from,
                                                                    u32 bytes, u32 barrier);
void cp_reduce_async_bulk_global_shared_cta_bulk_group_add_f32(void *to, u32 from, u32 bytes);
inline void griddepcontrol_launch_dependents() {}  // kernels run one after the other
inline void griddepcontrol_wait() {}
void cp_async_bulk_global_shared_cta_bulk_group(void *to, u32 from, u32 bytes);
void cp_async_bulk_wait_group(int pending);
inline void fence_proxy_async() {}  // of global memory, which has one view here
void cp_async_bulk_commit_group();
void cp_async_bulk_wait_group_read(int pending);
void fence_proxy_async_shared_cta();

// ------------------------------------------------------------------------------------- products

void multiply(const char *kind, float *const *d, const u32 *const *a, const u32 *const *b);
inline void mma_sync_aligned(const char *kind, float *const (&d)[4], const u32 *const (&a)[4],
                             const u32 *const (&b)[2], float *const (&c)[4]) {
    for (int i = 0; i < 4; ++i)
        if (c[i] != d[i]) machine::fail("mma.sync adds to other registers than it writes");
    multiply(kind, d, a, b);
}

void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(int pending);
// `a`: registers, or null for `a_rows` in shared memory.
void issue(const char *kind, float *const *d, int count, const u32 *const *a, u64 a_rows,
           u64 b_rows, bool add, bool transposes_b, bool transposes_a = false);
inline void only_ones(int scale_a, int scale_b) {
    if (scale_a != 1 || scale_b != 1) machine::fail("wgmma: operands are negated");
}
// Both operands in shared memory. 8-bit operands have no transposes.
template <int N>
void wgmma_mma_async_sync_aligned(const char *kind, float *const (&d)[N], u64 a, u64 b, bool add,
                                  int scale_a, int scale_b, int transpose_a = 0,
                                  int transpose_b = 0) {
    only_ones(scale_a, scale_b);
    issue(kind, d, N, nullptr, a, b, add, transpose_b, transpose_a);
}
template <int N>
void wgmma_mma_async_sync_aligned(const char *kind, float *const (&d)[N],
                                  const u32 *const (&a)[4], u64 b, bool add, int scale_a,
                                  int scale_b, int transpose_b = 0) {
    only_ones(scale_a, scale_b);
    issue(kind, d, N, a, 0, b, add, transpose_b);
}
inline void setmaxnreg_inc_sync_aligned_u32(int count) {
    if (count < 24 || count > 256 || count % 8) machine::fail("setmaxnreg: %d registers", count);
}
inline void setmaxnreg_dec_sync_aligned_u32(int count) { setmaxnreg_inc_sync_aligned_u32(count); }

}  // namespace ptx
