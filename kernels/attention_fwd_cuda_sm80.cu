// FlashAttention-2 forward with the tensor cores of sm80 (mma.sync). attention_fwd_cuda_sm80.py
// says what the parameters are for. One block owns BLOCK_M query rows of one head, a warp M_TILES
// times 16 of them, and keys pass by in blocks of BLOCK_N, from the last one that a row sees.

#include "cuda/attention_problem.cuh"
#include "cuda/swizzled_tile.cuh"
#include "cuda/warp_rows.cuh"

// Any value of these is right where the static_asserts hold.
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
static_assert(Q_IN_REGS || !SHARE_QK_SMEM, "keys may overwrite queries that are in registers");

constexpr int THREADS = 32 * num_warps;

struct Shape {
    static constexpr int M_TILES = BLOCK_M / (16 * num_warps);  // 16 rows each, of a warp
    static constexpr int D_STEPS = (HEAD_DIM + 15) / 16;    // of q k^T; zeros pad the last
    static constexpr int S_TILES = BLOCK_N / 8;             // 8 columns each, of scores
    static constexpr int O_TILES = HEAD_DIM_V / 8;          // and of output
    static constexpr bool IS_BF16 = BF16, KEEP_Q = Q_IN_REGS;
    static constexpr int LAG = RESCALE_THRESHOLD;
    typedef Tile<BLOCK_M, 16 * D_STEPS> QTile;
    typedef Tile<BLOCK_N, 16 * D_STEPS> KTile;
    typedef Tile<BLOCK_N, HEAD_DIM_V> VTile;
    typedef Tile<BLOCK_M, HEAD_DIM_V> OTile;
};
typedef Shape::QTile QTile;
typedef Shape::KTile KTile;
typedef Shape::VTile VTile;

// Shared memory: queries, num_stages blocks of K, as many of V; at the end the output, over all of it.
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

// Groups of copies that may still be under way when a block's own must be there.
constexpr int AHEAD = num_stages > 1 ? num_stages - 2 : 0;

// K and V of one head on their way into shared memory. Only the last block may have a tail, and it
// is the first to be worked on.
struct Keys {
    const Element *k, *v;
    int k_stride, v_stride, seqlen;
    Shared smem;

    template <bool TAIL> __device__ __forceinline__ void copy_k(int block, int stage) const {
        const int first = block * BLOCK_N;
        copy_rows<KTile, THREADS, HEAD_DIM, TAIL>(smem + K_OFFSET + stage * K_BYTES,
                                                  k + Offset(first) * k_stride, k_stride,
                                                  seqlen - first);
    }

    template <bool TAIL> __device__ __forceinline__ void copy_v(int block, int stage) const {
        const int first = block * BLOCK_N;
        copy_rows<VTile, THREADS, HEAD_DIM_V, TAIL>(smem + V_OFFSET + stage * V_BYTES,
                                                    v + Offset(first) * v_stride, v_stride,
                                                    seqlen - first);
    }

    // Begins what there is room for before the first step.
    __device__ __forceinline__ void begin(int blocks) const {
        if (num_stages == 1) {
            if (blocks > 0) copy_k<true>(blocks - 1, 0);
            end_group();
        }
#pragma unroll
        for (int stage = 0; stage < num_stages - 1; ++stage) {
            if (blocks > stage) {
                copy_k<true>(blocks - 1 - stage, stage);
                copy_v<true>(blocks - 1 - stage, stage);
            }
            end_group();
        }
    }

    // Until a block's K is there. Nobody needs the V before any more, or with several stages all of
    // the block before: the next copies go there.
    template <bool TAIL> __device__ __forceinline__ void before_scores(int block, int stage) const {
        wait_groups<AHEAD>();
        __syncthreads();
        if (num_stages == 1) {
            copy_v<TAIL>(block, 0);
        } else if (block >= num_stages - 1) {
            const int free = stage == 0 ? num_stages - 1 : stage - 1;
            copy_k<false>(block - (num_stages - 1), free);
            copy_v<false>(block - (num_stages - 1), free);
        }
        end_group();
    }

    // Until its V is there too, and with one stage nobody needs its K any more.
    __device__ __forceinline__ void after_scores(int block) const {
        if (num_stages > 1) return;
        wait_groups<0>();
        __syncthreads();
        if (block > 0) copy_k<false>(block - 1, 0);
        end_group();
    }
};

// Takes a warp's rows past a block of keys. MASKED: some row may not see all of them; the row
// `first_row + lane / 4` sees the first `seen`.
template <bool MASKED>
DEVICE void step(Warp<Shape> &warp, const Keys &keys, int block, int stage, int seen,
                 float scale_log2) {
    typename Warp<Shape>::Scores s;
    keys.before_scores<MASKED>(block, stage);
    warp.scores(s, keys.smem + Q_OFFSET, keys.smem + K_OFFSET + stage * K_BYTES);
    keys.after_scores(block);
    if (MASKED) {
        const int there = keys.seqlen - block * BLOCK_N;
        warp.mask(s, CAUSAL ? seen - block * BLOCK_N : there, CAUSAL, there);
    }
    warp.template softmax<MASKED>(s, scale_log2);
    warp.add_values(s, keys.smem + V_OFFSET + stage * V_BYTES);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM)
attention_fwd(const Element *q, const Element *k, const Element *v, Element *out, float *lse,
              Strides q_strides, Strides k_strides, Strides v_strides, Strides out_strides,
              Sizes sizes) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Shared smem = shared_address(shared);
    const Owned own = owned_tile<CAUSAL>(sizes);
    const int head_kv = own.head / sizes.group, first_query = own.tile * BLOCK_M;
    const Keys keys = {k + at(k_strides, own.batch, head_kv, 0),
                       v + at(v_strides, own.batch, head_kv, 0),
                       k_strides.row, v_strides.row, sizes.seqlen_k, smem};
    const Seen seen = seen_keys<CAUSAL>(sizes, first_query, BLOCK_M);
    const int blocks = (seen.end + BLOCK_N - 1) / BLOCK_N, clear_blocks = seen.clear / BLOCK_N;

    Warp<Shape> warp;
    warp.begin();
    q += at(q_strides, own.batch, own.head, first_query);
    copy_rows<QTile, THREADS, HEAD_DIM, true>(smem + Q_OFFSET, q, q_strides.row,
                                             sizes.seqlen_q - first_query);
    end_group();
    if (SHARE_QK_SMEM) {
        wait_groups<0>();
        __syncthreads();
        warp.keep_q(smem + Q_OFFSET);
        __syncthreads();
    }
    keys.begin(blocks);
    if (Q_IN_REGS && !SHARE_QK_SMEM) {
        wait_groups<num_stages == 1 ? 1 : num_stages - 1>();  // all that `begin` has begun
        __syncthreads();
        warp.keep_q(smem + Q_OFFSET);
    }

    const int first_row = first_query + warp.first_row;
    const int own_keys = first_row + warp.lane / 4 + seen.further + 1;
    int block = blocks - 1, stage = 0;
    for (; block >= clear_blocks; --block, stage = (stage + 1) % num_stages)
        step<true>(warp, keys, block, stage, own_keys, sizes.scale_log2);
    for (; block >= 0; --block, stage = (stage + 1) % num_stages)
        step<false>(warp, keys, block, stage, own_keys, sizes.scale_log2);

    wait_groups<0>();
    __syncthreads();  // nobody reads the memory that the output is gathered in
    lse += Offset(own.batch * sizes.heads + own.head) * sizes.seqlen_q + first_row;
    warp.finish(lse, sizes.seqlen_q - first_row);
    out += at(out_strides, own.batch, own.head, first_row);
    warp.store(out, out_strides.row, sizes.seqlen_q - first_row, smem + O_OFFSET);
}
