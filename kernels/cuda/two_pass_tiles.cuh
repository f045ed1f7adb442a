// The tiles of both passes of the two-pass attention backward, and which of them a CTA works on.
//
// Included by attention_bwd_two_pass_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

constexpr int TILE_ROWS = 64 * WARPGROUPS, TILE_KEYS = 64 * CLUSTER_SIZE;

DEVICE int blocks_of(int length, int block) {
    return (length + block - 1) / block;
}

// A head and the number of a tile of it, in the order in which tiles start. Sections of heads come
// one after the other, so that the L2 cache holds what they share. With a mask a section begins
// with tile 0 of all its heads: the caller numbers the longest tiles first.
struct TilePlace {
    int head, tile;  // head: of all batches
};

DEVICE TilePlace place_of(int number, int all_tiles, int tiles_of_head, int section_heads) {
    const int section = number / (tiles_of_head * section_heads);
    const int within = number - section * tiles_of_head * section_heads;
    const int first = section * section_heads;
    if (!(CAUSAL || WINDOWED)) return {first + within / tiles_of_head, within % tiles_of_head};
    const int heads = min(all_tiles / tiles_of_head - first, section_heads);
    return {first + within % heads, within / heads};
}

// Key pass: TILE_KEYS keys of one KV head from `key` on, what a CTA or a cluster works on. It goes
// through blocks of query rows from `first_block` to before `end_block`, of each query head of the
// group: at least one, which may see no key.
struct KeyTile {
    int batch, head_kv, key, first_block, end_block;

    DEVICE int blocks() const { return end_block - first_block; }
};

DEVICE KeyTile key_tile(const Sizes& sizes, int number) {
    const int tiles = blocks_of(sizes.seqlen_k, TILE_KEYS);
    const TilePlace place = place_of(number, sizes.tiles, tiles, sizes.section_heads);
    const int key = place.tile * TILE_KEYS;
    const int first = CAUSAL ? max(key - sizes.diagonal, 0) / BLOCK_M : 0;
    int end = blocks_of(sizes.seqlen_q, BLOCK_M);
    if (WINDOWED) {
        // Rows before this one see the last key of the tile.
        const int end_row = key + TILE_KEYS - 1 - sizes.diagonal + sizes.window_keys;
        end = min(blocks_of(max(end_row, 0), BLOCK_M), end);
    }
    return {place.head / sizes.heads_kv, place.head % sizes.heads_kv, key, first,
            max(end, first + 1)};
}

// Query pass: TILE_ROWS rows of one query head from `row` on. It goes through blocks of keys from
// `end_block` - 1 down to `first_block`: at least one, of which no row may see a key.
struct QueryTile {
    int batch, head, head_kv, row, first_block, end_block;

    DEVICE int blocks() const { return end_block - first_block; }
};

// The block of keys behind the last one that the rows [row, row + count) see.
DEVICE int end_of_keys(const Sizes& sizes, int row, int count) {
    int keys = sizes.seqlen_k;
    if (CAUSAL) keys = min(keys, min(row + count, sizes.seqlen_q) + sizes.diagonal);
    return row < sizes.seqlen_q ? max(blocks_of(max(keys, 0), BLOCK_N), 1) : 1;
}
// The first block of keys that the rows from `row` on see.
DEVICE int first_of_keys(const Sizes& sizes, int row) {
    if (!WINDOWED || row >= sizes.seqlen_q) return 0;
    return max(row + sizes.diagonal - sizes.window_keys + 1, 0) / BLOCK_N;
}

DEVICE QueryTile query_tile(const Sizes& sizes, int number) {
    const int tiles = blocks_of(sizes.seqlen_q, TILE_ROWS);
    const TilePlace place =
        place_of(number, sizes.tiles, tiles, sizes.section_heads * sizes.group());
    // The last rows see most keys.
    const int row = (CAUSAL || WINDOWED ? tiles - 1 - place.tile : place.tile) * TILE_ROWS;
    const int head = place.head % sizes.heads, end = end_of_keys(sizes, row, TILE_ROWS);
    return {place.head / sizes.heads, head, head / sizes.group(),
            row, min(first_of_keys(sizes, row), end - 1), end};
}

// ------------------------------------------------------------------------ one tile after the other

enum : u32 { ONE_LANE = 1, ALL_LANES = ~0u };

// Tells the compiler that a number is the same in all lanes that work, so that what depends on it
// lies in uniform registers, from which TMA and WGMMA take their operands.
template <u32 LANES>
DEVICE int same(int x) {
    return __reduce_max_sync(LANES, x);
}

// Calls work(number of a tile, how many tiles came before) for each tile of a CTA or cluster: that
// of its own number or, PERSISTENT, those of its list. Those of list i are numbers [i] to [i + 1]
// of the table, counted from its start (see the host side); one number more is read, and not used.
template <u32 LANES, class WORK>
DEVICE void for_tiles(const int* table, WORK work) {
    const int list = blockIdx.x / CLUSTER_SIZE;
    if (!PERSISTENT) {
        work(list, 0);
        return;
    }
    const int first = same<LANES>(table[list]), count = same<LANES>(table[list + 1]) - first;
    if (LANES == ONE_LANE) {  // the producer has few registers, and is ahead anyway
        for (int i = 0; i < count; i++) work(same<LANES>(table[first + i]), i);
        return;
    }
    int number = table[first];
    for (int i = 0; i < count; i++) {
        const int following = table[first + i + 1];  // long before its use
        work(same<LANES>(number), i);
        number = following;
    }
}
