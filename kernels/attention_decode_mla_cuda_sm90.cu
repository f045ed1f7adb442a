// Multi-head latent attention of few queries over a cache, by TMA and WGMMA.
// attention_decode_mla_cuda_sm90.py says what each parameter trades.
//
// A tile has 64 query rows. Their output, 64 x HEAD_DIM_V in fp32, lies in the registers of two
// consumer warpgroups, half of the columns in each. They take two blocks of keys at a time: each
// computes the scores of one block, and both multiply both blocks' probabilities with their half of
// the values, which are the first columns of the same rows in shared memory:
//
//      warpgroup 0   | S0 = Q K0^T | P0 | O[:, left] += P0 K0[:, left]   | += P1 K1[:, left]
//      warpgroup 1         | S1 = Q K1^T | P1 | O[:, right] += P0 K0[:, right] | += P1 K1[:, right]
//                                  ^ named 1, 2  ^ named 3
//
// So the softmax of one warpgroup runs while the other one multiplies. The maxima of rows go over
// through shared memory: that of the first block to the second one, and that of both back. Each time
// the output gets a factor, if a maximum has grown. Probabilities are written over the last 64
// columns of their block, of which no value is part: the scores that need these are computed.
//
// Blocks arrive in parts, so that scores begin before a block is complete. The first block of a pair
// is released before the second one, so the first warpgroup begins the next pair earlier. With CLUSTER_SIZE 2 the CTAs of two tiles of the same keys
// copy one half of each block to the shared memory of both.

// Each default may be replaced by any value for which the static_asserts hold.
#ifndef HEAD_DIM
#define HEAD_DIM 576
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V 512
#endif
#ifndef BF16
#define BF16 1
#endif
#ifndef GROUP
#define GROUP 128
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 0
#endif
#ifndef BLOCK_N
#define BLOCK_N 64
#endif
#ifndef num_stages
#define num_stages 2
#endif
#ifndef CLUSTER_SIZE
#define CLUSTER_SIZE 1
#endif
#define DTYPE_FP16 !BF16

typedef unsigned short Element;  // bf16 or fp16

#if COMBINE_SPLITS  // the second kernel, by itself
#include "cuda/mla_combine.cuh"
#else
#include "cuda/bulk_copy.cuh"
#include "cuda/ptx.cuh"

static_assert(HEAD_DIM == HEAD_DIM_V + 64, "probabilities take the place of the last 64 columns");
static_assert(HEAD_DIM_V % 128 == 0 && HEAD_DIM_V <= 512, "a warpgroup has whole chunks of columns");
static_assert(BLOCK_N == 32 || BLOCK_N == 64, "a row of probabilities is one chunk");
static_assert(num_stages >= 2, "the warpgroups take two blocks at a time");
static_assert(CLUSTER_SIZE == 1 || CLUSTER_SIZE == 2, "a cluster has one or two CTAs");

constexpr int ROWS = 64, COLUMNS = HEAD_DIM_V / 2;  // of a tile, and of a warpgroup's output
constexpr int CHUNKS = HEAD_DIM / 64, V_CHUNKS = HEAD_DIM_V / 64, CHUNK_BYTES = BLOCK_N * 128;
constexpr int PART_CHUNKS = 3, PARTS = (CHUNKS + PART_CHUNKS - 1) / PART_CHUNKS;
constexpr int P_AT = V_CHUNKS * CHUNK_BYTES, P_SWIZZLE = 2 * BLOCK_N;
constexpr int COPIED_KEYS = BLOCK_N / CLUSTER_SIZE;  // of a block, by each CTA of a cluster
constexpr int BOX_ROWS = PAGE_SIZE && PAGE_SIZE < COPIED_KEYS ? PAGE_SIZE : COPIED_KEYS;
constexpr int BOXES = COPIED_KEYS / BOX_ROWS;
// A row's maximum stays until a score exceeds it by 2^THRESHOLD_LOG2.
constexpr float THRESHOLD_LOG2 = 8.0f;
constexpr int THREADS = 384, QUERY_THREADS = 96;
// The launch gives each thread 65,536 / THREADS registers, rounded down to a multiple of 8: 168.
// Consumers take more of what the producer gives back: 128 (40 + 2 x 232) are 64,512.
constexpr int CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40;

static_assert(PAGE_SIZE == 0 || PAGE_SIZE % BOX_ROWS == 0, "a box lies in one page");
static_assert(COPIED_KEYS % BOX_ROWS == 0 && BOX_ROWS % 8 == 0,
              "a swizzle begins anew with every 8 rows");
// search_spaces/attention_decode_mla_cuda_sm90.yaml lays out the shared memory.
static_assert(Q_OFFSET % 1024 == 0 && Q_BYTES == ROWS * HEAD_DIM * 2 && Q_SLOTS == 1,
              "a tile of queries");
static_assert(STAGES_OFFSET % 1024 == 0 && STAGES_BYTES == BLOCK_N * HEAD_DIM * 2 &&
                  STAGES_SLOTS == num_stages,
              "a stage holds a block");
static_assert(ROWS_OFFSET % 8 == 0 && ROWS_BYTES == 4 * ROWS && ROWS_SLOTS == 4,
              "warpgroups exchange maxima and sums of each row");
static_assert(WORK_OFFSET % 16 == 0 && WORK_BYTES == 32 && WORK_SLOTS == 1,
              "eight numbers say what work it is");
static_assert(BARRIERS_OFFSET % 8 == 0 && BARRIERS_BYTES == 8 &&
                  BARRIERS_SLOTS == num_stages * (PARTS + 1) + 2,
              "each part of a stage has a barrier, each stage one, and queries have two");

// ---------------------------------------------------------------------------- places and barriers

constexpr int QUERY_BARRIERS = BARRIERS_OFFSET + 8 * num_stages * (PARTS + 1);  // full, empty

DEVICE u32 stage_address(u32 shared, int stage) {
    return shared + STAGES_OFFSET + stage * STAGES_BYTES;
}
DEVICE u32 full_barrier(u32 shared, int stage, int part) {
    return shared + BARRIERS_OFFSET + 8 * (stage * PARTS + part);
}
DEVICE u32 empty_barrier(u32 shared, int stage) {
    return shared + BARRIERS_OFFSET + 8 * (num_stages * PARTS + stage);
}

// The address of a unit of 16 bytes of a row, in a chunk with rows of WIDTH bytes.
template <int WIDTH>
DEVICE u32 swizzled_address(u32 chunk, int row, int unit) {
    constexpr int SHIFT = WIDTH == 128 ? 0 : 1, UNITS = WIDTH / 16;
    return chunk + row * WIDTH + ((unit ^ ((row >> SHIFT) % UNITS)) << 4);
}

// The CTA's work: the CTAs of a cluster have the same numbers.
DEVICE int first_item() { return blockIdx.x / CLUSTER_SIZE; }
DEVICE int items_apart() { return gridDim.x / CLUSTER_SIZE; }

#include "cuda/mla_output.cuh"
#include "cuda/mla_producer.cuh"

DEVICE void init_barriers(u32 shared) {
    for (int stage = 0; stage < num_stages; ++stage) {
        for (int part = 0; part < PARTS; ++part) mbarrier_init(full_barrier(shared, stage, part), 1);
        mbarrier_init(empty_barrier(shared, stage), 8 * CLUSTER_SIZE);
    }
    mbarrier_init(shared + QUERY_BARRIERS, QUERY_THREADS);
    mbarrier_init(shared + QUERY_BARRIERS + 8, 8);
    fence_mbarrier_init();
}

DEVICE Work read_work(u32 shared) {
    const uint4 x = ld_shared_v4_u32(shared + WORK_OFFSET);
    const uint4 y = ld_shared_v4_u32(shared + WORK_OFFSET + 16);
    Work work;
    work.sequence = x.x, work.head_kv = x.y, work.row_tile = x.z, work.split = x.w;
    work.splits = y.x, work.begin = y.y, work.end = y.z, work.keys = y.w;
    return work;
}

DEVICE void consume(const Outputs& outputs, const Sizes& sizes, u32 shared, int warpgroup) {
    Consumer rows;
    rows.shared = shared, rows.warpgroup = warpgroup, rows.block = 0;
    rows.warp = threadIdx.x % 128 / 32, rows.lane = threadIdx.x % 32;
    for (int count = 0;; ++count) {
        mbarrier_wait(shared + QUERY_BARRIERS, count & 1);
        const Work work = read_work(shared);
        if (work.sequence < 0) return;
        rows.init();
        if (work.begin >= work.end) rows.release_queries();
        for (int key = work.begin; key < work.end; key += 2 * BLOCK_N) rows.step(work, sizes, key);
        outputs.write(rows, work, sizes);
    }
}

// -------------------------------------------------------------------------------------- the kernel

#if CLUSTER_SIZE > 1
#define LAUNCH_BOUNDS __cluster_dims__(CLUSTER_SIZE, 1, 1) __launch_bounds__(THREADS, 1)
#else
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, 1)
#endif

extern "C" __global__ void LAUNCH_BOUNDS
    attention_decode_mla(const Element* q, const __grid_constant__ TensorMap kv_map, Element* out,
                         float* lse, const int* seqlens, const int* table, float* partial,
                         float* partial_lse, Strides q_strides, Strides out_strides, Sizes sizes) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    // The shuffles tell the compiler that they are the same in all lanes.
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    if (CLUSTER_SIZE > 1) cluster_sync();  // the barriers of both CTAs are initialised
    wait_for_kernel_before();
    launch_dependents();
    if (warpgroup == 2) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (warp == 8)
            produce_keys(&kv_map, sizes, seqlens, table, shared);
        else
            produce_queries(q, q_strides, sizes, seqlens, shared);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const Outputs outputs = {out, lse, partial, partial_lse, out_strides};
        consume(outputs, sizes, shared, warpgroup);
    }
    if (CLUSTER_SIZE > 1) cluster_sync();  // the other CTA may still write to this one
}
#endif
