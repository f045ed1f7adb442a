// FlashAttention-2 forward with the tensor cores of sm80 (mma.sync). attention_fwd_cuda_sm80.py
// says what each parameter trades.
//
// The tile. A CTA owns BLOCK_M query rows of one head. Warp w owns 16 * M_TILES of them and
// computes all columns of its rows: warps share K and V, and exchange no scores. Here BLOCK_M = 64,
// num_warps = 4 and M_TILES = 1:
//
//       Q (BLOCK_M x HEAD_DIM)    S = Q K^T (BLOCK_M x BLOCK_N)    O (BLOCK_M x HEAD_DIM_V)
//      +----------------------+  +--------+--------+-----+------+  +--------+-----+--------+
//      | warp 0: rows  0 - 15 |  | 8 keys | 8 keys | ... |      |  | 8 cols | ... |        |
//      +----------------------+  +--------+--------+-----+------+  +--------+-----+--------+
//      | warp 1: rows 16 - 31 |  | warp 1                       |  | warp 1                |
//      +----------------------+  +------------------------------+  +-----------------------+
//      | warp 2: rows 32 - 47 |  | warp 2                       |  | warp 2                |
//      +----------------------+  +------------------------------+  +-----------------------+
//      | warp 3: rows 48 - 63 |  | warp 3                       |  | warp 3                |
//      +----------------------+  +------------------------------+  +-----------------------+
//
//      Of each 16 x 8 piece of S and O a lane has rows lane / 4 and lane / 4 + 8, and of both the
//      columns 2 (lane % 4) and 2 (lane % 4) + 1. Four lanes share a row.
//
// The pipeline. All threads copy Q, K and V with cp.async, K and V by blocks of BLOCK_N keys: from
// block n, the last that a row of the tile sees, to block 0. At each ^ a thread waits for its own
// copies (cp_async_wait). The __syncthreads behind it says that the other threads' copies have
// arrived as well, and that all warps have read the buffer which the next copies overwrite.
//
//   num_stages = 1: one buffer for K and one for V, two waits a step.
//
//      cp.async      Q, K(n)     V(n)             K(n-1)                  V(n-1)
//      warps                     S = Q K(n)^T     softmax, O += P V(n)    S = Q K(n-1)^T   ...
//                              ^                ^                       ^
//      arrived                 Q, K(n)          V(n)                    K(n-1)
//      overwritten next        buffer of V      buffer of K             buffer of V
//
//   num_stages = 3: each stage holds K and V of one block, one wait a step.
//
//                    before the loop      step n             step n-1           step n-2
//      stage 0       copy K(n), V(n)      use n              copy n-3           (in flight)
//      stage 1       copy K, V(n-1)       (in flight)        use n-1            copy n-4
//      stage 2                            copy n-2           (in flight)        use n-2
//                                       ^                  ^                  ^
//      arrived                          Q, K(n), V(n)      K, V(n-1)          K, V(n-2)
//      overwritten next                 stage 2            stage 0            stage 1
//
//   With Q_IN_REGS the warps load Q from shared memory once, before the loop, with SHARE_QK_SMEM
//   before the first copy of K, which overwrites Q. At the end the output overwrites all of them.

#include "cuda/attention_problem.cuh"
#include "cuda/swizzled_tile.cuh"
#include "cuda/warp_rows.cuh"

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
#ifndef CAUSAL
#define CAUSAL 1
#endif
#ifndef num_warps
#define num_warps 4
#endif
#ifndef BLOCK_M
#define BLOCK_M 64
#endif
#ifndef BLOCK_N
#define BLOCK_N 64
#endif
#ifndef num_stages
#define num_stages 1
#endif
#ifndef Q_IN_REGS
#define Q_IN_REGS 0
#endif
#ifndef SHARE_QK_SMEM
#define SHARE_QK_SMEM 0
#endif
#ifndef RESCALE_THRESHOLD
#define RESCALE_THRESHOLD 0
#endif
#ifndef MIN_BLOCKS_PER_SM
#define MIN_BLOCKS_PER_SM 1
#endif

static_assert(HEAD_DIM % 8 == 0 && HEAD_DIM_V % 8 == 0, "rows are copied 16 bytes at a time");
static_assert(BLOCK_M % (16 * num_warps) == 0 && BLOCK_N % 16 == 0, "a fragment has 16 rows");
static_assert(Q_IN_REGS || !SHARE_QK_SMEM, "SHARE_QK_SMEM needs the queries in registers");

constexpr int THREADS = 32 * num_warps;

struct Shape {
    static constexpr int M_TILES = BLOCK_M / (16 * num_warps);  // of a warp, 16 rows each
    static constexpr int D_STEPS = (HEAD_DIM + 15) / 16;        // of q k^T; zeros pad the last
    static constexpr int S_TILES = BLOCK_N / 8;                 // of the scores, 8 columns each
    static constexpr int O_TILES = HEAD_DIM_V / 8;              // of the output, 8 columns each
    static constexpr bool IS_BF16 = BF16, KEEP_Q = Q_IN_REGS;
    static constexpr int THRESHOLD_LOG2 = RESCALE_THRESHOLD;
    typedef SmemTile<BLOCK_M, 16 * D_STEPS> QTile;
    typedef SmemTile<BLOCK_N, 16 * D_STEPS> KTile;
    typedef SmemTile<BLOCK_N, HEAD_DIM_V> VTile;
    typedef SmemTile<BLOCK_M, HEAD_DIM_V> OTile;
};
typedef Shape::QTile QTile;
typedef Shape::KTile KTile;
typedef Shape::VTile VTile;

// Shared memory: queries, num_stages blocks of K, as many of V; at the end the output, over all of
// it.
// The search space lays it out, and the compiler gets offsets, bytes of a slot and slots as macros.
static_assert(Q_BYTES >= QTile::BYTES && K_BYTES >= KTile::BYTES && V_BYTES >= VTile::BYTES &&
                  O_BYTES >= Shape::OTile::BYTES,
              "a slot holds a tile");
static_assert(Q_SLOTS >= 1 && K_SLOTS >= num_stages && V_SLOTS >= num_stages && O_SLOTS >= 1,
              "each stage has a slot");
static_assert((Q_OFFSET | K_OFFSET | V_OFFSET | O_OFFSET | K_BYTES | V_BYTES) % 128 == 0,
              "tiles begin at the first bank");
static_assert(SHARE_QK_SMEM || (K_OFFSET >= Q_OFFSET + Q_BYTES && V_OFFSET >= Q_OFFSET + Q_BYTES),
              "keys overwrite queries with SHARE_QK_SMEM only");

// Groups of copies that may be unfinished when a step begins: those of later blocks.
constexpr int PENDING_GROUPS = num_stages > 1 ? num_stages - 2 : 0;

// Copies K and V of one head into shared memory. TAIL: keys of the block may be missing. Only the
// last block can lack some, and it is the first to be computed.
struct KVPipeline {
    const Element *k, *v;
    int k_stride, v_stride, seqlen;
    u32 smem;

    template <bool TAIL>
    DEVICE void copy_k(int block, int stage) const {
        const int first = block * BLOCK_N;
        copy_rows<KTile, THREADS, HEAD_DIM, TAIL>(smem + K_OFFSET + stage * K_BYTES,
                                                  k + Offset(first) * k_stride, k_stride,
                                                  seqlen - first);
    }

    template <bool TAIL>
    DEVICE void copy_v(int block, int stage) const {
        const int first = block * BLOCK_N;
        copy_rows<VTile, THREADS, HEAD_DIM_V, TAIL>(smem + V_OFFSET + stage * V_BYTES,
                                                    v + Offset(first) * v_stride, v_stride,
                                                    seqlen - first);
    }

    // Starts the copies that fit before the first step.
    DEVICE void start(int blocks) const {
        if (num_stages == 1) {
            if (blocks > 0) copy_k<true>(blocks - 1, 0);
            cp_async_commit();
        }
#pragma unroll
        for (int stage = 0; stage < num_stages - 1; ++stage) {
            if (blocks > stage) {
                copy_k<true>(blocks - 1 - stage, stage);
                copy_v<true>(blocks - 1 - stage, stage);
            }
            cp_async_commit();
        }
    }

    // Waits for K of the block, then starts the next copies. All warps have read what these
    // overwrite: V of the block before, with several stages K and V of the block before.
    template <bool TAIL>
    DEVICE void wait_k(int block, int stage) const {
        cp_async_wait<PENDING_GROUPS>();
        __syncthreads();
        if (num_stages == 1) {
            copy_v<TAIL>(block, 0);
        } else if (block >= num_stages - 1) {
            const int free_stage = stage == 0 ? num_stages - 1 : stage - 1;
            copy_k<false>(block - (num_stages - 1), free_stage);
            copy_v<false>(block - (num_stages - 1), free_stage);
        }
        cp_async_commit();
    }

    // Waits for V of the block. With several stages it has arrived together with K. With one stage
    // all warps have read K of the block, and the next K overwrites it.
    DEVICE void wait_v(int block) const {
        if (num_stages > 1) return;
        cp_async_wait<0>();
        __syncthreads();
        if (block > 0) copy_k<false>(block - 1, 0);
        cp_async_commit();
    }
};

// Computes one block of keys for a warp's rows. MASKED: some row may not see all of its keys. The
// warp's row lane / 4 sees the first `row_keys` keys of the head.
template <bool MASKED>
DEVICE void step(WarpRows<Shape>& rows, const KVPipeline& kv, int block, int stage, int row_keys,
                 float scale_log2) {
    typename WarpRows<Shape>::Scores s;
    kv.wait_k<MASKED>(block, stage);
    rows.compute_scores(s, kv.smem + Q_OFFSET, kv.smem + K_OFFSET + stage * K_BYTES);
    kv.wait_v(block);
    if (MASKED) {
        const int block_keys = kv.seqlen - block * BLOCK_N;
        rows.mask(s, CAUSAL ? row_keys - block * BLOCK_N : block_keys, CAUSAL, block_keys);
    }
    rows.template softmax<MASKED>(s, scale_log2);
    rows.add_values(s, kv.smem + V_OFFSET + stage * V_BYTES);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM)
    attention_fwd(const Element* q, const Element* k, const Element* v, Element* out, float* lse,
                  Strides q_strides, Strides k_strides, Strides v_strides, Strides out_strides,
                  Sizes sizes) {
    extern __shared__ __align__(128) unsigned char shared[];
    const u32 smem = shared_address(shared);
    const WorkInfo work = work_of_cta<CAUSAL>(sizes);
    const int head_kv = work.head / sizes.group, first_query = work.tile * BLOCK_M;
    const KVPipeline kv = {k + at(k_strides, work.batch, head_kv, 0),
                           v + at(v_strides, work.batch, head_kv, 0),
                           k_strides.row, v_strides.row, sizes.seqlen_k, smem};
    const VisibleKeys visible = visible_keys<CAUSAL>(sizes, first_query, BLOCK_M);
    const int blocks = (visible.to_some + BLOCK_N - 1) / BLOCK_N;
    const int unmasked_blocks = visible.to_all / BLOCK_N;

    WarpRows<Shape> rows;
    rows.init();
    q += at(q_strides, work.batch, work.head, first_query);
    copy_rows<QTile, THREADS, HEAD_DIM, true>(smem + Q_OFFSET, q, q_strides.row,
                                             sizes.seqlen_q - first_query);
    cp_async_commit();
    if (SHARE_QK_SMEM) {
        cp_async_wait<0>();
        __syncthreads();
        rows.load_q(smem + Q_OFFSET);
        __syncthreads();
    }
    kv.start(blocks);
    if (Q_IN_REGS && !SHARE_QK_SMEM) {
        cp_async_wait<num_stages == 1 ? 1 : num_stages - 1>();  // the groups of kv.start
        __syncthreads();
        rows.load_q(smem + Q_OFFSET);
    }

    const int first_row = first_query + rows.first_row;
    const int row_keys = first_row + rows.lane / 4 + visible.diagonal + 1;
    int block = blocks - 1, stage = 0;
    for (; block >= unmasked_blocks; --block, stage = (stage + 1) % num_stages)
        step<true>(rows, kv, block, stage, row_keys, sizes.scale_log2);
    for (; block >= 0; --block, stage = (stage + 1) % num_stages)
        step<false>(rows, kv, block, stage, row_keys, sizes.scale_log2);

    cp_async_wait<0>();
    __syncthreads();  // all warps have read Q, K and V; the output overwrites them
    lse += Offset(work.batch * sizes.heads + work.head) * sizes.seqlen_q + first_row;
    rows.finalize(lse, sizes.seqlen_q - first_row);
    out += at(out_strides, work.batch, work.head, first_row);
    rows.store(out, out_strides.row, sizes.seqlen_q - first_row, smem + O_OFFSET);
}
