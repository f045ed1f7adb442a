// Attention of few queries over a cache of keys and values, by TMA. attention_decode_cuda_sm90.py
// says what each parameter trades.
//
// Every warp has a pipeline of its own. It copies K and V of blocks of BLOCK_N keys in turns into
// the `num_stages` stages of its part of shared memory, and attends all query rows of a KV head to
// them. So warps wait for no one but the memory. Of a split, each warp has consecutive leaves. At
// its end the warps add up what they have, in the order of the tree (cuda/decode_problem.cuh):
//
//      warp 0    leaves  0 -  3    + warp 1    + warp 2    write
//      warp 1    leaves  4 -  7    |           |
//      warp 2    leaves  8 - 11    + warp 3    |
//      warp 3    leaves 12 - 15    |
//
// Copies go on meanwhile: those of the CTA's next split begin before the last one is computed. A copy
// brings whole rows, of a block or of a page. A block lies in shared memory as
//
//      box 0 (of BOX_ROWS rows)                 box 1 ...
//      panel 0 (128 bytes a row)  panel 1 ...   panel 0 ...
//
// While the kernel before still runs, a CTA finds its first split by what the lengths are so far, and
// brings the queries and the first blocks to the L2 cache. If a length has changed by the end of that
// kernel, it finds the split again.

#include "cuda/bulk_copy.cuh"
#include "cuda/decode_rows.cuh"
#include "cuda/swizzled_tile.cuh"

// Each default may be replaced by any value for which the static_asserts hold.
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V HEAD_DIM
#endif
#ifndef BF16
#define BF16 1
#endif
#ifndef E4M3_CACHE
#define E4M3_CACHE 0
#endif
#ifndef GROUP
#define GROUP 4
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef WINDOWED
#define WINDOWED 0
#endif
#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef SINKS
#define SINKS 0
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 0
#endif
#ifndef BLOCK_M
#define BLOCK_M 8
#endif
#ifndef BLOCK_N
#define BLOCK_N 32
#endif
#ifndef num_warps
#define num_warps 4
#endif
#ifndef num_stages
#define num_stages 3
#endif
#ifndef CTAS_PER_SM
#define CTAS_PER_SM 1
#endif
#ifndef LEAF_KEYS
#define LEAF_KEYS 64
#endif
#ifndef MOST_LEAVES
#define MOST_LEAVES 128
#endif
#ifndef TREE_DEPTH
#define TREE_DEPTH 2
#endif

static_assert(HEAD_DIM % 64 == 0 && HEAD_DIM_V % 64 == 0, "TMA copies 128 bytes of a row");
static_assert(BLOCK_N % 16 == 0 && BLOCK_M % 8 == 0, "a fragment has 16 keys and 8 query rows");
static_assert(PAGE_SIZE == 0 || PAGE_SIZE % BLOCK_N == 0 ||
                  (BLOCK_N % PAGE_SIZE == 0 && PAGE_SIZE % 16 == 0),
              "a block has whole pages, or a page whole blocks");
static_assert(LEAF_KEYS % BLOCK_N == 0, "a leaf has whole blocks");
static_assert(num_warps <= 8 && (num_warps & (num_warps - 1)) == 0, "warps add up in pairs");

constexpr int KV_BYTES = E4M3_CACHE ? 1 : 2;
constexpr int PANEL_BYTES = HEAD_DIM * KV_BYTES % 128 || HEAD_DIM_V * KV_BYTES % 128 ? 64 : 128;
constexpr int THREADS = 32 * num_warps;
constexpr int WARPS_LOG2 = num_warps == 1 ? 0 : num_warps == 2 ? 1 : num_warps == 4 ? 2 : 3;
constexpr int BOX_ROWS = PAGE_SIZE && PAGE_SIZE < BLOCK_N ? PAGE_SIZE : BLOCK_N;
constexpr int BOXES = BLOCK_N / BOX_ROWS;  // of a block, at most four
constexpr int ROWS_OF_PAGE = PAGE_SIZE ? PAGE_SIZE : 1 << 30;

// A block of K or V, of 16-bit columns.
template <int COLUMNS>
struct Block {
    typedef SmemTile<BOX_ROWS, COLUMNS> Box;
    static constexpr int BYTES = BOXES * Box::BYTES;

    static DEVICE int at(int row, int chunk, int lane_row, int next = 0) {
        return row / BOX_ROWS * Box::BYTES + Box::at(row % BOX_ROWS, chunk, lane_row, next);
    }
};

struct Shape {
    static constexpr int N_TILES = BLOCK_M / 8, D_STEPS = HEAD_DIM / 16;
    static constexpr int S_TILES = BLOCK_N / 16, O_TILES = HEAD_DIM_V / 16;
    static constexpr bool IS_BF16 = BF16, IS_E4M3 = E4M3_CACHE;
    typedef Block<HEAD_DIM * KV_BYTES / 2> KTile;
    typedef Block<HEAD_DIM_V * KV_BYTES / 2> VTile;
};
typedef Shape::KTile KTile;
typedef Shape::VTile VTile;
typedef DecodeRows<Shape> QueryRows;
constexpr bool IS_WIDE = BLOCK_M * HEAD_DIM_V > 1024;  // a second leaf does not fit in registers
constexpr int NODES = TREE_DEPTH - !IS_WIDE;           // of a warp in shared memory
typedef QueryRows::Factors Factors;
typedef u32 Queries[Shape::D_STEPS][Shape::N_TILES][2];

#if COMBINE_SPLITS  // the second kernel, by itself
#include "cuda/decode_combine.cuh"
#else
// search_spaces/attention_decode_cuda_sm90.yaml lays out the shared memory.
static_assert(STAGES_OFFSET % 1024 == 0 && STAGES_BYTES % 1024 == 0, "a swizzle begins at 1 KiB");
static_assert(STAGES_BYTES >= KTile::BYTES && STAGES_BYTES >= VTile::BYTES, "a stage holds a block");
static_assert(STAGES_SLOTS == num_warps * num_stages, "each warp has its stages");
static_assert(MERGED_OFFSET % 16 == 0 && MERGED_BYTES == QueryRows::KEPT_BYTES &&
                  MERGED_SLOTS == num_warps / 2,
              "half of the warps keep their rows for the others");
static_assert(NODES_OFFSET % 16 == 0 && NODES_BYTES == QueryRows::KEPT_BYTES &&
                  NODES_SLOTS == num_warps * NODES,
              "each warp keeps a node of each height below the top");
static_assert(BARRIERS_OFFSET % 8 == 0 && BARRIERS_BYTES == 8 && BARRIERS_SLOTS == STAGES_SLOTS,
              "each stage has a barrier");

#include "cuda/decode_pipeline.cuh"
#include "cuda/decode_queries.cuh"

// Sets the scores of keys that a row does not see to -inf. The block begins at key `first`.
DEVICE void mask(QueryRows::Scores& s, const Split& split, const Sizes& sizes, int first) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < Shape::N_TILES; ++n)
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const int query = (8 * n + 2 * (lane % 4) + row) / GROUP;
            const int diagonal = split.keys - sizes.seqlen_q + query;
            const int end = CAUSAL ? min(diagonal + 1, split.end) : split.end;
            const int begin = WINDOWED ? diagonal - sizes.window_left : 0;
#pragma unroll
            for (int t = 0; t < Shape::S_TILES; ++t)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int key = first + 16 * t + 8 * half + lane / 4;
                    if (key >= end || (WINDOWED && key < begin))
                        s[t][n][2 * half + row] = MINUS_INFINITY;
                }
        }
}

DEVICE void soft_cap(QueryRows::Scores& s, const Factors& tanh_scale) {
#pragma unroll
    for (int t = 0; t < Shape::S_TILES; ++t)
#pragma unroll
        for (int n = 0; n < Shape::N_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                asm("tanh.approx.f32 %0, %1;" : "=f"(s[t][n][i]) : "f"(s[t][n][i] * tanh_scale[n][i % 2]));
}

// Attends the rows to the block at the cursor.
DEVICE void attend_block(QueryRows& rows, const SplitQueries& queries, Pipeline& pipeline,
                         Reader& reader, const Cursor& at, const Sizes& sizes, const Cache& cache) {
    QueryRows::Scores s;
    QueryRows::compute_scores(s, queries.q, reader.wait(pipeline));
    reader.release(pipeline, sizes, cache);
    if (SOFTCAP) soft_cap(s, queries.before_tanh);
    const bool is_cut = at.key + BLOCK_N > at.split.end;
    if (is_cut || CAUSAL || WINDOWED) mask(s, at.split, sizes, at.key);
    rows.softmax(s, queries.scale_log2);
    const u32 v_tile = reader.wait(pipeline);
    if (is_cut) clear_values(v_tile, at.split.end - at.key);
    rows.add_values(s, v_tile);
    if (is_cut) fence_proxy_async();  // the next copy overwrites the zeros
    reader.release(pipeline, sizes, cache);
}

// Adds up the rows of all warps, in the order of the tree; warp 0 then has the sum. Warps below
// `busy` have leaves.
DEVICE void merge_warps(QueryRows& rows, u32 smem, int busy) {
    const int warp = threadIdx.x / 32;
    if (num_warps > 1) __syncthreads();  // all have read what is there from the split before
#pragma unroll
    for (int step = 1; step < num_warps; step *= 2) {
        const u32 kept = smem + MERGED_OFFSET + warp / (2 * step) * MERGED_BYTES;
        if (step > 1) __syncthreads();  // those of the step before have been read
        if (warp % (2 * step) == step) rows.keep(kept);
        __syncthreads();
        if (warp % (2 * step) == 0 && warp + step < busy) rows.add_kept<false>(kept);
    }
}

// Writes the output and the logsumexp of a sequence with one split, or the rows as they are, in
// fp32.
struct Outputs {
    Element* out;
    float *lse, *partial;
    float2* ends;
    const float *sinks, *v_descale;
    Strides strides;

    DEVICE void write(const QueryRows& rows, const Split& split, const Sizes& sizes) const {
        const int lane = threadIdx.x % 32, heads = sizes.heads_kv * GROUP;
#pragma unroll
        for (int n = 0; n < Shape::N_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = 8 * n + 2 * (lane % 4) + i, query = row / GROUP;
                if (query >= sizes.seqlen_q) continue;
                const int head = split.head_kv * GROUP + row % GROUP;
                const long long number =
                    (long long)(split.sequence * heads + head) * sizes.seqlen_q + query;
                if (split.splits > 1) {
                    const long long kept = number * sizes.splits_kept + split.number;
                    if (lane < 4) ends[kept] = make_float2(rows.max_log2[n][i], rows.sum[n][i]);
                    write_row(partial + kept * HEAD_DIM_V, rows, n, i, 1.0f);
                    continue;
                }
                const RowEnd end(rows.max_log2[n][i], rows.sum[n][i], SINKS ? sinks + head : nullptr);
                if (lane < 4) lse[number] = end.lse;
                write_row(out + split.sequence * strides.batch + head * strides.head +
                              (long long)query * strides.row,
                          rows, n, i,
                          end.scale * descale_of_values(v_descale, sizes, split.sequence,
                                                        split.head_kv));
            }
    }

    static DEVICE void write_row(float* to, const QueryRows& rows, int n, int i, float scale) {
#pragma unroll
        for (int o = 0; o < Shape::O_TILES; ++o)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                to[QueryRows::dimension(o, half)] = rows.out[o][n][2 * half + i];
    }

    static DEVICE void write_row(Element* to, const QueryRows& rows, int n, int i, float scale) {
#pragma unroll
        for (int o = 0; o < Shape::O_TILES; ++o) {
            const u32 two = cvt_16bit_x2<Shape::IS_BF16>(rows.out[o][n][i] * scale,
                                                         rows.out[o][n][2 + i] * scale);
            to[QueryRows::dimension(o, 0)] = (Element)two;
            to[QueryRows::dimension(o, 1)] = (Element)(two >> 16);
        }
    }
};

// Attends the rows to the warp's leaves of a split.
DEVICE void attend_leaves(QueryRows& rows, const SplitQueries& q, Pipeline& pipeline, Reader& reader,
                          Cursor& at, const Sizes& sizes, const Cache& cache, u32 nodes) {
    LeafTree<QueryRows, IS_WIDE> tree;
    tree.nodes = nodes;
    tree.count = 0;
    const int end = at.split.end;
    do {
        rows.init();
        const int leaf_end = min(at.key + at.split.leaf_keys, end);
        for (; at.key < leaf_end; at.key += BLOCK_N)
            attend_block(rows, q, pipeline, reader, at, sizes, cache);
        rows.sum_lanes();
        tree.push(rows, at.key >= end);
    } while (at.key < end);
}

// Waits for the kernel before, and puts the pipeline at the CTA's first split. It is found before the
// wait, so that its first block and its queries come to the L2 cache, and again if a length has
// changed. The cache comes with the early lengths, and gets the others.
DEVICE void find_first_split(Pipeline& pipeline, Cache& cache, const Sizes& sizes,
                             const int* seqlens, const Element* q, const Strides& q_strides) {
    const Lengths early = cache.lengths;
    cache.height = height_of_splits<BLOCK_N, WINDOWED, WARPS_LOG2>(sizes, early);
    pipeline.at.begin(sizes, cache, blockIdx.x);
    pipeline.prefetch(sizes, cache);
    if (pipeline.at.has_work() && threadIdx.x < 32)
        prefetch_queries(queries_of(q, q_strides, pipeline.at.split), q_strides, sizes.seqlen_q);

    wait_for_kernel_before();
    launch_dependents();  // after it, so that the lengths are there when the second kernel starts
    pipeline.find_pages(sizes, cache);  // while the lengths are on their way
    cache.lengths = Lengths(sizes, seqlens, false);
    if (cache.lengths.are_the_same(sizes, early)) return;
    cache.height = height_of_splits<BLOCK_N, WINDOWED, WARPS_LOG2>(sizes, cache.lengths);
    pipeline.at.begin(sizes, cache, blockIdx.x);
    pipeline.pages_of = -1;
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM)
    attention_decode(const Element* q, const __grid_constant__ TensorMap k_map,
                     const __grid_constant__ TensorMap v_map, Element* out, float* lse,
                     const int* seqlens, const int* table, const float* sinks,
                     const float* k_descale, const float* v_descale, float* partial, float2* ends,
                     Strides q_strides, Strides out_strides, Sizes sizes) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 smem = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Outputs outputs = {out, lse, partial, ends, sinks, v_descale, out_strides};

    Pipeline pipeline;
    pipeline.init(smem, warp, k_map, v_map);
    Cache cache = {&k_map, &v_map, table, Lengths(sizes, seqlens, true), 0};
    find_first_split(pipeline, cache, sizes, seqlens, q, q_strides);
    Cursor at = pipeline.at;
    pipeline.fetch(sizes, cache);

    QueryRows rows;
    SplitQueries queries;
    Reader reader = {0, 0};
    int filled = 1;  // stages
    for (; at.has_work(); at.follow(sizes, cache, pipeline.at)) {
        const Split split = at.split;
        queries.load(queries_of(q, q_strides, split), q_strides, split, sizes, k_descale);
#pragma unroll 1  // copies of the loop would be fetched from memory before the first key
        for (; filled < num_stages; ++filled) pipeline.fetch(sizes, cache);
        attend_leaves(rows, queries, pipeline, reader, at, sizes, cache,
                      smem + NODES_OFFSET + warp * NODES * NODES_BYTES);
        merge_warps(rows, smem, split.busy_warps(cache.height));
        if (warp == 0) outputs.write(rows, split, sizes);
    }
}
#endif
