// Attention of few queries over a cache of keys and values, by TMA. attention_decode_cuda_sm90.py
// says what each parameter trades.
//
// The last warp of a CTA copies K and V of blocks of BLOCK_N keys in turns into `num_stages` stages of
// shared memory, and the others attend all query rows of a KV head to them (cuda/decode_rows.cuh):
//
//      scores of the warp's keys -> maxima -> [barrier] -> probabilities -> [barrier]
//      -> all probabilities times the warp's columns of V
//
// Each warp adds up the leaves (cuda/decode_problem.cuh) of its own columns. Copies go on over the end
// of a split: those of the CTA's next one begin before it is computed. A copy brings whole rows, of a
// block or of a page. A block lies in shared memory as
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
#define BLOCK_N 128
#endif
#ifndef num_warps
#define num_warps 4
#endif
#ifndef num_stages
#define num_stages 3
#endif
#ifndef COPIES_IN_FLIGHT
#define COPIES_IN_FLIGHT 2
#endif
#ifndef CTAS_PER_SM
#define CTAS_PER_SM 1
#endif
#ifndef LEAF_KEYS
#define LEAF_KEYS 128
#endif
#ifndef MOST_LEAVES
#define MOST_LEAVES 128
#endif
#ifndef TREE_DEPTH
#define TREE_DEPTH 5
#endif
#ifndef LAST_CTA_COMBINES
#define LAST_CTA_COMBINES 0
#endif

static_assert(HEAD_DIM % 64 == 0 && HEAD_DIM_V % 64 == 0, "TMA copies 128 bytes of a row");
static_assert(BLOCK_N % (16 * num_warps) == 0 && BLOCK_N % 32 == 0 && BLOCK_M % 8 == 0,
              "a warp has fragments of 16 keys and 8 query rows");
static_assert(HEAD_DIM_V % (16 * num_warps) == 0, "a warp has columns in fragments of 16");
static_assert(PAGE_SIZE == 0 || PAGE_SIZE % BLOCK_N == 0 ||
                  (BLOCK_N % PAGE_SIZE == 0 && PAGE_SIZE % 16 == 0),
              "a block has whole pages, or a page whole blocks");
static_assert(LEAF_KEYS % BLOCK_N == 0, "a leaf has whole blocks");
static_assert(BLOCK_M <= 32, "a lane copies each query row");
static_assert(COPIES_IN_FLIGHT <= num_stages, "each copy has a stage");

constexpr int KV_BYTES = E4M3_CACHE ? 1 : 2;
constexpr int PANEL_BYTES = HEAD_DIM * KV_BYTES % 128 || HEAD_DIM_V * KV_BYTES % 128 ? 64 : 128;
constexpr int THREADS = 32 * num_warps + 32;
constexpr int QUERY_BYTES = 2 * HEAD_DIM + 16;  // of a row: eight are in different banks
constexpr int BOX_ROWS = PAGE_SIZE && PAGE_SIZE < BLOCK_N ? PAGE_SIZE : BLOCK_N;
constexpr int BOXES = BLOCK_N / BOX_ROWS;  // of a block, at most 16
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
    static constexpr int CONSUMER_WARPS = num_warps;  // those that compute
    static constexpr int S_TILES = BLOCK_N / 16 / CONSUMER_WARPS;
    static constexpr int O_TILES = HEAD_DIM_V / 16 / CONSUMER_WARPS;
    static constexpr bool IS_BF16 = BF16, IS_E4M3 = E4M3_CACHE;
    typedef Block<HEAD_DIM * KV_BYTES / 2> KTile;
    typedef Block<HEAD_DIM_V * KV_BYTES / 2> VTile;
};
typedef Shape::KTile KTile;
typedef Shape::VTile VTile;
typedef DecodeRows<Shape> QueryRows;
constexpr bool IS_WIDE = BLOCK_M * HEAD_DIM_V / num_warps > 512;  // one leaf alone in registers
constexpr int NODES = TREE_DEPTH - !IS_WIDE;                      // of a warp in shared memory
typedef QueryRows::Factors Factors;
typedef u32 Queries[Shape::D_STEPS][Shape::N_TILES][2];

#if COMBINE_SPLITS  // the second kernel, by itself
#include "cuda/decode_combine.cuh"
#else
#include "cuda/decode_queries.cuh"
#include "cuda/decode_pipeline.cuh"
#if LAST_CTA_COMBINES  // else NVRTC would order the kernel's instructions differently
#include "cuda/decode_arrivals.cuh"
#include "cuda/decode_combine.cuh"
#endif

// search_spaces/attention_decode_cuda_sm90.yaml lays out the shared memory.
static_assert(STAGES_OFFSET % 1024 == 0 && STAGES_BYTES % 1024 == 0, "a swizzle begins at 1 KiB");
static_assert(BOX_ROWS * PANEL_BYTES % 1024 == 0, "so does each panel of a box");
static_assert(STAGES_BYTES >= KTile::BYTES && STAGES_BYTES >= VTile::BYTES, "a stage holds a block");
static_assert(STAGES_SLOTS == num_stages && QUERIES_SLOTS == num_stages &&
                  SPLITS_SLOTS == num_stages && BARRIERS_SLOTS == num_stages,
              "each stage has queries, a split and barriers");
static_assert(QUERIES_OFFSET % 16 == 0 && QUERIES_BYTES == BLOCK_M * QUERY_BYTES,
              "a row of queries is copied at a time");
static_assert(SPLITS_OFFSET % 16 == 0 && SPLITS_BYTES == sizeof(Split), "a stage may begin a split");
static_assert(PROBABILITIES_OFFSET % 16 == 0 && PROBABILITIES_SLOTS == 1 &&
                  PROBABILITIES_BYTES == Exchange<Shape>::P_ROWS_BYTES,
              "ldmatrix reads 16 bytes of a row");
static_assert(PARTS_OFFSET % 8 == 0 && PARTS_BYTES == Exchange<Shape>::ONE_PART_BYTES &&
                  PARTS_SLOTS == 2,
              "the warps exchange maxima and sums");
static_assert(NODES_OFFSET % 16 == 0 && NODES_BYTES == QueryRows::KEPT_BYTES &&
                  NODES_SLOTS == num_warps * NODES,
              "each warp keeps a node of each height below the top");
static_assert(BARRIERS_OFFSET % 8 == 0 && BARRIERS_BYTES == 16, "a stage is full, or empty");

// Sets the scores of keys that a row does not see to -inf. The warp's keys begin at `first`.
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

// Writes zeros over the warp's columns of values behind the last key: what lies there may be NaN, and
// NaN times the probability 0 is NaN.
DEVICE void clear_values(u32 v_tile, int from_row) {
    constexpr int CHUNKS = HEAD_DIM_V * KV_BYTES / 16 / num_warps;  // of 16 bytes
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = lane; i < (BLOCK_N - from_row) * CHUNKS; i += 32) {
        const int row = from_row + i / CHUNKS;
        st_shared_v4(v_tile + VTile::at(row / 16 * 16, warp * CHUNKS + i % CHUNKS, row % 16), zeros);
    }
    __syncwarp();
}

// Attends the rows to the block that begins at a key.
DEVICE void attend_block(QueryRows& rows, const SplitQueries& queries, Reader& reader,
                         const Exchange<Shape>& exchange, const Split& split, const Sizes& sizes,
                         int key) {
    QueryRows::Scores s;
    QueryRows::compute_scores(s, queries.q, reader.wait());
    reader.release();
    if (SOFTCAP) soft_cap(s, queries.before_tanh);
    const bool is_cut = key + BLOCK_N > split.end;
    if (is_cut || CAUSAL || WINDOWED) mask(s, split, sizes, key + QueryRows::first_key());
    rows.softmax(s, queries.scale_log2, exchange);
    QueryRows::put_probabilities(s, exchange);
    const u32 v_tile = reader.wait();
    if (is_cut) clear_values(v_tile, split.end - key);
    rows.add_values(v_tile, exchange);
    if (is_cut) fence_proxy_async();  // the next copy overwrites the zeros
    reader.release();
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
        const bool writes_ends = threadIdx.x < 4;  // all warps have the same
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
                    if (writes_ends) ends[kept] = make_float2(rows.max_log2[n][i], rows.sum[n][i]);
                    write_row(partial + kept * HEAD_DIM_V, rows, n, i, 1.0f);
                    continue;
                }
                const RowEnd end(rows.max_log2[n][i], rows.sum[n][i], SINKS ? sinks + head : nullptr);
                if (writes_ends) lse[number] = end.lse;
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

#if LAST_CTA_COMBINES
// Combines the splits of a KV head if this CTA has written the last one of them. All warps that compute
// take part; each has a row at a time.
DEVICE void combine_if_last(const Outputs& outputs, const Exchange<Shape>& exchange,
                            const Split& split, const Sizes& sizes) {
    if (split.splits == 1) return;
    exchange.sync();  // all of them have written
    bool is_last = false;
    if (threadIdx.x == 0) {
        SplitArrivals* arrivals = arrivals_of_splits(sizes, outputs.ends, split);
        is_last = arrivals->arrive() == split.splits - 1;
        if (is_last) arrivals->end();
    }
    if (!exchange.from_first(is_last)) return;
    const Combined combined = {outputs.out, outputs.lse, outputs.sinks, outputs.v_descale,
                               outputs.strides};
    for (int i = threadIdx.x / 32; i < GROUP * sizes.seqlen_q; i += num_warps) {
        const Row row(sizes, split, i);
        const long long kept = (long long)row.number * sizes.splits_kept;
        combined.write(sum_of_splits(outputs.partial, outputs.ends, kept, 0, row.splits), sizes, row);
    }
}
#else
DEVICE void combine_if_last(const Outputs&, const Exchange<Shape>&, const Split&, const Sizes&) {}
#endif

// Attends the rows to the leaves of a split, the first block of which is in the reader's stage.
DEVICE void attend_split(QueryRows& rows, Reader& reader, const Exchange<Shape>& exchange,
                         const Split& split, const Sizes& sizes, const float* k_descale, u32 nodes) {
    if (split.begin >= split.end) {
        rows.init();
        return reader.release();
    }
    SplitQueries queries;
    queries.load(reader.stages.queries(reader.place.stage), split, sizes, k_descale);
    LeafTree<QueryRows, IS_WIDE> tree;
    tree.nodes = nodes;
    tree.count = 0;
    for (int key = split.begin; key < split.end;) {
        rows.init();
        const int leaf_end = min(key + split.leaf_keys, split.end);
        for (; key < leaf_end; key += BLOCK_N)
            attend_block(rows, queries, reader, exchange, split, sizes, key);
        rows.sum_keys(exchange);
        tree.push(rows, key >= split.end);
    }
}

// Waits for the kernel before, and finds the CTA's first split. It is found before the wait, so that
// its first block and its queries come to the L2 cache, and again if a length has changed. The cache
// comes with the early lengths, and gets the others.
DEVICE void find_first_split(Producer& producer, Cache& cache, const Sizes& sizes,
                             const int* seqlens, const Element* q, const Strides& q_strides) {
    const Lengths early = cache.lengths;
    cache.splits = splits_of_batch<BLOCK_N, WINDOWED>(sizes, early);
    producer.find(sizes, cache, blockIdx.x);
    producer.prefetch(sizes, cache);
    if (producer.split.exists())
        prefetch_queries(queries_of(q, q_strides, producer.split), q_strides, sizes.seqlen_q);

    wait_for_kernel_before();
    launch_dependents();  // after it, so that the lengths are there when the second kernel starts
    producer.find_pages(sizes, cache);  // while the lengths are on their way
    cache.lengths = Lengths(sizes, seqlens, false);
    if (cache.lengths.are_the_same(sizes, early)) return;
    cache.splits = splits_of_batch<BLOCK_N, WINDOWED>(sizes, cache.lengths);
    producer.find(sizes, cache, blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM)
    attention_decode(const Element* q, const __grid_constant__ TensorMap k_map,
                     const __grid_constant__ TensorMap v_map, Element* out, float* lse,
                     const int* seqlens, const int* table, const float* sinks,
                     const float* k_descale, const float* v_descale, float* partial, float2* ends,
                     Strides q_strides, Strides out_strides, Sizes sizes) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 smem = shared_address(shared);
    const int warp = threadIdx.x / 32;
    const Stages stages = {smem};
    if (threadIdx.x == 0) stages.init();
    __syncthreads();

    if (warp == num_warps) {
        if (threadIdx.x % 32 == 0) prefetch_tensor_map(&k_map), prefetch_tensor_map(&v_map);
        Cache cache = {&k_map, &v_map, table, Lengths(sizes, seqlens, true), {0, 0}};
        Producer producer = {stages};
        producer.ends = ends;
        find_first_split(producer, cache, sizes, seqlens, q, q_strides);
        for (; producer.split.exists(); producer.find_next(sizes, cache))
            producer.copy_split(sizes, cache, q, q_strides);
        producer.copy_split(sizes, cache, q, q_strides);  // says that there is no more
        return;
    }

    const Exchange<Shape> exchange = {smem + PARTS_OFFSET, smem + PARTS_OFFSET + PARTS_BYTES,
                                      smem + PROBABILITIES_OFFSET};
    const Outputs outputs = {out, lse, partial, ends, sinks, v_descale, out_strides};
    Reader reader = {stages};
    QueryRows rows;
    for (;;) {
        reader.wait();
        const Split split = reader.split();
        if (!split.exists()) break;
        attend_split(rows, reader, exchange, split, sizes, k_descale,
                     smem + NODES_OFFSET + warp * NODES * NODES_BYTES);
        outputs.write(rows, split, sizes);
        combine_if_last(outputs, exchange, split, sizes);
    }
}
#endif
