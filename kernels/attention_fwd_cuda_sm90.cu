// FlashAttention forward for Hopper: warp-specialised, persistent, TMA and WGMMA of any width.
//
//     out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))
//
// Algorithm: Shah et al., "FlashAttention-3", arXiv:2407.08608. One CTA runs on each SM. It
// computes the tiles that a table from the host lists for it; a tile is 64 * WARPGROUPS query rows
// of one head.
//
// The tile, with WARPGROUPS = 2 (consumers; the last warpgroup, the producer, has no rows):
//
//                             S = Q K^T, BLOCK_N keys a block                O = P V
//                           block 0     ...   block n-1   block n         HEAD_DIM_V
//                         +-----------+-----+-----------+-----------+    +------------+
//      warpgroup 0 warp 0 | rows  0-15 of all blocks                |    | rows  0-15 |
//                  warp 1 | rows 16-31                              |    | rows 16-31 |
//                  warp 2 | rows 32-47                              |    | rows 32-47 |
//                  warp 3 | rows 48-63                              |    | rows 48-63 |
//                         +-----------+-----+-----------+-----------+    +------------+
//      warpgroup 1 warp 0 | rows 64-79                              |    | rows 64-79 |
//                    ...  | ...                                     |    | ...        |
//                         +-----------+-----+-----------+-----------+    +------------+
//                         <--- computed from block n, the last that a row of the warpgroup sees
//
//      Of each 16 x 8 piece of S and O a lane has rows lane / 4 and lane / 4 + 8, and of both the
//      columns 2 (lane % 4) and 2 (lane % 4) + 1. Four lanes share a row.
//
// The pipeline. "full" and "empty" are mbarriers, one pair for each slot in shared memory:
//
//      producer (one thread)         shared memory              consumer warpgroup w
//
//      wait Q empty, TMA Q(w)    --> Q: Q_STAGES slots      --> wait Q full
//                                    for each warpgroup
//      wait K empty, TMA K(b)    --> K: num_stages slots    --> wait K full, issue S = Q K(b)^T
//      wait V empty, TMA V(b+1)  --> V: num_stages slots    --> wait V full, issue O += P V(b+1)
//                                    K(b) is empty          <-- wait for S, then softmax
//                                    V(b+1) is empty        <-- wait for O, then P = P(b)
//                                    O buffer or Q slot     <-- write O, TMA store
//
//      barrier          arrivals of a phase                                         who waits
//      Q full           the producer, and the bytes of 64 rows                      warpgroup w
//      Q empty          EPILOGUE_SUBTILE = 0: one thread of w, when the TMA store   producer
//                         has read the output from the slot; otherwise the 4 warps
//                         of w, after the last scores or with Q_IN_REGS once Q is
//                         in registers
//      K full, V full   the CTA's producer, and the bytes of a block                all consumers
//      K empty,         4 warps of each consumer warpgroup of each CTA              producer
//      V empty            of the cluster
//      named 1 + w      PING_PONG: the scheduler barrier. 128 threads of            warpgroup w
//                         warpgroup w - 1 when it has issued its products;
//                         for w = 0 of the last one, also once at the start
//      named            128 threads of w, before and after they write the output    warpgroup w
//      1+WARPGROUPS+w     to shared memory; PROMOTES: when they look at their sums, too
//
//      The store wait: one thread of w waits until its TMA store has read shared memory. With
//      EPILOGUE_SUBTILE it waits before w writes to the O buffer again, otherwise before it arrives
//      at Q empty: with Q_STAGES = 1 at once, with Q_STAGES = 2 near the start of the next tile.
//
// INTRA_WG_OVERLAP: as drawn, p @ v of a block is computed together with the scores of the next,
// and runs under their softmax. Otherwise a step computes S, softmax and O of the same block.
// PING_PONG, with two consumer warpgroups:
//
//      warpgroup 0   | issue S(b), O(b+1) |    softmax(b)      | issue S(b-1), O(b) | softmax(b-1)
//      warpgroup 1   |    softmax(b+1)    | issue S(b), O(b+1) |    softmax(b)      | issue ...
//                    ^ named 1            ^ named 2            ^ named 1            ^ named 2
//
// Tensor cores: BLOCK_N is any multiple of 16, and a head dimension costs as many columns as it
// has, rounded up to 16. With e4m3 the columns of Q and K are multiples of 32, and so is BLOCK_N
// without FP16_PV.
//
// Probabilities stay in the registers of the scores. With P_IN_SMEM they go through shared memory,
// which leaves registers for more keys in a block.
//
// With CLUSTER_SIZE = 2 two CTAs compute tiles of the same KV head at the same time. Each CTA
// copies one half of each block (of its keys, or columns of V^T) to the shared memory of both, so
// that L2 is read once for both. A consumer warpgroup that needs fewer blocks than another of the
// cluster releases the blocks that it skips.
//
// Rows in shared memory are cut into chunks of SWIZZLE_BYTES bytes, one behind the other, in the
// layout that WGMMA reads without bank conflicts. TMA fills columns beyond the head dimension with
// zeros.
//
// With DEPENDENT_LAUNCH CTAs start while the kernel before ends (programmatic dependent launch), and
// bring what they read first to the L2 cache meanwhile. Q is read once, so that cache evicts it first.
//
// With e4m3 scores and outputs are multiplied by scales of each KV head, and the output is bf16.
// Queries with more than 128 columns are kept in registers, because shared memory, which each
// product reads, is the bottleneck. A kernel that runs first writes V^T (cuda/transpose_e4m3.cuh),
// and sums are accumulated at two levels (cuda/two_level_sums.cuh). With FP16_PV it writes V in fp16
// (cuda/widen_e4m3.cuh), probabilities are in fp16 too, and sums need no second level.

// ------------------------------------------------------------ parameters, each set by -D (see .py)

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V HEAD_DIM
#endif
#ifndef WARPGROUPS
#define WARPGROUPS 2
#endif
#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef num_stages
#define num_stages 2
#endif
#ifndef Q_STAGES
#define Q_STAGES 1
#endif
#ifndef EPILOGUE_SUBTILE
#define EPILOGUE_SUBTILE 0
#endif
#ifndef INTRA_WG_OVERLAP
#define INTRA_WG_OVERLAP 1
#endif
#ifndef PING_PONG
#define PING_PONG 0
#endif
#ifndef RESCALE_THRESHOLD
#define RESCALE_THRESHOLD 8
#endif
#ifndef SPLIT_DIAGONAL_BLOCK
#define SPLIT_DIAGONAL_BLOCK 0
#endif
#ifndef SWIZZLE_BYTES
#define SWIZZLE_BYTES 128
#endif
#ifndef P_IN_SMEM
#define P_IN_SMEM 0
#endif
#ifndef CLUSTER_SIZE
#define CLUSTER_SIZE 1
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef RAGGED
#define RAGGED 1
#endif
#ifndef DTYPE_FP16
#define DTYPE_FP16 0
#endif
#ifndef DTYPE_E4M3
#define DTYPE_E4M3 0
#endif
#ifndef DEPENDENT_LAUNCH
#define DEPENDENT_LAUNCH 0
#endif
#ifndef FP16_PV
#define FP16_PV 0
#endif
#ifndef TWO_LEVEL_SUMS
#define TWO_LEVEL_SUMS 1
#endif
#define E4M3_PV (DTYPE_E4M3 && !FP16_PV)  // probabilities and V are in e4m3
#define PROMOTES (E4M3_PV && TWO_LEVEL_SUMS)  // sums go into fp32 where they have grown large
#define SUMS_IN_GLOBAL (PROMOTES && HEAD_DIM_V > 128)

#include "cuda/numbers.cuh"
#include "cuda/ptx.cuh"
#if TRANSPOSE_V
#include "cuda/transpose_e4m3.cuh"
#elif WIDEN_V
#include "cuda/widen_e4m3.cuh"
#else
#include "cuda/cache_hints.cuh"
#include "cuda/dependent_launch.cuh"
#include "cuda/wgmma.cuh"

// ------------------------------------------------------------------------------- derived constants

__host__ __device__ constexpr int padded(int n, int to) { return (n + to - 1) / to * to; }
__host__ __device__ constexpr int chunks(int bytes) {
    return (bytes + SWIZZLE_BYTES - 1) / SWIZZLE_BYTES;
}
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

constexpr int ELEMENT = DTYPE_E4M3 ? 1 : 2;  // bytes, of Q and K
constexpr int K_COLUMNS = padded(HEAD_DIM, 32 / ELEMENT), V_COLUMNS = padded(HEAD_DIM_V, 16);
constexpr bool Q_IN_REGS = DTYPE_E4M3 && K_COLUMNS > 128;
// V_CHUNKS counts chunks of 16-bit columns: those of the output, and of V unless it is in e4m3.
constexpr int K_CHUNKS = chunks(ELEMENT * K_COLUMNS), V_CHUNKS = chunks(2 * V_COLUMNS);
constexpr int K_CHUNK = SWIZZLE_BYTES / ELEMENT, CHUNK = SWIZZLE_BYTES / 2;  // columns
constexpr int Q_CHUNK_BYTES = 64 * SWIZZLE_BYTES, KV_CHUNK_BYTES = BLOCK_N * SWIZZLE_BYTES;
// The output leaves through the slot of the queries, or through a buffer of its own in
// EPILOGUE_SUBTILE subtiles.
constexpr int O_CHUNKS = EPILOGUE_SUBTILE ? V_CHUNKS / EPILOGUE_SUBTILE : V_CHUNKS;  // of a subtile
// PROMOTES: a warpgroup looks at the sums of the tensor cores after SUM_KEYS keys (or one block)
// for the first time. Promoted sums of 64 rows have two maxima for each of 128 threads behind them.
// In shared memory they lie in the output's buffer.
constexpr int SUM_BYTES = PROMOTES ? 64 * 4 * V_COLUMNS + 128 * 16 : 0;
constexpr int SUM_KEYS = 512, SUM_BLOCKS = larger(SUM_KEYS / BLOCK_N, 1);
// Probabilities of 64 rows, in the widest chunks that divide a row: none is half empty.
constexpr int P_SWIZZLE = BLOCK_N % 64 == 0 ? 128 : BLOCK_N % 32 == 0 ? 64 : 32;
constexpr int P_CHUNK = P_SWIZZLE / 2, P_CHUNK_BYTES = 64 * P_SWIZZLE;
constexpr int COPIED_KEYS = BLOCK_N / CLUSTER_SIZE;  // of a block, by each CTA of a cluster
// Rows of V^T are columns of V, in chunks of as many keys as divide a block.
constexpr int VT_SWIZZLE = BLOCK_N % 128 == 0 ? 128 : BLOCK_N % 64 == 0 ? 64 : 32;
constexpr int VT_CHUNK_BYTES = V_COLUMNS * VT_SWIZZLE, COPIED_COLUMNS = V_COLUMNS / CLUSTER_SIZE;
constexpr int ROWS = 64 * WARPGROUPS;
constexpr int THREADS = 128 * (WARPGROUPS + 1);
// The launch gives each thread 65,536 / THREADS registers, rounded down to a multiple of 8: 168
// with three warpgroups, 128 with four. Consumers take more of what the producer gives back: 128
// threads times (24 + 2 * 240) are 64,512, times (32 + 3 * 160) 65,536.
constexpr int CONSUMER_REGISTERS = WARPGROUPS == 3 ? 160 : 240;
constexpr int PRODUCER_REGISTERS = WARPGROUPS == 3 ? 32 : 24;
// A row's maximum stays until a score exceeds it by 2^THRESHOLD_LOG2. e4m3 ends at 448 and has
// fewer bits below 2^-6 (OCP 8-bit Floating Point Specification 1.0). So its probabilities are
// multiplied by 2^P_SCALE_LOG2, and the two add up to 2^8 (FlashAttention-3's max_offset).
constexpr int THRESHOLD_LOG2 = E4M3_PV ? RESCALE_THRESHOLD / 2 : RESCALE_THRESHOLD;
constexpr int P_SCALE_LOG2 = E4M3_PV ? 8 - THRESHOLD_LOG2 : 0;
constexpr bool IS_BF16 = !DTYPE_FP16;  // the output

static_assert(BLOCK_N % 16 == 0 && BLOCK_N <= 256, "WGMMA takes 16 keys at a time, TMA copies 256");
static_assert(!EPILOGUE_SUBTILE || V_CHUNKS % EPILOGUE_SUBTILE == 0, "a subtile has whole chunks");
static_assert(!SPLIT_DIAGONAL_BLOCK || (INTRA_WG_OVERLAP && BLOCK_N % 32 == 0),
              "SPLIT_DIAGONAL_BLOCK needs INTRA_WG_OVERLAP, and halves of 16 keys or more");
static_assert(INTRA_WG_OVERLAP || !P_IN_SMEM, "P_IN_SMEM needs INTRA_WG_OVERLAP");
static_assert(CLUSTER_SIZE == 1 || CLUSTER_SIZE == 2, "a cluster has one or two CTAs");
static_assert(COPIED_KEYS % 8 == 0, "swizzles begin anew with every 8 rows");
static_assert(!FP16_PV || DTYPE_E4M3, "FP16_PV needs e4m3");
static_assert(!PROMOTES || SUM_BLOCKS > 64 / BLOCK_N + 1, "masked steps do not look at sums");
static_assert(!E4M3_PV || BLOCK_N % 32 == 0, "WGMMA sums over 32 keys at a time");
static_assert(!E4M3_PV || (EPILOGUE_SUBTILE == 1 && !P_IN_SMEM),
              "V in e4m3 needs EPILOGUE_SUBTILE = 1: promoted sums lie in the output's buffer");
static_assert(INTRA_WG_OVERLAP || !PING_PONG, "PING_PONG needs INTRA_WG_OVERLAP");

// Shared memory begins at a multiple of 1,024. The search space lays it out; offset, bytes of a
// slot and number of slots of each region are macros.
static_assert(Q_BYTES >= (EPILOGUE_SUBTILE ? K_CHUNKS : larger(K_CHUNKS, V_CHUNKS)) *
                             Q_CHUNK_BYTES,
              "a slot of queries holds their chunks, and the output without a buffer of its own");
static_assert(!P_IN_SMEM || P_BYTES >= 64 * 2 * BLOCK_N,
              "a slot holds the probabilities of 64 rows");
static_assert(K_BYTES == K_CHUNKS * KV_CHUNK_BYTES,
              "a slot's barrier waits for as many bytes of K");
static_assert(V_BYTES == (E4M3_PV ? V_COLUMNS * BLOCK_N : V_CHUNKS * KV_CHUNK_BYTES),
              "a slot's barrier waits for as many bytes of V");
static_assert(!EPILOGUE_SUBTILE || O_BYTES >= larger(O_CHUNKS * Q_CHUNK_BYTES,
                                                       SUMS_IN_GLOBAL ? 0 : SUM_BYTES),
              "a slot holds the output of a subtile, and the sums of e4m3");
static_assert(Q_SLOTS >= Q_STAGES * WARPGROUPS && P_SLOTS >= WARPGROUPS && K_SLOTS >= num_stages &&
                  V_SLOTS >= num_stages && O_SLOTS >= WARPGROUPS,
              "each stage and each warpgroup has a slot");
static_assert(BARRIERS_BYTES >= 8 && BARRIERS_SLOTS >= 4 * num_stages + 2 * Q_STAGES * WARPGROUPS,
              "each slot of K, V and Q has two barriers");
static_assert((Q_OFFSET | Q_BYTES | K_OFFSET | K_BYTES) % (8 * SWIZZLE_BYTES) == 0 &&
                  (O_OFFSET | O_BYTES) % (8 * SWIZZLE_BYTES) == 0 &&
                  (V_OFFSET | V_BYTES) % (8 * (E4M3_PV ? VT_SWIZZLE : SWIZZLE_BYTES)) == 0 &&
                  (P_OFFSET | P_BYTES) % (8 * P_SWIZZLE) == 0 && BARRIERS_OFFSET % 8 == 0,
              "a swizzle begins anew with every 8 rows");

struct Sizes {
    int heads, seqlen_q, seqlen_k;
    float scale_log2;  // of q @ k^T, times log2(e)
};

// e4m3: scales of each (batch, KV head), or null for 1, and what two-level sums need.
struct Descales {
    const float *q, *k, *v;
    int heads_kv;
    const u32* inverse_magnitudes;  // PROMOTES: of V, as transpose_v writes them
    float4* sums;                   // SUMS_IN_GLOBAL: SUM_BYTES of each warpgroup of each CTA
};

// ---------------------------------------------------------------------------- pipelines and tiles

// Slots of shared memory with a full and an empty barrier each, from barrier FIRST on. Producer and
// consumers count the uses of all slots: use i is of slot i % SLOTS, in phase i / SLOTS.
template <int FIRST, int SLOTS>
struct Pipeline {
    u32 barriers;
    DEVICE u32 full(int slot) const { return barriers + 8 * (FIRST + slot); }
    DEVICE u32 empty(int slot) const { return barriers + 8 * (FIRST + SLOTS + slot); }
    DEVICE void init(u32 empty_arrivals) const {
        for (int slot = 0; slot < SLOTS; slot++) {
            mbarrier_init(full(slot), 1);
            mbarrier_init(empty(slot), empty_arrivals);
        }
    }
    DEVICE void wait_full(int use) const { mbarrier_wait(full(use % SLOTS), (use / SLOTS) & 1); }
    DEVICE void wait_empty(int use) const {
        mbarrier_wait<(CLUSTER_SIZE > 1)>(empty(use % SLOTS), ((use / SLOTS) & 1) ^ 1);
    }
};
typedef Pipeline<0, num_stages> KPipeline;
typedef Pipeline<2 * num_stages, num_stages> VPipeline;
typedef Pipeline<4 * num_stages, Q_STAGES * WARPGROUPS> QPipeline;

DEVICE int cluster_rank() { return blockIdx.x % CLUSTER_SIZE; }

// A tile: `row` is its first row. `cluster_row` is the first row of the cluster's tile that sees
// the most keys: both CTAs go through its blocks.
struct WorkInfo {
    int batch, head, head_kv, row, cluster_row;
};

// Loads row i of the host's table. The tiles that a cluster computes together are in the order of
// their rows, so that the last CTA's tile sees the most keys. Its entry lies `last_cta_offset` rows
// further down.
DEVICE WorkInfo load_work_info(const int* tiles, int i, int last_cta_offset) {
    int4 entry = ((const int4*)tiles)[i];
    int cluster_row = CLUSTER_SIZE == 1 ? entry.w : tiles[4 * (i + last_cta_offset) + 3];
    return {entry.x, entry.y, entry.z, entry.w, cluster_row};
}

// The CTA has rows [first, first + count) of `tiles`; see hopper/tile_table.py, hopper/first_tiles.py.
DEVICE int first_tile(const int* schedule) {
    return schedule[DEPENDENT_LAUNCH ? 8 * blockIdx.x : blockIdx.x];
}
DEVICE int tile_count(const int* schedule, int first) {
    return schedule[DEPENDENT_LAUNCH ? 8 * blockIdx.x + 8 : blockIdx.x + 1] - first;
}
// What `load_work_info` gives for the first tile. Not for consumers, whose loop it would slow down.
DEVICE WorkInfo load_first_work_info(const int* schedule, const int* tiles, int first,
                                     int last_cta_offset) {
    if (!DEPENDENT_LAUNCH) return load_work_info(tiles, first, last_cta_offset);
    int4 entry = ((const int4*)schedule)[2 * blockIdx.x + 1];
    return {entry.x, entry.y, entry.z, entry.w, schedule[8 * blockIdx.x + 1]};
}

// The number of key blocks, from the first on, that some of the query rows [row, row + rows) sees:
// at least one.
DEVICE int visible_blocks(const Sizes& sizes, int row, int rows) {
    int keys = sizes.seqlen_k;
    if (CAUSAL) keys = min(row + rows, sizes.seqlen_q) + sizes.seqlen_k - sizes.seqlen_q;
    return max((keys + BLOCK_N - 1) / BLOCK_N, 1);
}

#include "cuda/attention_consumer.cuh"
#include "cuda/attention_producer.cuh"

// -------------------------------------------------------------------------------------- the kernel

#if CLUSTER_SIZE > 1
#define LAUNCH_BOUNDS __cluster_dims__(CLUSTER_SIZE, 1, 1) __launch_bounds__(THREADS, 1)
#else
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, 1)
#endif

extern "C" __global__ void LAUNCH_BOUNDS
    attention_fwd(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                  const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap o_map,
                  float* lse,
#if DTYPE_E4M3
                  const float* q_descale, const float* k_descale, const float* v_descale,
                  int heads_kv,
#endif
#if PROMOTES
                  const u32* inverse_magnitudes,
#endif
#if SUMS_IN_GLOBAL
                  float4* sums,
#endif
                  const int* schedule, const int* tiles, int heads, int seqlen_q, int seqlen_k,
                  float scale_log2) {
#if DTYPE_E4M3
    Descales descales{q_descale, k_descale, v_descale, heads_kv};
#else
    Descales descales{};
#endif
#if PROMOTES
    descales.inverse_magnitudes = inverse_magnitudes;
#endif
#if SUMS_IN_GLOBAL
    descales.sums = sums;
#endif
    // The kernel has no static shared memory, so the alignment holds.
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 shared = shared_address(memory);
    Sizes sizes{heads, seqlen_q, seqlen_k, scale_log2};
    // The shuffle tells the compiler that it is the same in all lanes.
    int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        u32 barriers = shared + BARRIERS_OFFSET;
        KPipeline{barriers}.init(4 * WARPGROUPS * CLUSTER_SIZE);
        VPipeline{barriers}.init(4 * WARPGROUPS * CLUSTER_SIZE);
        QPipeline{barriers}.init(EPILOGUE_SUBTILE ? 4 : 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (DEPENDENT_LAUNCH) launch_dependents();  // they start on each SM that has no CTA left
    if (CLUSTER_SIZE > 1) cluster_sync();  // the barriers of both CTAs are initialised
    if (warpgroup == WARPGROUPS) {
        if (WARPGROUPS > 1) setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x == WARPGROUPS * 128) {
#if DEPENDENT_LAUNCH
            prefetch_tensor_map(&q_map);
            prefetch_tensor_map(&k_map);
            prefetch_tensor_map(&v_map);
#endif
            produce(&q_map, &k_map, &v_map, sizes, schedule, tiles, shared);
        }
    } else {
        if (WARPGROUPS > 1) setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume(&o_map, lse, descales, sizes, schedule, tiles, shared, warpgroup);
    }
}
#endif
