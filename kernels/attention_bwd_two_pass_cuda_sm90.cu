// FlashAttention backward for Hopper in two passes, for head dimensions above 128: deterministic.
//
//     P = exp(scale * q @ k^T - lse)         dP = dout @ v^T      delta = rowsum(dout * out) - dlse
//     dS = P * (dP - delta)    dq = scale * dS @ k    dk = scale * dS^T @ q    dv = P^T @ dout
//
// Algorithm: Dao, "FlashAttention-2", arXiv:2307.08691, section 3.1.2, with its loop turned both
// ways, as in PyTorch's FlexAttention (arXiv:2412.05496), and with the warp specialisation of Shah
// et al., "FlashAttention-3", arXiv:2407.08608. A call launches two kernels, one after the other:
//
//     pass           a CTA owns                             it streams               it computes
//     query pass     128 rows of a query head               K, V in blocks of keys   dQ, delta, lse
//     key pass       64 keys of a KV head                   Q, dO, delta, lse        dK, dV
//
// So S and dP are computed twice. In return no sum is ever in memory, and every launch on the same
// tensors gives the same bits. What a CTA owns stays in shared memory, its sums in registers. One
// producer thread copies by TMA. WGMMA has any multiple of 16 columns, so head_dim 192 is not
// padded.
//
// Query pass (cuda/two_pass_queries.cuh): each of two warpgroups has 64 rows. A step takes both
// past BLOCK_N keys, the last ones first:
//
//     S = Q K^T,  dP = dO V^T,  P = exp2(S - lse),  dS = P (dP - delta),  dQ += dS K
//
// A warpgroup computes exponentials while the other one multiplies. It sums up delta while the
// products of its first step run, and writes delta and lse in powers of two for the key pass.
//
// Key pass (cuda/two_pass_keys.cuh): the registers of a warpgroup hold dK or dV of 64 keys. So one
// warpgroup computes dV, the other one dK, and P^T goes from one to the other through shared
// memory:
//
//     warpgroup 0                                  warpgroup 1
//     S^T = K Q^T, P^T = exp2(S^T - lse)           dP^T = V dO^T
//                                    -- P^T -->    dS^T = P^T (dP^T - delta)
//     dV += P^T dO                                 dK += dS^T Q
//
// P^T and dS^T are left operands from registers. Each warpgroup starts the first product of the
// next step before the second one of this step, and computes with its result while the second one
// runs:
//
//     tensor cores    | S of step 1, dV of step 0 | S of step 2, dV of step 1
//     warpgroup 0            | exp2 of step 1            | exp2 of step 2
//
// P goes over in fp32 or, with P_FP16, in fp16 and times 2^15: of numbers below 2^-14 fp16 keeps
// few bits. The query pass writes lse less 15 for this, and delta times 2^-15, and in the end dV is
// multiplied by 2^-15.
//
// With CLUSTER_SIZE 2 two CTAs have neighbouring keys of one head. Each reads half of a block of Q
// and dO from the L2 cache and sends it to both. That halves what the key pass reads from the cache.
// Up to head_dim 192 the cache does not limit it, and it is faster without clusters.
//
// Causal means bottom-right aligned: row i sees keys up to i + seqlen_k - seqlen_q. A window on the
// right is a causal mask whose diagonal lies further to the right; one on the left hides keys that
// lie too far before it. In both passes the longest tiles start first. PERSISTENT: there is a CTA
// for each SM, which works on a list of tiles and copies early for the next one.

// ------------------------------------------------------------ parameters, each set by -D (see .py)

#ifndef HEAD_DIM
#define HEAD_DIM 192
#endif
#ifndef HEAD_DIM_V
#define HEAD_DIM_V HEAD_DIM
#endif
#ifndef QUERY_PASS
#define QUERY_PASS 0
#endif
#ifndef BLOCK_M
#define BLOCK_M 64
#endif
#ifndef Q_STAGES
#define Q_STAGES 2
#endif
#ifndef DO_STAGES
#define DO_STAGES 2
#endif
#ifndef P_STAGES
#define P_STAGES 1
#endif
#ifndef P_FP16
#define P_FP16 0
#endif
#ifndef KV_IN_REGISTERS
#define KV_IN_REGISTERS 0
#endif
#ifndef EARLY_DP
#define EARLY_DP 1
#endif
#ifndef CLUSTER_SIZE
#define CLUSTER_SIZE 1
#endif
#ifndef BLOCK_N
#define BLOCK_N 64
#endif
#ifndef K_STAGES
#define K_STAGES 2
#endif
#ifndef V_STAGES
#define V_STAGES 1
#endif
#ifndef PERSISTENT
#define PERSISTENT 0
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef WINDOWED
#define WINDOWED 0
#endif
#ifndef DTYPE_FP16
#define DTYPE_FP16 0
#endif

#include "cuda/numbers.cuh"
#include "cuda/ptx.cuh"
#include "cuda/bulk_copy.cuh"
#include "cuda/wgmma_transposed.cuh"

// ------------------------------------------------------------------------------- derived constants

constexpr int WARPGROUPS = 2, THREADS = 128 * (WARPGROUPS + 1);
// WGMMA multiplies 16 columns at a time. TMA pads rows in shared memory to whole chunks.
constexpr int WIDTH = (HEAD_DIM + 15) / 16 * 16, WIDTH_V = (HEAD_DIM_V + 15) / 16 * 16;
constexpr int CHUNKS = (HEAD_DIM + 63) / 64, CHUNKS_V = (HEAD_DIM_V + 63) / 64;
constexpr bool IS_BF16 = !DTYPE_FP16;
// 128 threads times (40 + 2 * 232) are 64,512 registers, 168 of each thread at the launch.
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float P_SHIFT = P_FP16 ? 15.0f : 0.0f, P_DOWN = P_FP16 ? 1.0f / 32768 : 1.0f;

static_assert(HEAD_DIM % 8 == 0 && HEAD_DIM_V % 8 == 0, "rows of TMA are multiples of 16 bytes");
static_assert(HEAD_DIM_V <= HEAD_DIM, "dV leaves through the memory of K");
static_assert(!P_FP16 || IS_BF16, "2^15 times P and more does not fit fp16 in the sums of dK");

struct Sizes {
    int heads, heads_kv, seqlen_q, seqlen_k;
    // CAUSAL: row i sees keys up to i + diagonal; WINDOWED: only the last window_keys of them.
    int diagonal, window_keys;
    int rows;           // of a query head in the memory of lse and delta: whole blocks and tiles
    int tiles;          // of all CTAs, or clusters
    int section_heads;  // KV heads of an L2 section
    float scale_log2, scale;

    DEVICE int group() const { return heads / heads_kv; }
};

#include "cuda/two_pass_tiles.cuh"
#include "cuda/two_pass_products.cuh"

// ------------------------------------------------------------------------------------- the kernels

#if CLUSTER_SIZE > 1
#define LAUNCH_BOUNDS __cluster_dims__(CLUSTER_SIZE, 1, 1) __launch_bounds__(THREADS, 1)
#else
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, 1)
#endif

#if QUERY_PASS
#include "cuda/two_pass_queries.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    query_pass(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
               const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map,
               const __grid_constant__ TensorMap dq_map, const unsigned short* out,
               const float* lse, const float* dlse, float* lse_log2, float* delta,
               const int* table, Strides out_strides, Strides dlse_strides, int heads,
               int heads_kv, int seqlen_q, int seqlen_k, int diagonal, int window_keys, int rows,
               int tiles, int section_heads, float scale_log2, float scale) {
    // The kernel has no static shared memory, so the alignment holds.
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const Sizes sizes{heads, heads_kv, seqlen_q,      seqlen_k,   diagonal, window_keys,
                      rows,  tiles,    section_heads, scale_log2, scale};
    // The shuffle tells the compiler that it is the same in all lanes.
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    launch_dependents();
    if (threadIdx.x == 0) {
        Barriers{shared + BARRIERS_OFFSET}.init();
        fence_mbarrier_init();
    }
    __syncthreads();
    if (warp / 4 == WARPGROUPS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x == 128 * WARPGROUPS)
            produce({&q_map, &k_map, &v_map, &do_map}, sizes, table, shared);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const RowSums sums{out, lse, dlse, lse_log2, delta, out_strides, dlse_strides};
        consume(sizes, table, shared, sums, &dq_map, warp / 4, threadIdx.x % 32, warp % 4);
    }
}
#else
#include "cuda/two_pass_key_memory.cuh"
#include "cuda/two_pass_keys.cuh"
#include "cuda/two_pass_key_producer.cuh"

extern "C" __global__ void LAUNCH_BOUNDS
    key_pass(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
             const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map,
             const __grid_constant__ TensorMap dk_map, const __grid_constant__ TensorMap dv_map,
             const float* lse_log2, const float* delta, const int* table, int heads, int heads_kv,
             int seqlen_q, int seqlen_k, int diagonal, int window_keys, int rows, int tiles,
             int section_heads, float scale_log2, float scale) {
    // The kernel has no static shared memory, so the alignment holds.
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const Sizes sizes{heads, heads_kv, seqlen_q,      seqlen_k,   diagonal, window_keys,
                      rows,  tiles,    section_heads, scale_log2, scale};
    // The shuffle tells the compiler that it is the same in all lanes.
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const int warpgroup = warp / 4, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        Barriers{shared + BARRIERS_OFFSET}.init();
        fence_mbarrier_init();
    }
    __syncthreads();
    if (CLUSTER_SIZE > 1) cluster_sync();  // the barriers of both CTAs are initialised
    if (warpgroup == WARPGROUPS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x == 128 * WARPGROUPS)
            produce({&q_map, &k_map, &v_map, &do_map}, lse_log2, delta, sizes, table, shared);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        if (warpgroup == 0)
            consume<ValuesConsumer>(sizes, table, shared, &dv_map, lane, warp);
        else
            consume<KeysConsumer>(sizes, table, shared, &dk_map, lane, warp % 4);
    }
}
#endif
