// FlashAttention forward for Hopper: warp-specialised, persistent, TMA and WGMMA of any width.
//
//     out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))
//
// Algorithm: Shah et al., "FlashAttention-3", arXiv:2407.08608. One program runs on each SM and works
// through tiles of 64 * WARPGROUPS query rows of one head, which a table from the host gives it. The
// last warpgroup copies: Q once, K and V in blocks of BLOCK_N keys, from the last visible block to the
// first. Each of the others owns 64 rows. It issues the scores of a block together with the output of
// the block before (INTRA_WG_OVERLAP), and computes the softmax of the one while the other is multiplied.
//
// What the tensor cores take is not rounded to powers of two: BLOCK_N is any multiple of 16, and a
// head dimension costs as many columns as it has, rounded up to 16. Of 8 bits both go by 32.
//
// Probabilities stay in the registers that the scores were in, or with P_IN_SMEM go through shared
// memory, which leaves registers for more keys in a block.
//
// With CLUSTER_SIZE two programs work at the same time on tiles of the same KV head. Each copies one half
// of the keys of each block into the shared memory of both, so that each is read from L2 once for
// both. A slot is filled again when the consumers of both have freed it; programs that need fewer
// blocks than the other free what they do not need.
//
// Rows in shared memory are cut into chunks of SWIZZLE_BYTES bytes, one behind the other, in the layout that
// WGMMA reads without bank conflicts; TMA fills columns beyond the head dimension with zeros.
//
// With e4m3 a kernel that runs first writes V^T (cuda/transpose_e4m3.cuh), scores and outputs are
// multiplied by scales of each KV head, and the output is bf16. Tensor cores keep so few bits of a
// sum of 8-bit products that after SUM_KEYS keys at most it is added to one in fp32, in shared memory
// (see Consumer::put_aside). Queries of wide heads are in registers: shared memory, which is read for
// each product and now for sums as well, is what such a kernel waits for.

// ------------------------------------------------------------- parameters, each set by -D (see .py)

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

#include "cuda/hopper.cuh"
#if TRANSPOSE_V
#include "cuda/transpose_e4m3.cuh"
#else
#include "cuda/wgmma.cuh"

// ---------------------------------------------------------------------------- what follows from them

__host__ __device__ constexpr int padded(int n, int to) { return (n + to - 1) / to * to; }
__host__ __device__ constexpr int chunks(int bytes) { return (bytes + SWIZZLE_BYTES - 1) / SWIZZLE_BYTES; }
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

constexpr int ELEMENT = DTYPE_E4M3 ? 1 : 2;  // bytes
constexpr int K_COLUMNS = padded(HEAD_DIM, 32 / ELEMENT), V_COLUMNS = padded(HEAD_DIM_V, 16);
constexpr bool Q_IN_REGS = DTYPE_E4M3 && K_COLUMNS > 128;
// V_CHUNKS: of 16-bit columns, which the output has in any case.
constexpr int K_CHUNKS = chunks(ELEMENT * K_COLUMNS), V_CHUNKS = chunks(2 * V_COLUMNS);
constexpr int K_CHUNK = SWIZZLE_BYTES / ELEMENT, CHUNK = SWIZZLE_BYTES / 2;  // columns
constexpr int Q_CHUNK_BYTES = 64 * SWIZZLE_BYTES, KV_CHUNK_BYTES = BLOCK_N * SWIZZLE_BYTES;
// The output leaves through the buffer of the queries, or through one of its own in EPILOGUE_SUBTILE trips.
constexpr int O_CHUNKS = EPILOGUE_SUBTILE ? V_CHUNKS / EPILOGUE_SUBTILE : V_CHUNKS;  // of a trip
// Sums of e4m3 lie where the output leaves through later.
constexpr int SUM_BYTES = DTYPE_E4M3 ? 64 * 4 * V_COLUMNS : 0;
constexpr int SUM_KEYS = 512, SUM_BLOCKS = larger(SUM_KEYS / BLOCK_N, 1);
// Probabilities of 64 rows, whose chunks are as wide as divides them, so that none is left half empty.
constexpr int P_SWIZZLE = BLOCK_N % 64 == 0 ? 128 : BLOCK_N % 32 == 0 ? 64 : 32;
constexpr int P_CHUNK = P_SWIZZLE / 2, P_CHUNK_BYTES = 64 * P_SWIZZLE;
constexpr int COPIED_KEYS = BLOCK_N / CLUSTER_SIZE;  // of a block, by each program of a cluster
// Rows of V^T are columns of V, in chunks of as many keys as divide a block.
constexpr int VT_SWIZZLE = BLOCK_N % 128 == 0 ? 128 : BLOCK_N % 64 == 0 ? 64 : 32;
constexpr int VT_CHUNK_BYTES = V_COLUMNS * VT_SWIZZLE, COPIED_COLUMNS = V_COLUMNS / CLUSTER_SIZE;
constexpr int ROWS = 64 * WARPGROUPS;
constexpr int THREADS = 128 * (WARPGROUPS + 1);
// The launch gives each thread 65,536 / THREADS registers, rounded down to a multiple of 8: 168 of
// three warpgroups, 128 of four. Consumers take more of what the producer gives back: 128 threads
// times (24 + 2 * 240) are 64,512, times (32 + 3 * 160) 65,536.
constexpr int CONSUMER_REGISTERS = WARPGROUPS == 3 ? 160 : 240;
constexpr int PRODUCER_REGISTERS = WARPGROUPS == 3 ? 32 : 24;
// e4m3 ends at 448 and has fewer bits below 2^-6 (OCP 8-bit Floating Point Specification 1.0). So its
// probabilities are scaled by 2^P_LOG2, and may grow by 2^ROOM beyond that, ROOM being half of RESCALE_THRESHOLD,
// to 2^8 at most (FlashAttention-3's max_offset).
constexpr int ROOM = DTYPE_E4M3 ? RESCALE_THRESHOLD / 2 : RESCALE_THRESHOLD, P_LOG2 = DTYPE_E4M3 ? 8 - ROOM : 0;
constexpr float LN_2 = 0.6931471805599453f;
#define INFINITE __int_as_float(0x7f800000)  // no header of the toolkit's has to be there

static_assert(BLOCK_N % 16 == 0 && BLOCK_N <= 256, "WGMMA takes 16 keys at a time, TMA copies 256");
static_assert(!EPILOGUE_SUBTILE || V_CHUNKS % EPILOGUE_SUBTILE == 0, "a trip takes whole chunks");
static_assert(!SPLIT_DIAGONAL_BLOCK || (INTRA_WG_OVERLAP && BLOCK_N % 32 == 0), "half a block is 16 keys or more");
static_assert(INTRA_WG_OVERLAP || !P_IN_SMEM, "step_in_turn has no registers to gain");
static_assert(CLUSTER_SIZE == 1 || CLUSTER_SIZE == 2, "two programs share K and V");
static_assert(COPIED_KEYS % 8 == 0, "swizzles begin anew with every 8 rows");
static_assert(!DTYPE_E4M3 || BLOCK_N % 32 == 0, "WGMMA sums over 32 keys at a time");
static_assert(!DTYPE_E4M3 || (EPILOGUE_SUBTILE == 1 && !P_IN_SMEM), "sums lie in the output's buffer");
static_assert(INTRA_WG_OVERLAP || !PING_PONG, "step_in_turn takes no turns, but skip would");

// Shared memory, in bytes from a multiple of 1,024. The search space lays it out, and the compiler gets
// offsets, bytes of a slot and slots as macros.
static_assert(Q_BYTES >= (EPILOGUE_SUBTILE ? K_CHUNKS : larger(K_CHUNKS, V_CHUNKS)) * Q_CHUNK_BYTES,
              "a slot of queries holds their chunks, and the output without a buffer of its own");
static_assert(!P_IN_SMEM || P_BYTES >= 64 * 2 * BLOCK_N, "a slot holds the probabilities of 64 rows");
static_assert(K_BYTES == K_CHUNKS * KV_CHUNK_BYTES, "a slot's barrier waits for as many bytes of K");
static_assert(V_BYTES == (DTYPE_E4M3 ? V_COLUMNS * BLOCK_N : V_CHUNKS * KV_CHUNK_BYTES),
              "a slot's barrier waits for as many bytes of V");
static_assert(!EPILOGUE_SUBTILE || O_BYTES >= larger(O_CHUNKS * Q_CHUNK_BYTES, SUM_BYTES),
              "a slot holds the output of a trip, and the sums of e4m3");
static_assert(Q_SLOTS >= Q_STAGES * WARPGROUPS && P_SLOTS >= WARPGROUPS && K_SLOTS >= num_stages &&
                  V_SLOTS >= num_stages && O_SLOTS >= WARPGROUPS,
              "each stage and each warpgroup has a slot");
static_assert(BARRIERS_BYTES >= 8 && BARRIERS_SLOTS >= 4 * num_stages + 2 * Q_STAGES * WARPGROUPS,
              "each slot of K, V and Q has two barriers");
static_assert((Q_OFFSET | Q_BYTES | K_OFFSET | K_BYTES | O_OFFSET | O_BYTES) % (8 * SWIZZLE_BYTES) == 0 &&
                  (V_OFFSET | V_BYTES) % (8 * (DTYPE_E4M3 ? VT_SWIZZLE : SWIZZLE_BYTES)) == 0 &&
                  (P_OFFSET | P_BYTES) % (8 * P_SWIZZLE) == 0 && BARRIERS_OFFSET % 8 == 0,
              "a swizzle begins anew with every 8 rows");

struct Sizes {
    int heads, seqlen_q, seqlen_k;
    float scale_log2;  // of q @ k^T, times log2(e)
};

// e4m3: scales of each (batch, KV head), or null for 1.
struct Descales {
    const float *q, *k, *v;
    int heads_kv;
};

// A tile as the table has it, and the first row of that of its cluster which sees the most keys.
struct Tile {
    int batch, head, head_kv, row, lowest_row;
};

// Slots that the producer fills and consumers free, each with a barrier for either way. Both count
// how often a slot was used: the parity of that is the phase a barrier is in.
template <int FIRST, int SLOTS>
struct Ring {
    u32 barriers;
    __device__ __forceinline__ u32 filled(int slot) const { return barriers + 8 * (FIRST + slot); }
    __device__ __forceinline__ u32 freed(int slot) const {
        return barriers + 8 * (FIRST + SLOTS + slot);
    }
    __device__ __forceinline__ void init(u32 readers) const {
        for (int slot = 0; slot < SLOTS; slot++) {
            barrier_init(filled(slot), 1);
            barrier_init(freed(slot), readers);
        }
    }
    __device__ __forceinline__ void wait_filled(int use) const {
        barrier_wait(filled(use % SLOTS), (use / SLOTS) & 1);
    }
    __device__ __forceinline__ void wait_freed(int use) const {
        barrier_wait<(CLUSTER_SIZE > 1)>(freed(use % SLOTS), ((use / SLOTS) & 1) ^ 1);
    }
};
typedef Ring<0, num_stages> KRing;
typedef Ring<2 * num_stages, num_stages> VRing;
typedef Ring<4 * num_stages, Q_STAGES * WARPGROUPS> QRing;

// Place of this program in its cluster.
__device__ __forceinline__ int cluster_rank() { return blockIdx.x % CLUSTER_SIZE; }

// Row i of the table. What the programs of a cluster work on together is in order of its rows, so
// that the last one's sees the most keys: it stands `beside` rows further down.
__device__ __forceinline__ Tile tile_at(const int* tiles, int i, int beside) {
    int4 entry = ((const int4*)tiles)[i];
    int lowest_row = CLUSTER_SIZE == 1 ? entry.w : tiles[4 * (i + beside) + 3];
    return {entry.x, entry.y, entry.z, entry.w, lowest_row};
}

// Key blocks [0, end) are seen by some of the query rows [row, row + rows): at least one.
__device__ __forceinline__ int blocks_end(const Sizes& sizes, int row, int rows) {
    int seen = sizes.seqlen_k;
    if (CAUSAL) seen = min(row + rows, sizes.seqlen_q) + sizes.seqlen_k - sizes.seqlen_q;
    return max((seen + BLOCK_N - 1) / BLOCK_N, 1);
}

// --------------------------------------------------------------------- the producer, the consumers

#include "cuda/attention_producer.cuh"
#include "cuda/attention_rows.cuh"

__device__ __forceinline__ void consume(const TensorMap* o_map, float* lse, const Descales& descales,
                                        const Sizes& sizes, const int* schedule, const int* tiles,
                                        u32 shared, int me) {
    u32 barriers = shared + BARRIERS_OFFSET;
    int thread = threadIdx.x % 128;
    Consumer c{sizes, {barriers}, {barriers}, {barriers}, shared, me, thread % 32, thread / 32};
    int first = schedule[blockIdx.x], count = schedule[blockIdx.x + 1] - first;
    int beside = (CLUSTER_SIZE - 1 - cluster_rank()) * count;
    Tile tile = tile_at(tiles, first, beside);
    int use = 0;  // counts blocks that went through the rings, over all tiles
    if (me == WARPGROUPS - 1) c.give_turn();  // the first turn is warpgroup 0's
    for (int turn = 0; turn < count; turn++) {
        Tile here = tile;
        tile = tile_at(tiles, first + turn + 1, beside);
        int row = here.row + 64 * me, slot = turn % Q_STAGES * WARPGROUPS + me;
        int end = blocks_end(sizes, row, 64);
        if (CAUSAL) {
            int left = blocks_end(sizes, here.lowest_row, ROWS) - end;
            for (; left > 0; left--) c.skip(use++);
        }
        if (DTYPE_E4M3) c.take_scales(descales, here.batch * descales.heads_kv + here.head_kv);
        Rows rows;
        rows.blocks = 0;
#pragma unroll
        for (int i = 0; i < V_COLUMNS / 2; i++) rows.out[i] = 0.0f;
        for (int half = 0; half < 2; half++) {
            rows.max_log2[half] = -INFINITE;
            rows.sum[half] = 0.0f;
            rows.aside_decay[half] = 1.0f;
        }
        // With two slots the output of the tile before leaves while this one's first block is
        // worked on; with a buffer of its own it never keeps queries waiting.
        auto release_before = [&] {
            if (EPILOGUE_SUBTILE == 0 && Q_STAGES > 1 && turn > 0 && thread == 0) {
                tma_store_wait();
                barrier_arrive(c.q.freed((turn - 1) % Q_STAGES * WARPGROUPS + me));
            }
        };
        auto release_queries = [&] {
            if (EPILOGUE_SUBTILE > 0 && !Q_IN_REGS) c.release(c.q.freed(slot));
        };
        barrier_wait(c.q.filled(slot), (turn / Q_STAGES) & 1);
        if (Q_IN_REGS) {
            c.take_queries(slot);
            c.release(c.q.freed(slot));
        }
        use = c.attend(rows, slot, use, row, end, release_before, release_queries);
        long long rows_before = (long long)(here.batch * sizes.heads + here.head) * sizes.seqlen_q;
        c.finish(rows, lse + rows_before, row);
        auto send = [&](u32 from, int chunk) {
            if (thread == 0) {
                for (int i = 0; i < O_CHUNKS; i++)
                    tma_store(o_map, from + i * Q_CHUNK_BYTES, (chunk + i) * CHUNK, row, here.head,
                              here.batch);
                tma_store_commit();
            }
        };
        u32 to = EPILOGUE_SUBTILE ? shared + O_OFFSET + me * O_BYTES : shared + Q_OFFSET + slot * Q_BYTES;
        if (EPILOGUE_SUBTILE > 0 && thread == 0) tma_store_wait();  // what left last has been read
        c.put<0, O_CHUNKS>(rows, to);
        send(to, 0);
        if (EPILOGUE_SUBTILE == 2) {
            if (thread == 0) tma_store_wait();
            c.put<V_CHUNKS - O_CHUNKS, O_CHUNKS>(rows, to);
            send(to, O_CHUNKS);
        }
        if (EPILOGUE_SUBTILE == 0 && Q_STAGES == 1 && thread == 0) {
            tma_store_wait();
            barrier_arrive(c.q.freed(slot));
        }
    }
    // Shared memory is gone with the program: nobody reads it, or arrives at a barrier in it.
    if (thread == 0) tma_store_wait();
    if (CLUSTER_SIZE > 1 && thread == 0)
        for (int i = 0; i < num_stages; i++) {
            c.k.wait_freed(use + i);
            c.v.wait_freed(use + i);
        }
}

// --------------------------------------------------------------------------------------- the kernel

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
                  const float* q_descale, const float* k_descale, const float* v_descale, int heads_kv,
#endif
                  const int* schedule, const int* tiles, int heads, int seqlen_q, int seqlen_k,
                  float scale_log2) {
#if DTYPE_E4M3
    Descales descales{q_descale, k_descale, v_descale, heads_kv};
#else
    Descales descales{};
#endif
    // Nothing static lies before it, so it begins where it is aligned.
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 shared = shared_address(memory);
    Sizes sizes{heads, seqlen_q, seqlen_k, scale_log2};
    // The same in all lanes, which the compiler cannot know of threadIdx.
    int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        u32 barriers = shared + BARRIERS_OFFSET;
        KRing{barriers}.init(4 * WARPGROUPS * CLUSTER_SIZE);
        VRing{barriers}.init(4 * WARPGROUPS * CLUSTER_SIZE);
        QRing{barriers}.init(EPILOGUE_SUBTILE ? 4 : 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (CLUSTER_SIZE > 1) cluster_sync();  // nobody arrives at barriers that are not there yet
    if (warpgroup == WARPGROUPS) {
        if (WARPGROUPS > 1) give_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == WARPGROUPS * 128)
            produce(&q_map, &k_map, &v_map, sizes, schedule, tiles, shared);
    } else {
        if (WARPGROUPS > 1) take_registers<CONSUMER_REGISTERS>();
        consume(&o_map, lse, descales, sizes, schedule, tiles, shared, warpgroup);
    }
}
#endif
