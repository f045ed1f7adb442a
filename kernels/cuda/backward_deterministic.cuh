// How the attention backward adds dQ so that equal calls give equal bits.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
//
// CTAs add to a part of dQ's accumulator in a fixed sequence. A semaphore of each part counts the
// additions that are done, and a CTA adds when it counts those of all CTAs before it. So that few
// wait:
//
// * CTAs of all KV heads of an L2 section start side by side, so that those of a head that run at the
//   same time are few.
// * Under a causal mask CTAs of larger keys add first, and start first. Each begins with the block of
//   rows at its diagonal, to which it is the first to add, and comes to the next block when the CTA
//   before it has left that: they follow each other even if they start at the same time. The shortest
//   tiles then start first.
// * In the last section, and under other masks, CTAs of smaller keys add and start first, so that the
//   shortest tiles come last and all SMs end at about the same time. Blocks of rows come from the last
//   to the first: all CTAs of a head begin with the same block, and the CTA of the largest keys, which
//   starts last, ends with its first one.
// * Query heads of a group take turns block by block, so that CTAs with few blocks of a head do not
//   wait for those with many.
//
// A tile waits for tiles of smaller numbers alone. They have started before: a GPU starts CTAs in the
// sequence of their numbers (CUB's scans rely on this too), and with PERSISTENT a counter gives out the
// tiles. So the tile of the smallest number that is worked on waits for nobody: however few CTAs run at
// the same time, there is no deadlock. With K_STAGES 2 the last dQ of a tile comes in the first step of
// the CTA's next tile, and nothing before it waits for another CTA.
#pragma once

// How many CTAs add to a block of query rows before this one does, of those that add to it.
DEVICE u32 additions_before(const Tile& tile, const SeenTiles& seen) {
    const int number = tile.key / KEYS;
    return CAUSAL && tile.larger_keys_first ? seen.last - number : number - seen.first;
}

// A part of dQ's accumulator: that of a block and a warpgroup. With ZERO_DQ 0 nobody has zeroed it,
// and the first CTA stores its own.
struct DqSemaphore {
    u32 number, before;  // the part's, and the additions before this one
    bool is_open;

    // Sees whether all CTAs before this one have added.
    DEVICE void look(const DqMemory& memory) {
        is_open = ld_acquire(&memory.arrivals_of(number)->count) == before;
    }
    DEVICE void acquire(const DqMemory& memory) {
        while (!is_open) look(memory);
    }
    DEVICE void add(const DqMemory& memory, u32 from) const {
        fence_proxy_async_all();
        if (!ZERO_DQ && before == 0)
            bulk_store(memory.sums_of(number), from, 4 * DQ_FLOATS);
        else
            bulk_add(memory.sums_of(number), from, 4 * DQ_FLOATS);
        tma_store_commit();
    }
    // Lets the next CTA add, when the addition is done.
    DEVICE void release(const DqMemory& memory) const {
        bulk_wait_done();
        fence_proxy_async_all();
        st_release(&memory.arrivals_of(number)->count, before + 1);
    }
};

// The parts of a warpgroup that a CTA adds to, step by step.
struct DqParts {
    const Sizes& sizes;
    const Tile& tile;
    int warpgroup, head, block;

    DEVICE DqSemaphore next() {
        const u32 number = (u32)block_number(sizes, tile, head, block) * DQ_PARTS + warpgroup;
        const SeenTiles seen = tile.seen_by(sizes, block);
        const int end_head = (tile.head_kv + 1) * sizes.group();
        if (++head == end_head) head = end_head - sizes.group(), block = tile.next(block);
        return {number, additions_before(tile, seen), false};
    }
};

// Adds the dQ of a warpgroup to the accumulator, step by step, each after the CTAs before it.
DEVICE void add_dq_blocks_in_sequence(const DqMemory& memory, const Sizes& sizes, const Tile& tile,
                                      const Done& done, u32 shared, int warpgroup) {
    const Barriers barriers{shared + BARRIERS_OFFSET};
    const u32 from = shared + DQ_OFFSET + warpgroup * DQ_BYTES;
    const int steps = tile.blocks() * sizes.group();
    DqParts parts{sizes, tile, warpgroup, tile.head_kv * sizes.group(), tile.begin};
    wait_for_kernel_before();  // it writes zeros
    // Not earlier: the kernel after would see the counts of the call before.
    if (EARLY_POSTPROCESS) launch_dependents();
    if (steps <= 0) return;
    DqSemaphore semaphore = parts.next();
    for (int step = 0; step < steps; step++) {
        semaphore.acquire(memory);
        mbarrier_wait(barriers.dq_full(warpgroup), done.steps + step & 1);
        semaphore.add(memory, from);
        const DqSemaphore added = semaphore;
        if (step + 1 < steps) {
            semaphore = parts.next();
            semaphore.look(memory);  // the answer comes while TMA reads
        }
        tma_store_wait();
        mbarrier_arrive(barriers.dq_empty(warpgroup));
        added.release(memory);
    }
}
