// Hints for copies by TMA.
#pragma once

#include "cuda/ptx.cuh"

// Brings a tensor map near, so that the first copy with it need not wait for it.
DEVICE void prefetch_tensor_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// As `tma_load` in ptx.cuh, of data that is used once: the L2 cache evicts it first (PTX ISA, cache
// eviction priority hints). The policy is what createpolicy.fractional.L2::evict_first gives for all
// of the data.
DEVICE void tma_load_once(u32 to, const TensorMap* map, u32 barrier, int column, int row, int head,
                          int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch),
        "l"(0x12F0000000000000ull)
        : "memory");
}
