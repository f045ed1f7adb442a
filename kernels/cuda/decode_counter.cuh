// The counter from which the CTAs of attention_decode_cuda_sm90 take splits.
//
// SMs do not read equally fast. Where there are more splits than CTAs, each CTA begins with the split
// of its own number, and then takes the next one that no CTA has. The order of a sum does not depend on
// it (cuda/decode_problem.cuh).
//
// The counter lies behind the ends of splits. No kernel sets that memory to 0 before this one runs, so
// the first CTA that takes a split does it, and the one that takes the last number ends the counter.
// `state` tells whether it has begun. Two numbers of 64 random bits say so, which no other data have.
#pragma once

#include "cuda/bulk_copy.cuh"
#include "cuda/decode_problem.cuh"

// Writes x if the number is still `old`. Returns what it was.
DEVICE u64 atomic_compare_and_swap(u64* to, u64 old, u64 x) {
    u64 before;
    asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(to), "l"(old), "l"(x)
                 : "memory");
    return before;
}

// As in bulk_copy.cuh, of 64 bits.
DEVICE void st_release(u64* to, u64 x) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}
DEVICE u64 ld_acquire(const u64* from) {
    u64 x;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

struct SplitCounter {
    static constexpr u64 BEGINNING = 0x68a17fe1c35e685aull, BEGUN = 0x487aeee7a234e06full;
    u64 state;
    u32 taken;

    // Sets the counter to 0, or waits until another CTA has done so.
    DEVICE void begin() {
        for (u64 found; (found = ld_acquire(&state)) != BEGUN;) {
            if (found == BEGINNING) continue;
            if (atomic_compare_and_swap(&state, found, BEGINNING) != found) continue;
            taken = 0;
            st_release(&state, BEGUN);
            return;
        }
    }

    DEVICE u32 take() { return atomic_add(&taken, 1); }

    // No CTA may begin or take any more.
    DEVICE void end() { state = 0; }
};

DEVICE SplitCounter* counter_of_splits(const Sizes& sizes, float2* ends) {
    const long long rows = (long long)sizes.batch * sizes.heads_kv * GROUP * sizes.seqlen_q;
    return reinterpret_cast<SplitCounter*>(ends + rows * sizes.splits_kept);
}
