// Which tiles a CTA of the attention backward works on, in which order.
//
// Included by attention_bwd_cuda_sm90.cu, whose parameters and sizes it uses.
//
// Without PERSISTENT a CTA has the tile of its number. With it there are as many CTAs as SMs: the first
// tile of a CTA is that of its number, and when its producer has started the last copies of a tile, it
// takes the next one that no CTA has, and hands its place to the other warps. So tiles start in the order
// of their numbers either way. Where DETERMINISTIC, producers take first tiles too: a tile waits for those
// of smaller numbers, which CTAs then have already, even if not all CTAs fit on the device at once.
#pragma once

// Where a tile is, and which tile. A key below 0: there is no tile.
struct TilePlace {
    int batch, head_kv, key;
    bool larger_keys_first;  // see `Tile`
};

enum { FEW_HEADS = 8 };  // no constexpr: that would change the machine code of all configs

// Sections of heads come one after the other, so that the L2 cache holds what they share. Under a causal
// mask a section begins with the first keys of all its heads, which most rows see: the shortest tiles come
// last. So it does where DETERMINISTIC, but causal sections of few heads begin with the last keys, except
// the last one (see backward_deterministic.cuh): the more heads, the longer SMs idle at the end of such a
// section.
DEVICE TilePlace place_of(const Sizes& sizes, int number) {
    const int tiles = (sizes.seqlen_k + KEYS - 1) / KEYS, all_heads = sizes.tiles / tiles;
    const int section = number / (tiles * sizes.section_heads);
    const int within = number - section * tiles * sizes.section_heads;
    const int first = section * sizes.section_heads;
    const int heads = min(all_heads - first, sizes.section_heads);
    constexpr bool KEYS_OUTSIDE = CAUSAL || DETERMINISTIC;
    const int head = first + (KEYS_OUTSIDE ? within % heads : within / tiles);
    const bool larger_keys_first = DETERMINISTIC && CAUSAL && sizes.section_heads <= FEW_HEADS &&
                                   first + heads < all_heads;
    int key = (KEYS_OUTSIDE ? within / heads : within % tiles) * KEYS;
    if (larger_keys_first) key = (tiles - 1) * KEYS - key;
    return {head / sizes.heads_kv, head % sizes.heads_kv, key, larger_keys_first};
}

// The rows or keys of a packed sequence; there may be fewer sequences than a launch has room for.
DEVICE Rows rows_of_sequence(const int* starts, int sequence, int bounds) {
    if (sequence + 1 >= bounds) return {0, 0, 0};
    const int begin = starts[sequence];
    return {0, begin, starts[sequence + 1] - begin};
}

// With STAGGER (of full masks) each tile of a head begins so many blocks later than the one before, so
// that CTAs do not add to the same rows of dQ at the same time.
DEVICE Tile tile_at(const Sizes& sizes, const TilePlace& place) {
    const int batch = place.batch, key = place.key;
    Rows queries{batch}, keys{batch};
    int seqlen_k = sizes.seqlen_k, diagonal = sizes.diagonal, end = sizes.blocks;
    int number = batch * sizes.heads * sizes.blocks;
    if (VARLEN) {
        const Sequences& all = sizes.sequences;
        queries = rows_of_sequence(all.starts_q, batch, all.bounds);
        keys = rows_of_sequence(all.starts_k, batch, all.bounds);
        seqlen_k = keys.length, diagonal += keys.length - queries.length;
        end = (queries.length + BLOCK_M - 1) / BLOCK_M;
        number = first_block_number<BLOCK_M>(queries.begin, batch);
    }
    const int seen = CAUSAL ? max(key - diagonal, 0) / BLOCK_M : 0;
    if (WINDOWED) {
        // Rows before this one see the last key of the tile.
        const int end_row = key + KEYS - 1 - diagonal + sizes.window_keys;
        end = min((end_row + BLOCK_M - 1) / BLOCK_M, end);
    }
    if (WINDOWED || VARLEN) end = max(end, seen);
    int begin = STAGGER ? key / KEYS * STAGGER : seen;
    if (STAGGER && begin >= end) begin %= max(end, 1);
    if (HEADS_INSIDE || (DETERMINISTIC && !place.larger_keys_first)) begin = end - 1;
    int key_tile = key / KEYS;
    if (GROUP_SPLITS > 1)
        key_tile += VARLEN ? first_block_number<KEYS>(keys.begin, batch)
                           : batch * sizes.heads_kv * sizes.key_tiles;
    return {queries, keys, seqlen_k, diagonal, number,   place.head_kv,
            key,     seen, end,      begin,    key_tile, place.larger_keys_first};
}

// ------------------------------------------------------------------------- one tile after the other

enum : u32 { ONE_LANE = 1, ALL_LANES = ~0u };

// Tells the compiler that a number is the same in all lanes that work, so that what depends on it lies in
// uniform registers. TMA and WGMMA take their operands from there; without this they are moved there again
// and again, which makes a step up to 15 % longer.
template <u32 LANES>
DEVICE int same(int x) {
    return __reduce_max_sync(LANES, x);
}

enum : bool { TAKES_FIRST_TILE = DETERMINISTIC && PERSISTENT };  // no constexpr, like FEW_HEADS

// How many steps and tiles a CTA has finished before a tile: stages and phases go on counting.
struct Done {
    int steps, tiles;

    DEVICE int k_stage() const { return tiles % K_STAGES; }
    DEVICE int k_phase() const { return tiles / K_STAGES & 1; }
};

// Calls work(tile, done) for each tile of this CTA, and next(how many tiles were before) for the place of
// the following one. Returns what is done in the end.
template <u32 LANES, class WORK, class NEXT>
DEVICE Done for_tiles(const Sizes& sizes, WORK work, NEXT next) {
    Done done{0, 0};
    TilePlace place = TAKES_FIRST_TILE ? next(0) : place_of(sizes, blockIdx.x);
    for (int taken = TAKES_FIRST_TILE; place.key >= 0; place = next(taken), taken++) {
        const Tile tile = tile_at(sizes, place);
        if (tile.exists()) work(tile, done);
        if (!PERSISTENT) break;
        if (!tile.exists()) continue;
        done.steps = same<LANES>(done.steps + tile.blocks() * sizes.group()), done.tiles++;
    }
    return done;
}

// The place of the next tile, which the producer has taken. All lanes of a warp call it, or the one that
// works.
template <u32 LANES>
DEVICE TilePlace next_place(const Barriers& barriers, int taken) {
    mbarrier_wait(barriers.next_full(), taken & 1);
    const u32 from = barriers.next_place();
    const int batch = ld_shared(from), head_kv = ld_shared(from + 4), key = ld_shared(from + 8);
    const bool larger_keys_first = DETERMINISTIC && CAUSAL && ld_shared(from + 12);
    if (LANES == ALL_LANES)
        arrive_warp(barriers.next_empty(), threadIdx.x % 32);
    else
        mbarrier_arrive(barriers.next_empty());
    return {same<LANES>(batch), same<LANES>(head_kv), same<LANES>(key), larger_keys_first};
}

// Takes the next tile. The producer calls it.
DEVICE TilePlace take_place(const Sizes& sizes, Arrivals* taken_by_all, const Barriers& barriers,
                        int taken) {
    if (taken == 0) wait_for_kernel_before();  // it sets the count to 0
    const int first_ones = TAKES_FIRST_TILE ? 0 : gridDim.x;
    const int number = same<ONE_LANE>(first_ones + atomic_add(&taken_by_all->count, 1));
    TilePlace place{0, 0, -1};
    if (number < sizes.tiles) place = place_of(sizes, number);
    mbarrier_wait(barriers.next_empty(), taken & 1 ^ 1);
    const u32 to = barriers.next_place();
    st_shared(to, place.batch), st_shared(to + 4, place.head_kv), st_shared(to + 8, place.key);
    if (DETERMINISTIC && CAUSAL) st_shared(to + 12, place.larger_keys_first);
    mbarrier_arrive(barriers.next_full());
    return {same<ONE_LANE>(place.batch), same<ONE_LANE>(place.head_kv), same<ONE_LANE>(place.key),
            place.larger_keys_first};
}
