// PTX instructions as functions, with the names that inline_ptx.py gives them. An operand in
// brackets is an address; one in braces is a `list` of registers.
#pragma once

#include <cmath>
#include <cstring>

#include "machine.h"

namespace ptx {

// Registers, in order.
template <class T, int N> struct List {
    T *at[N];
};
template <class T, class... REST> List<T, 1 + sizeof...(REST)> list(T &first, REST &...rest) {
    return {{&first, &rest...}};
}

// ------------------------------------------------------------------------------------- numbers

inline void setp_ne_b32(bool &to, int a, int b) { to = a != b; }
inline void selp_b32(int &to, int a, int b, bool first) { to = first ? a : b; }
void add_rn_f16x2(u32 &to, u32 a, u32 b);
inline void mov_b32(u32 &to, List<unsigned short, 2> parts) {
    to = *parts.at[0] | u32(*parts.at[1]) << 16;
}
inline void tanh_approx_f32(float &to, float x) { to = std::tanh(x); }
void cvt_rn_f16x2_e4m3x2(u32 &to, unsigned short from);
inline void ex2_approx_ftz_f32(float &to, float x) { to = std::exp2(x); }
inline void lg2_approx_ftz_f32(float &to, float x) { to = std::log2(x); }
inline void rcp_approx_ftz_f32(float &to, float x) { to = 1 / x; }
void cvt_rn_bf16x2_f32(u32 &to, float high, float low);
void cvt_rn_f16x2_f32(u32 &to, float high, float low);
inline void mov_b32(List<unsigned short, 2> parts, u32 from) {
    *parts.at[0] = from, *parts.at[1] = from >> 16;
}
void cvt_f32_f16(float &to, unsigned short from);
void cvt_rn_satfinite_e4m3x2_f32(unsigned short &to, float high, float low);

// ------------------------------------------------------------------------------- shared memory

inline void ld_shared_b32(u32 &to, u32 from) { machine::read(&to, from, 4); }
inline void st_shared_b32(u32 to, u32 x) { machine::write(to, &x, 4); }
template <class T> void st_shared_v4_f32(u32 to, List<T, 4> x) {
    const float all[4] = {*x.at[0], *x.at[1], *x.at[2], *x.at[3]};
    machine::write(to, all, 16);
}
template <class T> void ld_shared_v4_b32(List<T, 4> to, u32 from) {
    T all[4];
    machine::read(all, from, 16);
    for (int i = 0; i < 4; ++i) *to.at[i] = all[i];
}
template <class T> void ld_shared_v2_f32(List<T, 2> to, u32 from) {
    T all[2];
    machine::read(all, from, 8);
    for (int i = 0; i < 2; ++i) *to.at[i] = all[i];
}
template <class T> void ld_shared_v4_f32(List<T, 4> to, u32 from) { ld_shared_v4_b32(to, from); }

void load_matrices(u32 *const *to, int count, u32 row, bool transposed);
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(List<u32, 4> to, u32 row) {
    load_matrices(to.at, 4, row, false);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(List<u32, 4> to, u32 row) {
    load_matrices(to.at, 4, row, true);
}
inline void ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(List<u32, 2> to, u32 row) {
    load_matrices(to.at, 2, row, true);
}
void movmatrix_sync_aligned_m8n8_trans_b16(u32 &to, u32 from);
void store_matrices(u32 row, const u32 *const *from, bool transposed);
template <class T> void stmatrix_sync_aligned_m8n8_x4_shared_b16(u32 row, List<T, 4> from) {
    const u32 *all[4] = {from.at[0], from.at[1], from.at[2], from.at[3]};
    store_matrices(row, all, false);
}
template <class T> void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(u32 row, List<T, 4> from) {
    const u32 *all[4] = {from.at[0], from.at[1], from.at[2], from.at[3]};
    store_matrices(row, all, true);
}

// ------------------------------------------------------------------------------- global memory

inline void atom_relaxed_gpu_global_add_u32(u32 &before, u32 *to, u32 x) { before = *to, *to += x; }
inline void ld_global_cg_b32(int &to, const int *from) { to = *from; }
template <class T> void ld_global_cg_v2_f32(List<T, 2> to, const float *from) {
    *to.at[0] = from[0], *to.at[1] = from[1];
}
template <class T> void st_global_v4_b32(void *to, List<T, 4> x) {
    const u32 all[4] = {*x.at[0], *x.at[1], *x.at[2], *x.at[3]};
    std::memcpy(to, all, 16);
}
template <class T> void red_global_add_v4_f32(void *to, List<T, 4> x) {
    for (int i = 0; i < 4; ++i) static_cast<float *>(to)[i] += *x.at[i];
}
inline void prefetch_global_L1(const void *) {}
inline void st_release_gpu_global_u32(u32 *to, u32 x) { *to = x, ++machine::releases; }
void ld_acquire_gpu_global_u32(u32 &to, const u32 *from);

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

void load_tensor(u32 to, const void *map, std::vector<int> at, u32 barrier, u32 ranks);
void store_tensor(const void *map, std::vector<int> at, u32 from);
// The mask of this CTA alone.
u32 own_mask();

template <class T>
void cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(
    u32 to, const void *map, List<T, 4> at, u32 barrier) {
    load_tensor(to, map, {*at.at[0], *at.at[1], *at.at[2], *at.at[3]}, barrier, own_mask());
}
inline void prefetch_tensormap(const void *) {}
template <class T>
void cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_L2_cache_hint(
    u32 to, const void *map, List<T, 4> at, u32 barrier, u64) {
    cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(to, map, at,
                                                                                 barrier);
}
template <class T>
void cp_async_bulk_tensor_4d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_multicast_cluster(
    u32 to, const void *map, List<T, 4> at, u32 barrier, short ranks) {
    load_tensor(to, map, {*at.at[0], *at.at[1], *at.at[2], *at.at[3]}, barrier, ranks);
}
template <class T>
void cp_async_bulk_tensor_5d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(
    u32 to, const void *map, List<T, 5> at, u32 barrier) {
    load_tensor(to, map, {*at.at[0], *at.at[1], *at.at[2], *at.at[3], *at.at[4]}, barrier,
                own_mask());
}
template <class T>
void cp_async_bulk_tensor_5d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_L2_cache_hint(
    u32 to, const void *map, List<T, 5> at, u32 barrier, u64) {
    cp_async_bulk_tensor_5d_shared_cluster_global_tile_mbarrier_complete_tx_bytes(to, map, at,
                                                                                 barrier);
}
// Hints. Coordinates may lie outside of the tensor.
template <class T>
void cp_async_bulk_prefetch_tensor_4d_L2_global_tile(const void *, List<T, 4>) {}
template <class T>
void cp_async_bulk_prefetch_tensor_5d_L2_global_tile_L2_cache_hint(const void *, List<T, 5>, u64) {
}
inline void prefetch_global_L2(const void *) {}
template <class T>
void cp_async_bulk_tensor_5d_global_shared_cta_tile_bulk_group(const void *map, List<T, 5> at,
                                                               u32 from) {
    store_tensor(map, {*at.at[0], *at.at[1], *at.at[2], *at.at[3], *at.at[4]}, from);
}
template <class T>
void cp_async_bulk_tensor_4d_global_shared_cta_tile_bulk_group(const void *map, List<T, 4> at,
                                                               u32 from) {
    store_tensor(map, {*at.at[0], *at.at[1], *at.at[2], *at.at[3]}, from);
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
template <class A, class B, class C>
void mma_sync_aligned(const char *kind, List<float, 4> d, List<A, 4> a, List<B, 2> b,
                      List<C, 4> c) {
    const u32 *left[4] = {a.at[0], a.at[1], a.at[2], a.at[3]}, *right[2] = {b.at[0], b.at[1]};
    for (int i = 0; i < 4; ++i)
        if (c.at[i] != d.at[i]) machine::fail("mma.sync adds to other registers than it writes");
    multiply(kind, d.at, left, right);
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
void wgmma_mma_async_sync_aligned(const char *kind, List<float, N> d, u64 a, u64 b, bool add,
                                  int scale_a, int scale_b, int transpose_a = 0,
                                  int transpose_b = 0) {
    only_ones(scale_a, scale_b);
    issue(kind, d.at, N, nullptr, a, b, add, transpose_b, transpose_a);
}
template <int N>
void wgmma_mma_async_sync_aligned(const char *kind, List<float, N> d, List<const u32, 4> a, u64 b,
                                  bool add, int scale_a, int scale_b, int transpose_b = 0) {
    only_ones(scale_a, scale_b);
    issue(kind, d.at, N, a.at, 0, b, add, transpose_b);
}
inline void setmaxnreg_inc_sync_aligned_u32(int count) {
    if (count < 24 || count > 256 || count % 8) machine::fail("setmaxnreg: %d registers", count);
}
inline void setmaxnreg_dec_sync_aligned_u32(int count) { setmaxnreg_inc_sync_aligned_u32(count); }

}  // namespace ptx
