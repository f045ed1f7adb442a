// FlashAttention backward for Hopper: warp-specialised, TMA and WGMMA, query blocks of any height.
//
//     P = exp(scale * q @ k^T - lse)         dP = dout @ v^T      delta = rowsum(dout * out) - dlse
//     dS = P * (dP - delta)    dq = scale * dS @ k    dk = scale * dS^T @ q    dv = P^T @ dout
//
// Algorithm: Dao, "FlashAttention-2", arXiv:2307.08691, section 3.1.2, with the warp specialisation
// of Shah et al., "FlashAttention-3", arXiv:2407.08608. A CTA owns 128 keys of one KV head, 64 of
// them for each of two consumer warpgroups. K and V stay in shared memory, dK and dV in registers,
// while blocks of BLOCK_M query rows pass, of all query heads that share the KV head.
//
// All products are transposed, so that P^T and dS^T are left operands from registers, and BLOCK_M
// is any multiple of 16. dS also goes to shared memory, as dQ needs that of all keys of the CTA:
//
//     S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q      64 keys of the warpgroup
//     dQ^T = K^T dS^T      64 columns of dQ, or with 64 columns the rows of a half   all 128 keys
//
//     producer (one thread)            consumer warpgroup, for each step
//     Q, lse, dO, delta: wait           start S^T and dP^T
//       until empty, copy        --->   hand over dS^T of the step before, and dQ^T of the one before that
//     dQ writer (one thread)  <-- dQ full
//       adds it by TMA    -- dQ empty ->
//                                       P^T = exp2(S^T - lse)
//                                       dS^T = P^T * (dP^T - delta), to registers and shared memory
//                                       start dV, dQ^T of the step before (with DQ_FIRST first), and dK
//                      <--- dO empty -- dV and dQ^T are finished: dQ^T to shared memory
//                                       with EARLY_SCORES start the next S^T
//                      <--- Q empty --  dK is finished
//
// With FOLD_ROW_TERMS -lse and -delta come from the tensor cores: three more columns of the products S^T
// and dP^T, in which they stand in parts, with ones.
//
// PING_PONG lets the two consumer warpgroups take turns at the tensor cores. A turn has the three
// products of a step, and the two of the next step's scores:
//
//     warpgroup 0   | dV dQ dK  S dP |  exp2, dS      | dV dQ dK  S dP |  exp2, dS
//     warpgroup 1   |  exp2, dS      | dV dQ dK  S dP |  exp2, dS      | dV dQ dK  S dP
//
// With PERSISTENT a CTA works on one tile after the other (cuda/backward_schedule.cuh), and with K_STAGES 2
// the last dQ of a tile is computed in the first step of the next one.
//
// With DQ_WARPGROUP a third warpgroup computes dQ^T and stores it (cuda/backward_dq.cuh). Without its
// accumulator a consumer has registers for S^T of the next step beside P^T and dS^T of this one, so
// that exponentials are computed while dV and dK are multiplied. A turn ends when dK has been started:
//
//     tensor cores     | S of the next step, dV, dK  | dP of the next step |
//     consumer         |           | its exponentials                      | its dS, to shared memory
//     dQ warpgroup     | dQ of the last dS: one part, then the other, each to shared memory
//
// With GROUP_SPLITS the query heads of a KV head's group are split among as many CTAs for each tile. In
// the code they are KV heads of their own, with smaller groups. Each writes the dK and dV of its query
// heads in fp32, in the order of the registers, and `write_dq` adds them up.
//
// A window on the right is a causal mask whose diagonal lies further to the right; one on the left
// ends the blocks of rows of a CTA early. A CTA whose keys no row sees writes zeros.
//
// Packed sequences: each has as many CTAs as the longest; those without keys end at once. TMA stops at
// the ends of a sequence.
//
// Without DQ_WARPGROUP dQ lags by one step: the other warpgroup has long stored its part of dS by
// then. dQ's accumulator is in fp32 in global memory and shared by all CTAs of a head, and has the
// order of the registers: of each block and each part of it, four numbers of a thread, then the
// threads, then groups of eight rows. TMA adds in an order that differs from launch to launch, so
// that dQ is not bitwise reproducible; with DETERMINISTIC the CTAs of a head add one after the other,
// in the sequence of their keys (cuda/backward_deterministic.cuh). `prepare_rows` runs before,
// `write_dq` after (cuda/backward_rows.cuh).
//
// With EARLY_POSTPROCESS, where DETERMINISTIC, `write_dq` starts when no CTA of this kernel is waiting for an
// SM, and writes each block of dQ as soon as all CTAs have added to it. So SMs work that would idle while
// the last tiles end.

// ------------------------------------------------------------ parameters, each set by -D (see .py)

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef BLOCK_M
#define BLOCK_M 80
#endif
#ifndef Q_STAGES
#define Q_STAGES 2
#endif
#ifndef DO_STAGES
#define DO_STAGES 2
#endif
#ifndef PING_PONG
#define PING_PONG 1
#endif
#ifndef DQ_WARPGROUP
#define DQ_WARPGROUP 0
#endif
#ifndef DQ_FIRST
#define DQ_FIRST 0
#endif
#ifndef EARLY_SCORES
#define EARLY_SCORES 0
#endif
#ifndef K_IN_REGISTERS
#define K_IN_REGISTERS 0
#endif
#ifndef FOLD_ROW_TERMS
#define FOLD_ROW_TERMS 0
#endif
#ifndef ZERO_DQ
#define ZERO_DQ 1
#endif
#ifndef EARLY_POSTPROCESS
#define EARLY_POSTPROCESS 0
#endif
#ifndef STAGGER
#define STAGGER 0
#endif
#ifndef HEADS_INSIDE
#define HEADS_INSIDE 0
#endif
#ifndef PERSISTENT
#define PERSISTENT 0
#endif
#ifndef K_STAGES
#define K_STAGES 1
#endif
#ifndef GROUP_SPLITS
#define GROUP_SPLITS 1
#endif
#ifndef DETERMINISTIC
#define DETERMINISTIC 0
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef WINDOWED
#define WINDOWED 0
#endif
#ifndef VARLEN
#define VARLEN 0
#endif
#ifndef RAGGED
#define RAGGED 1
#endif
#ifndef DTYPE_FP16
#define DTYPE_FP16 0
#endif

#include "cuda/numbers.cuh"
#include "cuda/ptx.cuh"
#include "cuda/bulk_copy.cuh"

// ------------------------------------------------------------------------------- derived constants

constexpr int WARPGROUPS = 2;
// With two buffers of K the last dQ of a tile is computed in the next one.
constexpr bool DEFERS_DQ = K_STAGES > 1;
constexpr int KEYS = 64 * WARPGROUPS;
// TMA pads rows in shared memory to whole chunks. WGMMA multiplies 16 columns at a time.
constexpr int COLUMNS = (HEAD_DIM + 63) / 64 * 64, CHUNKS = COLUMNS / 64;
constexpr int WIDTH = (HEAD_DIM + 15) / 16 * 16;
constexpr bool IS_BF16 = !DTYPE_FP16;
// A part of dQ^T has 64 columns of dQ, and all rows of a block or, with one chunk, a half.
constexpr int DQ_PARTS = 2, DQ_ROWS = CHUNKS == 1 ? BLOCK_M / DQ_PARTS : BLOCK_M;
// lse and delta of a row: a number in fp32 or, with FOLD_ROW_TERMS, its three parts in bf16, and zeros,
// as they are in a core matrix of WGMMA.
constexpr int ROW_TERM_FLOATS = FOLD_ROW_TERMS ? 4 : 1, ROW_TERM_BYTES = 4 * ROW_TERM_FLOATS;
constexpr int DQ_FLOATS = 64 * DQ_ROWS;  // of a part of a block
// With GROUP_SPLITS: the numbers of dK, and of dV, that a warpgroup has of a tile.
constexpr int KEY_SUM_FLOATS = 64 * WIDTH;
constexpr int THREADS = 128 * (WARPGROUPS + DQ_WARPGROUP + 1);
// Numbers of named barriers: 1 and 2 for the ends of warpgroups, then their turns, then the end of dQ.
constexpr int FIRST_TURN = 1 + WARPGROUPS, DQ_IS_ADDED = FIRST_TURN + WARPGROUPS;
// 128 threads times (24 + 2 * 240) are 64,512 registers, 168 of each thread at the launch; with a
// warpgroup for dQ, (24 + 64 + 2 * 208) or (24 + 56 + 2 * 216) are 128 of each.
constexpr int PRODUCER_REGISTERS = 24, DQ_REGISTERS = DQ_ROWS > 48 ? 64 : 56;
constexpr int CONSUMER_REGISTERS = DQ_WARPGROUP ? (512 - 24 - DQ_REGISTERS) / 16 * 8 : 240;

static_assert(HEAD_DIM % 8 == 0 && COLUMNS <= 128, "rows of TMA are multiples of 16 bytes");
static_assert(!(DETERMINISTIC && STAGGER), "the sequence is that of CTAs which begin together");
static_assert(!HEADS_INSIDE || (CAUSAL && !DETERMINISTIC), "it begins with the last rows");
static_assert(K_STAGES == 1 || (PERSISTENT && !DQ_WARPGROUP && !WINDOWED && !VARLEN),
              "each tile has a step, which computes the last dQ of the one before");
static_assert(!EARLY_POSTPROCESS || DETERMINISTIC, "other additions are not counted");
static_assert(!FOLD_ROW_TERMS || IS_BF16, "fp16 has too few exponents");
static_assert(!DQ_WARPGROUP || !DQ_FIRST, "consumers compute no dQ");
static_assert(BLOCK_M % 16 == 0 && DQ_ROWS % 16 == 0, "WGMMA takes 16 rows at a time");

// The bounds of packed sequences, where VARLEN: sequence i has rows starts[i] to starts[i + 1].
struct Sequences {
    const int *starts_q, *starts_k;
    int bounds;  // sequences and one more
};

struct Sizes {
    Sequences sequences;
    int heads, heads_kv;  // heads_kv: times GROUP_SPLITS
    int seqlen_k;         // of packed sequences the longest
    // CAUSAL: row i sees keys up to i + diagonal; WINDOWED: only the last window_keys of them. With
    // packed sequences the diagonal lacks seqlen_k - seqlen_q.
    int diagonal, window_keys;
    int blocks;         // of query rows of a head, of all packed sequences
    int section_heads;  // KV heads of an L2 section, times GROUP_SPLITS
    int tiles;          // of all CTAs
    int key_tiles;      // with GROUP_SPLITS: of a head, of all packed sequences
    float scale_log2, scale;

    DEVICE int group() const { return heads / heads_kv; }
};

// The number, among those of a head, of the first block of `ROWS` rows of a packed sequence. Every
// sequence has a place for a block that is not full, so that no other one's length is needed.
template <int ROWS>
DEVICE int first_block_number(int begin, int sequence) {
    return begin / ROWS + sequence;
}

// `count`: how many CTAs have come to a part of dQ; where DETERMINISTIC, how many have added. `done`, where
// not DETERMINISTIC: 1 when the part of the first CTA is stored. The first two in memory belong to no part:
// with PERSISTENT the first one counts the tiles that producers have taken.
struct Arrivals {
    u32 count, done;
};

#if PREPARE_ROWS || WRITE_DQ
#include "cuda/backward_rows.cuh"
#else
#include "cuda/wgmma_transposed.cuh"
#include "cuda/backward_tile.cuh"
#include "cuda/backward_schedule.cuh"
#include "cuda/backward_dq.cuh"
#include "cuda/backward_scores.cuh"
#include "cuda/backward_consumer.cuh"
#include "cuda/backward_deterministic.cuh"
#include "cuda/backward_producer.cuh"

// -------------------------------------------------------------------------------------- the kernel

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_bwd(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                  const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map,
                  const __grid_constant__ TensorMap dk_map, const __grid_constant__ TensorMap dv_map,
                  const float* lse, const float* delta, float* dq_sum, Arrivals* arrivals,
                  float* key_sums, const int* starts_q, const int* starts_k, int bounds, int heads,
                  int heads_kv, int seqlen_k, int diagonal, int window_keys, int blocks,
                  int section_heads, int tiles, int key_tiles, float scale_log2, float scale) {
    // The kernel has no static shared memory, so the alignment holds.
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const Sizes sizes{{starts_q, starts_k, bounds}, heads, heads_kv, seqlen_k, diagonal, window_keys,
                      blocks, section_heads, tiles, key_tiles, scale_log2, scale};
    // The shuffle tells the compiler that it is the same in all lanes.
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const int warpgroup = warp / 4;
    if (!EARLY_POSTPROCESS) launch_dependents();
    // It waits all the same: the kernel after waits for this one alone.
    if (!PERSISTENT && !tile_at(sizes, place_of(sizes, blockIdx.x)).exists())
        return wait_for_kernel_before();
    if (threadIdx.x == 0) {
        Barriers{shared + BARRIERS_OFFSET}.init();
        fence_mbarrier_init();
    }
    if (FOLD_ROW_TERMS && warp == 0) store_ones(shared + ONES_OFFSET, threadIdx.x);
    __syncthreads();
    if (warpgroup == WARPGROUPS + DQ_WARPGROUP) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x % 32 == 0)
            copy({&q_map, &k_map, &v_map, &do_map}, lse, delta, dq_sum, arrivals, sizes, shared,
                 warp % 4);
    } else if (DQ_WARPGROUP && warpgroup == WARPGROUPS) {
        setmaxnreg_dec<DQ_REGISTERS>();
        multiply_dq(sizes, shared, threadIdx.x % 32, warp % 4);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const KeyGradients to{&dk_map, &dv_map, key_sums};
        consume(sizes, shared, to, warpgroup, threadIdx.x % 32, warp % 4);
    }
}
#endif
