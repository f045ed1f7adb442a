// Hints to the L2 cache, and loads that the L1 cache does not keep.
//
// A kernel that starts while the kernel before still runs (cuda/dependent_launch.cuh) may bring to
// the L2 cache what it will read, although that kernel may still write it: the L2 cache is coherent for
// the whole GPU. The L1 cache of an SM is not, and would keep the old numbers.
#pragma once

#include "cuda/ptx.cuh"

// What createpolicy.fractional.L2::evict_first gives for all of the data (PTX ISA, cache eviction
// priority hints): the L2 cache evicts it first.
#define EVICT_FIRST 0x12F0000000000000ull

// Brings a tensor map near, so that the first copy with it need not wait for it.
DEVICE void prefetch_tensor_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// As `tma_load` in ptx.cuh, of data that is used once.
DEVICE void tma_load_once(u32 to, const TensorMap* map, u32 barrier, int column, int row, int head,
                          int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(EVICT_FIRST)
        : "memory");
}

// The same by a map whose rows are cut into panels: whole rows, one panel behind the other.
DEVICE void tma_load_panels_once(u32 to, const TensorMap* map, u32 barrier, int row, int head,
                                 int batch) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %3, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(head), "r"(batch), "l"(EVICT_FIRST)
        : "memory");
}

// Brings what `tma_load` would copy to the L2 cache. Nothing waits for it.
DEVICE void tma_prefetch(const TensorMap* map, int column, int row, int head, int batch) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(
                     map),
                 "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

// Brings what `tma_load_panels_once` would copy to the L2 cache.
DEVICE void tma_prefetch_panels_once(const TensorMap* map, int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.prefetch.tensor.5d.L2.global.tile.L2::cache_hint"
        " [%0, {%1, %2, %1, %3, %4}], %5;" ::"l"(map),
        "r"(0), "r"(row), "r"(head), "r"(batch), "l"(EVICT_FIRST)
        : "memory");
}

// Brings the 128 bytes around an address to the L2 cache.
DEVICE void prefetch_l2(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

// Reads a number that the kernel before may still write, so that a later load sees what it wrote.
DEVICE int ld_early(const int* from) {
    int x;
    asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}
