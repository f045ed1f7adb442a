// How a CTA of attention_decode_cuda_sm90 knows that it has written the last split of a sequence's KV
// head, so that it combines them (LAST_CTA_COMBINES).
//
// Each KV head of a sequence has a number in memory, behind the counter of splits. No kernel sets that
// memory to 0 before. A count is told from what lay there before by its upper 48 bits, which are random
// ones. A CTA adds 1 without a look. If there was no count, it replaces the number that it has changed
// by a count of 1. Of several such CTAs one succeeds, and the others add to its count. A call leaves
// counts of 0 behind, so that a replay of its graph adds to counts only.
#pragma once

#include "cuda/decode_counter.cuh"

// Adds to a number, and returns what it was. A thread that finds the sum in this way, or a later one,
// sees what this thread has written, and what this thread has seen of others.
DEVICE u64 atomic_add_acq_rel(u64* to, u64 x) {
    u64 before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(to), "l"(x)
                 : "memory");
    return before;
}

// The same: writes x if the number is still `old`.
DEVICE u64 atomic_compare_and_swap_acq_rel(u64* to, u64 old, u64 x) {
    u64 before;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(to), "l"(old), "l"(x)
                 : "memory");
    return before;
}

struct SplitArrivals {
    static constexpr u64 NONE = 0x3d1bc64f90a70000ull;  // a count of 0
    u64 count;

    static DEVICE bool is_count(u64 x) { return (x ^ NONE) >> 16 == 0; }

    // Counts a CTA. Returns how many came before it.
    DEVICE int arrive() {
        u64 found = atomic_add_acq_rel(&count, 1);
        if (is_count(found)) return (int)(found - NONE);
        for (++found;;) {
            const u64 seen = atomic_compare_and_swap_acq_rel(&count, found, NONE + 1);
            if (seen == found) return 0;
            if (is_count(seen)) return (int)(atomic_add_acq_rel(&count, 1) - NONE);
            found = seen;
        }
    }

    // The last CTA has come.
    DEVICE void end() { count = NONE; }
};

DEVICE SplitArrivals* arrivals_of_splits(const Sizes& sizes, float2* ends, const Split& split) {
    return reinterpret_cast<SplitArrivals*>(counter_of_splits(sizes, ends) + 1) +
           split.sequence * sizes.heads_kv + split.head_kv;
}
