// The tile of a CTA of the attention backward, and what its warps share.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

#include "cuda/backward_blocks.cuh"

// Shared memory begins at a multiple of 1,024. The search space lays it out; offset, bytes of a slot
// and number of slots of each region are macros. Rows of 64 columns lie in chunks of 128 bytes a
// row, one chunk behind the other, swizzled as WGMMA and TMA have it.
constexpr int ROW_BYTES = 128;
constexpr int KEYS_CHUNK = KEYS * ROW_BYTES, Q_CHUNK = BLOCK_M * ROW_BYTES;
constexpr int DS_STAGES = 2;  // a step and the one before
static_assert(K_BYTES == CHUNKS * KEYS_CHUNK && V_BYTES == K_BYTES, "K and V have all keys");
static_assert(Q_BYTES == CHUNKS * Q_CHUNK && DO_BYTES == Q_BYTES, "Q and dO have a block of rows");
static_assert(LSE_BYTES >= ROW_TERM_BYTES * BLOCK_M && DELTA_BYTES >= ROW_TERM_BYTES * BLOCK_M &&
                  (LSE_OFFSET | LSE_BYTES | DELTA_OFFSET | DELTA_BYTES) % 16 == 0,
              "a slot has a term a row");
static_assert(DS_BYTES == WARPGROUPS * Q_CHUNK, "dS has a chunk of 64 keys of each warpgroup");
static_assert(DQ_BYTES >= 4 * DQ_FLOATS && DQ_BYTES >= CHUNKS * 64 * ROW_BYTES,
              "a slot has the dQ of a warpgroup, and in the end its dK");
static_assert(K_SLOTS >= K_STAGES && V_SLOTS >= 1 && Q_SLOTS >= Q_STAGES && DO_SLOTS >= DO_STAGES &&
                  LSE_SLOTS >= Q_STAGES && DELTA_SLOTS >= DO_STAGES && DS_SLOTS >= DS_STAGES &&
                  DQ_SLOTS >= WARPGROUPS,
              "each stage has a slot");
static_assert((K_OFFSET | K_BYTES | V_OFFSET | V_BYTES | Q_OFFSET | Q_BYTES | DO_OFFSET | DO_BYTES |
               DS_OFFSET | DS_BYTES | DQ_OFFSET | DQ_BYTES) %
                      1024 ==
                  0,
              "a swizzle begins anew with every 8 rows");
static_assert(ONES_SLOTS >= FOLD_ROW_TERMS && ONES_BYTES >= 256 && ONES_OFFSET % 16 == 0, "ones");

// The mbarriers. Use i of a buffer with n stages is of stage i % n, in phase i / n.
//
//     barrier     arrivals of a phase                                       who waits
//     K, V        the producer, and the bytes                               consumers
//     Q full      the producer, and the bytes of a block with its lse       consumers
//     dO full     the producer, and the bytes of a block with its delta     consumers
//     Q, dO empty 4 warps of each warpgroup, after dK or dV                 the producer
//     dS full     4 warps of each warpgroup that have stored their part     who computes dQ
//     dS empty    4 warps of each warpgroup that computes dQ, after it      consumers
//     dQ full     4 warps of a warpgroup that have stored this part         its dQ writer
//     dQ empty    the dQ writer, when TMA has read it; after dK there, a    who computes dQ
//                 thread of the consumer that has written dK
//
// With PERSISTENT there are also:
//
//     K empty     4 warps of each warpgroup that reads K, after a tile      the producer
//     V empty     a thread of each consumer, when TMA has read dV there     the producer
//     next full   the producer, which has stored the place of a tile        all working warps
//     next empty  all working warps, which have loaded it                   the producer
//
// Working warps are those of the warpgroups that compute, and the dQ writers.
struct Barriers {
    u32 base;
    static constexpr int OF_DS = 1 + K_STAGES + 2 * Q_STAGES + 2 * DO_STAGES;
    static constexpr int OF_TILE = OF_DS + 2 * DS_STAGES + 2 * WARPGROUPS;
    // In the last slots is the place of the next tile.
    static constexpr int COUNT = OF_TILE + K_STAGES + 5;

    DEVICE u32 k(int stage) const { return base + 8 * stage; }
    DEVICE u32 v() const { return k(K_STAGES); }
    DEVICE u32 q_full(int stage) const { return base + 8 * (1 + K_STAGES + stage); }
    DEVICE u32 q_empty(int stage) const { return q_full(Q_STAGES + stage); }
    DEVICE u32 do_full(int stage) const { return q_full(2 * Q_STAGES + stage); }
    DEVICE u32 do_empty(int stage) const { return do_full(DO_STAGES + stage); }
    DEVICE u32 ds_full(int stage) const { return base + 8 * (OF_DS + stage); }
    DEVICE u32 ds_empty(int stage) const { return ds_full(DS_STAGES + stage); }
    DEVICE u32 dq_full(int warpgroup) const { return ds_full(2 * DS_STAGES + warpgroup); }
    DEVICE u32 dq_empty(int warpgroup) const { return dq_full(WARPGROUPS + warpgroup); }
    DEVICE u32 k_empty(int stage) const { return base + 8 * (OF_TILE + stage); }
    DEVICE u32 v_empty() const { return k_empty(K_STAGES); }
    DEVICE u32 next_full() const { return v_empty() + 8; }
    DEVICE u32 next_empty() const { return v_empty() + 16; }
    DEVICE u32 next_place() const { return v_empty() + 24; }

    DEVICE void init() const {
        for (int stage = 0; stage < K_STAGES; stage++) mbarrier_init(k(stage), 1);
        mbarrier_init(v(), 1);
        for (int stage = 0; stage < Q_STAGES; stage++) {
            mbarrier_init(q_full(stage), 1);
            mbarrier_init(q_empty(stage), 4 * WARPGROUPS);
        }
        for (int stage = 0; stage < DO_STAGES; stage++) {
            mbarrier_init(do_full(stage), 1);
            mbarrier_init(do_empty(stage), 4 * WARPGROUPS);
        }
        for (int stage = 0; stage < DS_STAGES; stage++) {
            mbarrier_init(ds_full(stage), 4 * WARPGROUPS);
            mbarrier_init(ds_empty(stage), 4 * (DQ_WARPGROUP ? 1 : WARPGROUPS));
        }
        for (int warpgroup = 0; warpgroup < WARPGROUPS; warpgroup++) {
            mbarrier_init(dq_full(warpgroup), 4);
            mbarrier_init(dq_empty(warpgroup), 1);
        }
        if (!PERSISTENT) return;
        for (int stage = 0; stage < K_STAGES; stage++)
            mbarrier_init(k_empty(stage), 4 * (WARPGROUPS + DQ_WARPGROUP));
        mbarrier_init(v_empty(), WARPGROUPS);
        mbarrier_init(next_full(), 1);
        mbarrier_init(next_empty(), 4 * (WARPGROUPS + DQ_WARPGROUP) + WARPGROUPS);
    }
};
static_assert(BARRIERS_OFFSET % 8 == 0 && BARRIERS_BYTES >= 8 &&
                  BARRIERS_SLOTS >= Barriers::COUNT,
              "each barrier has a slot");

// The address of a unit of 16 bytes of a row, in a chunk.
DEVICE u32 swizzled_address(u32 chunk, int row, int unit) {
    return chunk + row * ROW_BYTES + ((unit ^ row % 8) << 4);
}

// The matrix descriptor of rows of a chunk, or of chunks that are `leading_bytes` apart. The compiler
// is to compute it where it is used: those of all products do not fit the registers.
DEVICE u64 rows_descriptor(u32 address, u32 leading_bytes = 0) {
    return matrix_descriptor<ROW_BYTES>(opaque(address), leading_bytes, 8 * ROW_BYTES);
}
// Terms of rows, not swizzled: core matrices of 8 rows of 16 bytes. The stride byte offset, between
// groups of 8 rows, is a core matrix. The leading byte offset, between halves of the 16 columns of a
// product, is 0: the second half is the first one again, for which A has zeros.
constexpr int CORE_MATRIX = 8 * 16;
DEVICE u64 row_terms_descriptor(u32 address) {
    return (u64)(CORE_MATRIX >> 4) << 32 | (opaque(address) & 0x3FFFF) >> 4;
}
// Ones for the three parts of terms, in all rows, not swizzled: a core matrix of ones and one of zeros
// behind it. The stride byte offset is 0: all groups of 8 rows have the same ones. The leading byte
// offset is a core matrix: the second half of the columns has the zeros.
DEVICE u64 ones_descriptor(u32 address) {
    return (u64)(CORE_MATRIX >> 4) << 16 | (opaque(address) & 0x3FFFF) >> 4;
}
// One warp writes them.
DEVICE void store_ones(u32 to, int lane) {
    const u32 one = 0x3F80, word = lane % 4;  // of a row, of two columns
    st_shared(to + 4 * lane, word == 0 ? one << 16 | one : word == 1 ? one : 0);
    st_shared(to + CORE_MATRIX + 4 * lane, 0);
    fence_proxy_async();
}
// What a descriptor's address is increased by.
DEVICE constexpr u64 further(u32 bytes) {
    return bytes >> 4;
}

// One arrival of a warp, when all its threads have come.
DEVICE void arrive_warp(u32 barrier, int lane) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barrier);
}

// 128 keys of one KV head from `key` on: what a CTA works on. It goes through the blocks of query rows
// from `first_block` to before `end_block`, of each query head of the group, first through `begin`;
// where DETERMINISTIC backwards, but not with `larger_keys_first`. With HEADS_INSIDE it goes backwards
// through the blocks once, and through all query heads at each.
struct Tile {
    Rows queries, keys;
    int seqlen_k, diagonal;  // of the sequence, see `Sizes`
    int first_number;        // of blocks of rows, that of the sequence's first for head 0
    int head_kv, key, first_block, end_block, begin;
    int key_tile;  // with GROUP_SPLITS: its number, of those of all batches and sequences
    bool larger_keys_first;  // DETERMINISTIC: CTAs of larger keys add to dQ first, and start first

    DEVICE bool exists() const { return !VARLEN || key < seqlen_k; }
    DEVICE int blocks() const { return end_block - first_block; }
    DEVICE int next(int block) const {
        if (HEADS_INSIDE) return block - 1;
        if (DETERMINISTIC) return CAUSAL && larger_keys_first ? block + 1 : block - 1;
        return block + 1 == end_block ? first_block : block + 1;
    }
    // The query head of a group at which HEADS_INSIDE begins: each CTA of a KV head has another one,
    // so that they do not add to the same rows of dQ at the same time.
    DEVICE int first_member(int group) const { return HEADS_INSIDE ? key / KEYS % group : 0; }
    // The tiles whose CTAs add to a block of rows, of any query head.
    DEVICE SeenTiles seen_by(const Sizes& sizes, int block) const {
        const int length = VARLEN ? min(seqlen_k, sizes.seqlen_k) : seqlen_k;
        return seen_tiles(block * BLOCK_M, length, diagonal, sizes.window_keys);
    }
    // Whether any row sees its keys.
    DEVICE bool is_seen() const { return !(WINDOWED || VARLEN) || blocks() > 0; }
};

// Calls work(query head, block) for each step of a tile.
template <class WORK>
DEVICE void for_steps(const Sizes& sizes, const Tile& tile, WORK work) {
    const int first_head = tile.head_kv * sizes.group(), end_head = first_head + sizes.group();
    if constexpr (DETERMINISTIC) {
        for (int i = 0, block = tile.begin; i < tile.blocks(); i++, block = tile.next(block))
            for (int head = first_head; head < end_head; head++) work(head, block);
    } else if constexpr (HEADS_INSIDE) {
        const int begin = first_head + tile.first_member(sizes.group());
        for (int i = 0, block = tile.begin; i < tile.blocks(); i++, block = tile.next(block)) {
            for (int head = begin; head < end_head; head++) work(head, block);
            for (int head = first_head; head < begin; head++) work(head, block);
        }
    } else {
        for (int head = first_head; head < end_head; head++)
            for (int i = 0, block = tile.begin; i < tile.blocks(); i++, block = tile.next(block))
                work(head, block);
    }
}

// The number of a block of query rows among those of all heads.
DEVICE long long block_number(const Sizes& sizes, const Tile& tile, int head, int block) {
    return tile.first_number + (long long)head * sizes.blocks + block;
}

// The memory of all parts of dQ's accumulator: those of a block and a warpgroup.
struct DqMemory {
    float* sums;
    Arrivals* arrivals;

    DEVICE float* sums_of(u32 number) const { return sums + (long long)number * DQ_FLOATS; }
    DEVICE Arrivals* arrivals_of(u32 number) const { return arrivals + number; }
};
