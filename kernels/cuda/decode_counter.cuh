// The counter from which the CTAs of attention_decode_cuda_sm90 take splits. A CTA on a slow SM takes
// fewer of them, so that all end at about the same time.
//
// It lies in memory that nobody has cleared. So its upper 40 bits say whether it counts: a CTA that
// finds others there starts it, and the second kernel clears it when all splits are done. Memory that
// nobody has cleared has these 40 bits by chance once in 10^12 calls.
#pragma once

#include "cuda/decode_problem.cuh"

constexpr int COUNTED_BITS = 24;
constexpr u64 COUNTS = 0xb6d37a59c1ull << COUNTED_BITS;

struct SplitCounter {
    u64* at;

    static DEVICE bool counts(u64 value) { return value >> COUNTED_BITS == COUNTS >> COUNTED_BITS; }

    // Takes a split. Returns what the counter was, which `number` reads.
    DEVICE u64 take() const {
        u64 before;
        asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
                     : "=l"(before)
                     : "l"(at), "l"(1ull)
                     : "memory");
        return before;
    }

    // Returns how many splits were taken before.
    DEVICE int number(u64 before) const {
        if (!counts(before)) {
            u64 seen = before + 1, found;
            do {
                found = seen;
                asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
                             : "=l"(seen)
                             : "l"(at), "l"(found), "l"(COUNTS)
                             : "memory");
            } while (seen != found && !counts(seen));
            before = take();
        }
        return (int)(before & ((1 << COUNTED_BITS) - 1));
    }

    DEVICE void clear() const { *at = 0; }
};

// The counter lies behind the maxima and sums of all splits.
DEVICE SplitCounter counter_behind(const float2* ends, const Sizes& sizes) {
    const int rows = sizes.batch * sizes.heads_kv * GROUP * sizes.seqlen_q;
    const float2* behind = ends + (long long)rows * sizes.splits_kept;
    return {reinterpret_cast<u64*>(const_cast<float2*>(behind))};
}
