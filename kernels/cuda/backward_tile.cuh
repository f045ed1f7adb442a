// The tile of a CTA of the attention backward, and what its warps share.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

// Shared memory begins at a multiple of 1,024. The search space lays it out; offset, bytes of a slot
// and number of slots of each region are macros. Rows of 64 columns lie in chunks of 128 bytes a
// row, one chunk behind the other, swizzled as WGMMA and TMA have it.
constexpr int ROW_BYTES = 128;
constexpr int KEYS_CHUNK = KEYS * ROW_BYTES, Q_CHUNK = BLOCK_M * ROW_BYTES;
constexpr int DS_STAGES = 2;
static_assert(K_BYTES == CHUNKS * KEYS_CHUNK && V_BYTES == K_BYTES, "K and V have all keys");
static_assert(Q_BYTES == CHUNKS * Q_CHUNK && DO_BYTES == Q_BYTES, "Q and dO have a block of rows");
static_assert(ROWS_BYTES >= 4 * BLOCK_M && (ROWS_OFFSET | ROWS_BYTES) % 16 == 0,
              "a slot has a number a row");
static_assert(DS_BYTES == WARPGROUPS * Q_CHUNK, "dS has a chunk of 64 keys of each warpgroup");
static_assert(DQ_BYTES >= 4 * DQ_FLOATS && DQ_BYTES >= CHUNKS * 64 * ROW_BYTES,
              "a slot has the dQ of a warpgroup, and in the end its dK");
static_assert(K_SLOTS >= 1 && V_SLOTS >= 1 && Q_SLOTS >= Q_STAGES && DO_SLOTS >= Q_STAGES &&
                  ROWS_SLOTS >= 2 * Q_STAGES && DS_SLOTS >= DS_STAGES && DQ_SLOTS >= WARPGROUPS,
              "each stage has a slot");
static_assert((K_OFFSET | K_BYTES | V_OFFSET | V_BYTES | Q_OFFSET | Q_BYTES | DO_OFFSET | DO_BYTES |
               DS_OFFSET | DS_BYTES | DQ_OFFSET | DQ_BYTES) %
                      1024 ==
                  0,
              "a swizzle begins anew with every 8 rows");
static_assert(DS_STAGES == 2, "a step and the one before");

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
//     dQ empty    the dQ writer, when TMA has read it, or dK there          who computes dQ
//
// With PERSISTENT there are also:
//
//     K empty     4 warps of each warpgroup that reads K, after a tile      the producer
//     V empty     a thread of each consumer, when TMA has read dV there     the producer
//     next full   the producer, which has stored the number of a tile       all other warps
//     next empty  all other warps, which have loaded it                     the producer
struct Barriers {
    u32 base;
    static constexpr int OF_TILE = 2 + 4 * Q_STAGES + 2 * DS_STAGES + 2 * WARPGROUPS;
    // The last place is that of the next tile's number.
    static constexpr int COUNT = OF_TILE + 5;

    DEVICE u32 k() const { return base; }
    DEVICE u32 v() const { return base + 8; }
    DEVICE u32 q_full(int stage) const { return base + 8 * (2 + stage); }
    DEVICE u32 q_empty(int stage) const { return q_full(Q_STAGES + stage); }
    DEVICE u32 do_full(int stage) const { return q_full(2 * Q_STAGES + stage); }
    DEVICE u32 do_empty(int stage) const { return q_full(3 * Q_STAGES + stage); }
    DEVICE u32 ds_full(int stage) const { return q_full(4 * Q_STAGES + stage); }
    DEVICE u32 ds_empty(int stage) const { return ds_full(DS_STAGES + stage); }
    DEVICE u32 dq_full(int warpgroup) const { return ds_full(2 * DS_STAGES + warpgroup); }
    DEVICE u32 dq_empty(int warpgroup) const { return dq_full(WARPGROUPS + warpgroup); }
    DEVICE u32 k_empty() const { return base + 8 * OF_TILE; }
    DEVICE u32 v_empty() const { return k_empty() + 8; }
    DEVICE u32 next_full() const { return k_empty() + 16; }
    DEVICE u32 next_empty() const { return k_empty() + 24; }
    DEVICE u32 next_number() const { return k_empty() + 32; }

    DEVICE void init() const {
        mbarrier_init(k(), 1);
        mbarrier_init(v(), 1);
        for (int stage = 0; stage < Q_STAGES; stage++) {
            mbarrier_init(q_full(stage), 1);
            mbarrier_init(do_full(stage), 1);
            mbarrier_init(q_empty(stage), 4 * WARPGROUPS);
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
        mbarrier_init(k_empty(), 4 * (WARPGROUPS + DQ_WARPGROUP));
        mbarrier_init(v_empty(), WARPGROUPS);
        mbarrier_init(next_full(), 1);
        mbarrier_init(next_empty(), 4 * (WARPGROUPS + DQ_WARPGROUP) + DQ_PARTS);
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
// What a descriptor's address is increased by.
DEVICE constexpr u64 further(u32 bytes) {
    return bytes >> 4;
}

// One arrival of a warp, when all its threads have come.
DEVICE void arrive_warp(u32 barrier, int lane) {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barrier);
}

enum : u32 { ONE_LANE = 1, ALL_LANES = ~0u };
// Tells the compiler that a number is the same in all lanes that work.
template <u32 LANES>
DEVICE int same(int x) {
    return __reduce_max_sync(LANES, x);
}

// 128 keys of one KV head from `key` on: the work of a CTA, with PERSISTENT of one after the other. It goes through the blocks of query rows
// from `first_block` to before `end_block`, of each query head of the group, first through `begin`;
// where DETERMINISTIC backwards, but not with `larger_keys_first`. With HEADS_INSIDE it goes backwards
// through the blocks once, and through all query heads at each.
struct Tile {
    Rows queries, keys;
    int seqlen_k, diagonal;  // of the sequence, see `Sizes`
    int first_number;        // of blocks of rows, that of the sequence's first for head 0
    int head_kv, key, first_block, end_block, begin;
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
    template <u32 LANES>
    DEVICE Tile uniform() const {
        if (!PERSISTENT) return *this;
        return {{same<LANES>(queries.batch), VARLEN ? same<LANES>(queries.begin) : 0, VARLEN ? same<LANES>(queries.length) : 0},
                {same<LANES>(keys.batch), VARLEN ? same<LANES>(keys.begin) : 0, VARLEN ? same<LANES>(keys.length) : 0},
                VARLEN ? same<LANES>(seqlen_k) : seqlen_k, VARLEN ? same<LANES>(diagonal) : diagonal,
                same<LANES>(first_number), same<LANES>(head_kv), same<LANES>(key),
                same<LANES>(first_block), same<LANES>(end_block), same<LANES>(begin),
                larger_keys_first};
    }
    // Whether any row sees its keys.
    DEVICE bool is_seen() const { return !(WINDOWED || VARLEN) || blocks() > 0; }
};

// The rows or keys of a packed sequence; there may be fewer sequences than a launch has room for.
DEVICE Rows rows_of_sequence(const int* starts, int sequence, int bounds) {
    if (sequence + 1 >= bounds) return {0, 0, 0};
    const int begin = starts[sequence];
    return {0, begin, starts[sequence + 1] - begin};
}

enum { FEW_HEADS = 8 };  // no constexpr: that would change the machine code of all configs

// Tiles start in the order of their numbers. Sections of heads come one after the other, so that the
// L2 cache holds what they share. Under a causal mask a section begins with the first keys of all its
// heads, which most rows see: the shortest tiles come last. So it does where DETERMINISTIC, but
// causal sections of few heads begin with the last keys, except the last one (see
// backward_deterministic.cuh): the more heads, the longer SMs idle at the end of such a section. With
// STAGGER (of full masks) each CTA of a head begins so many blocks later than the one before, so that
// they do not add to the same rows of dQ at the same time.
DEVICE Tile tile_at(const Sizes& sizes, int place) {
    const int tiles = (sizes.seqlen_k + KEYS - 1) / KEYS, all_heads = sizes.tiles / tiles;
    const int section = place / (tiles * sizes.section_heads);
    const int within = place - section * tiles * sizes.section_heads;
    const int first = section * sizes.section_heads;
    const int heads = min(all_heads - first, sizes.section_heads);
    constexpr bool KEYS_OUTSIDE = CAUSAL || DETERMINISTIC;
    const int head = first + (KEYS_OUTSIDE ? within % heads : within / tiles);
    const bool larger_keys_first = DETERMINISTIC && CAUSAL && sizes.section_heads <= FEW_HEADS &&
                                   first + heads < all_heads;
    int key = (KEYS_OUTSIDE ? within / heads : within % tiles) * KEYS;
    if (larger_keys_first) key = (tiles - 1) * KEYS - key;
    const int batch = head / sizes.heads_kv;
    Rows queries{batch}, keys{batch};
    int seqlen_k = sizes.seqlen_k, diagonal = sizes.diagonal, end = sizes.blocks;
    int number = batch * sizes.heads * sizes.blocks;
    if (VARLEN) {
        const Sequences& all = sizes.sequences;
        queries = rows_of_sequence(all.starts_q, batch, all.bounds);
        keys = rows_of_sequence(all.starts_k, batch, all.bounds);
        seqlen_k = keys.length, diagonal += keys.length - queries.length;
        end = (queries.length + BLOCK_M - 1) / BLOCK_M;
        number = first_block_number(queries.begin, batch);
    }
    const int seen = CAUSAL ? max(key - diagonal, 0) / BLOCK_M : 0;
    if (WINDOWED) {
        // Rows before this one see the last key of the tile.
        const int end_row = key + KEYS - 1 - diagonal + sizes.window_keys;
        end = min((end_row + BLOCK_M - 1) / BLOCK_M, end);
    }
    if (WINDOWED || VARLEN) end = max(end, seen);
    int begin = STAGGER ? key / KEYS * STAGGER % max(end, 1) : seen;
    if (HEADS_INSIDE || (DETERMINISTIC && !larger_keys_first)) begin = end - 1;
    const int head_kv = head % sizes.heads_kv;
    return {queries, keys, seqlen_k, diagonal, number,           head_kv,
            key,     seen, end,      begin,    larger_keys_first};
}

// How many steps and tiles a CTA has finished before a tile: stages and phases go on counting.
struct Done {
    int steps, tiles;
};

// Calls work(tile, done) for each tile of this CTA. With PERSISTENT the first one has the CTA's number,
// and next(how many tiles were before) returns that of the next one.
template <u32 LANES, class WORK, class NEXT>
DEVICE void for_tiles(const Sizes& sizes, WORK work, NEXT next) {
    Done done{0, 0};
    for (int place = blockIdx.x, taken = 0; place < sizes.tiles; place = next(taken), taken++) {
        const Tile tile = tile_at(sizes, place).template uniform<LANES>();
        if (tile.exists()) work(tile, done);
        if (!PERSISTENT) return;
        if (!tile.exists()) continue;
        done.steps = same<LANES>(done.steps + tile.blocks() * sizes.group()), done.tiles++;
    }
}

// The number of the next tile, which the producer has taken. All threads of a warp call it, or one of a
// warp in which only that one works.
template <u32 LANES>
DEVICE int next_place(const Barriers& barriers, int taken) {
    mbarrier_wait(barriers.next_full(), taken & 1);
    const int place = ld_shared(barriers.next_number());
    if (LANES == ALL_LANES)
        arrive_warp(barriers.next_empty(), threadIdx.x % 32);
    else
        mbarrier_arrive(barriers.next_empty());
    return same<LANES>(place);
}

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
