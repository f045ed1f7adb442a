// The producer thread of the attention backward, which copies K, V, Q and dO to shared memory, and
// the threads that add dQ to its accumulator: one for each consumer warpgroup.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

struct InputMaps {
    const TensorMap *q, *k, *v, *dout;
};

// Copies rows of a head, chunk by chunk.
template <int CHUNK_BYTES>
DEVICE void load_rows(u32 to, const TensorMap* map, u32 barrier, int row, int head,
                      const Rows& of) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (VARLEN)
            tma_load_packed(to + i * CHUNK_BYTES, map, barrier, 64 * i, row, head, of);
        else
            tma_load(to + i * CHUNK_BYTES, map, barrier, 64 * i, row, head, of.batch);
}

// Copies K, Q and dO of the first step, V, and then all else in the order of its use.
DEVICE void produce(const InputMaps& maps, const float* lse, const float* delta, const Sizes& sizes,
                    const Tile& tile, const Done& done, u32 shared) {
    const Barriers barriers{shared + BARRIERS_OFFSET};
    if (!PERSISTENT && !tile.is_seen()) return;
    const int k_stage = done.k_stage();
    if (PERSISTENT) mbarrier_wait(barriers.k_empty(k_stage), done.k_phase() ^ 1);
    mbarrier_arrive_expect_tx(barriers.k(k_stage), K_BYTES);
    load_rows<KEYS_CHUNK>(shared + K_OFFSET + k_stage * K_BYTES, maps.k, barriers.k(k_stage),
                          tile.key, tile.head_kv / GROUP_SPLITS, tile.keys);
    const auto load_v = [&] {
        if (PERSISTENT) mbarrier_wait(barriers.v_empty(), done.tiles & 1 ^ 1);
        mbarrier_arrive_expect_tx(barriers.v(), V_BYTES);
        load_rows<KEYS_CHUNK>(shared + V_OFFSET, maps.v, barriers.v(), tile.key,
                              tile.head_kv / GROUP_SPLITS, tile.keys);
    };
    if (PERSISTENT && !tile.is_seen()) return load_v();  // so that phases are those of tiles
    int step = done.steps;
    for_steps(sizes, tile, [&](int head, int block) {
        const int stage = step % Q_STAGES, do_stage = step % DO_STAGES;
        const long long first =
            block_number(sizes, tile, head, block) * BLOCK_M * ROW_TERM_FLOATS;
        const bool is_first = step == done.steps;
        if (is_first) wait_for_kernel_before();  // it writes lse and delta
        mbarrier_wait(barriers.q_empty(stage), (step / Q_STAGES & 1) ^ 1);
        mbarrier_arrive_expect_tx(barriers.q_full(stage), Q_BYTES + ROW_TERM_BYTES * BLOCK_M);
        load_rows<Q_CHUNK>(shared + Q_OFFSET + stage * Q_BYTES, maps.q, barriers.q_full(stage),
                           block * BLOCK_M, head, tile.queries);
        bulk_load(shared + LSE_OFFSET + stage * LSE_BYTES, lse + first, ROW_TERM_BYTES * BLOCK_M,
                  barriers.q_full(stage));
        const u32 do_full = barriers.do_full(do_stage);
        mbarrier_wait(barriers.do_empty(do_stage), (step / DO_STAGES & 1) ^ 1);
        mbarrier_arrive_expect_tx(do_full, DO_BYTES + ROW_TERM_BYTES * BLOCK_M);
        load_rows<Q_CHUNK>(shared + DO_OFFSET + do_stage * DO_BYTES, maps.dout, do_full,
                           block * BLOCK_M, head, tile.queries);
        bulk_load(shared + DELTA_OFFSET + do_stage * DELTA_BYTES, delta + first,
                  ROW_TERM_BYTES * BLOCK_M, do_full);
        if (is_first) load_v();
        step++;
    });
}

// A part of dQ's accumulator. With ZERO_DQ 0 nobody has zeroed it: the first CTA that comes to it stores,
// and the others wait until this is done, and add.
struct DqPart {
    u32 number;
    bool is_first, is_stored;

    // A CTA comes to a part when it has started the one before, and the writer of the other part is
    // at most one step behind. So in a tile each wait is for a CTA that came earlier, and a chain of
    // waits ends. With several tiles of a CTA (PERSISTENT) it also ends where all CTAs go through the
    // blocks of a head in the same sequence: neither STAGGER nor HEADS_INSIDE.
    DEVICE void come(const DqMemory& memory) {
        is_first = !ZERO_DQ && atomic_add(&memory.arrivals_of(number)->count, 1) == 0;
        is_stored = ZERO_DQ || ld_acquire(&memory.arrivals_of(number)->done);
    }
    DEVICE void start(const DqMemory& memory, u32 from) const {
        if (is_first) {
            bulk_store(memory.sums_of(number), from, 4 * DQ_FLOATS);
        } else {
            while (!is_stored && !ld_acquire(&memory.arrivals_of(number)->done)) {
            }
            if (!ZERO_DQ) fence_proxy_async_all();
            bulk_add(memory.sums_of(number), from, 4 * DQ_FLOATS);
        }
        tma_store_commit();
    }
    // Tells the others that what the first CTA has stored is there.
    DEVICE void finish_first(const DqMemory& memory) const {
        bulk_wait_done();
        fence_proxy_async_all();
        st_release(&memory.arrivals_of(number)->done, 1);
    }
};

// Adds the dQ of a warpgroup to the accumulator, step by step.
DEVICE void add_dq_blocks(const DqMemory& memory, const Sizes& sizes, const Tile& tile,
                          const Done& done, u32 shared, int warpgroup) {
    if constexpr (DETERMINISTIC)
        return add_dq_blocks_in_sequence(memory, sizes, tile, done, shared, warpgroup);
    const Barriers barriers{shared + BARRIERS_OFFSET};
    const u32 from = shared + DQ_OFFSET + warpgroup * DQ_BYTES;
    const int steps = tile.blocks() * sizes.group(), first_head = tile.head_kv * sizes.group();
    int head = first_head + tile.first_member(sizes.group());
    int block = tile.begin, left = HEADS_INSIDE ? sizes.group() : tile.blocks();
    auto next_part = [&] {
        DqPart part{(u32)block_number(sizes, tile, head, block) * DQ_PARTS + warpgroup};
        part.come(memory);
        if (HEADS_INSIDE) {
            head = head + 1 == first_head + sizes.group() ? first_head : head + 1;
            if (--left == 0) block = tile.next(block), left = sizes.group();
        } else {
            block = tile.next(block);
            if (--left == 0) head++, left = tile.blocks();
        }
        return part;
    };
    wait_for_kernel_before();  // it writes zeros
    if (steps <= 0) return;
    DqPart part = next_part();
    for (int step = 0; step < steps; step++) {
        mbarrier_wait(barriers.dq_full(warpgroup), done.steps + step & 1);
        part.start(memory, from);
        DqPart next = part;
        if (step + 1 < steps) next = next_part();  // its answers come while TMA reads
        tma_store_wait();
        mbarrier_arrive(barriers.dq_empty(warpgroup));
        if (part.is_first) part.finish_first(memory);
        part = next;
    }
}

// What one thread of each warp of the last warpgroup does: the first one is the producer, then there
// is a dQ writer for each part of dQ.
DEVICE void copy(const InputMaps& maps, const float* lse, const float* delta, float* dq_sum,
                 Arrivals* arrivals, const Sizes& sizes, u32 shared, int role) {
    const Barriers barriers{shared + BARRIERS_OFFSET};
    if (role == 0) {
        for_tiles<ONE_LANE>(
            sizes,
            [&](const Tile& tile, const Done& done) {
                produce(maps, lse, delta, sizes, tile, done, shared);
            },
            [&](int taken) { return take_place(sizes, arrivals, barriers, taken); });
    } else if (role <= DQ_PARTS) {
        for_tiles<ONE_LANE>(
            sizes,
            [&](const Tile& tile, const Done& done) {
                add_dq_blocks({dq_sum, arrivals + DQ_PARTS}, sizes, tile, done, shared, role - 1);
            },
            [&](int taken) { return next_place<ONE_LANE>(barriers, taken); });
    }
}
