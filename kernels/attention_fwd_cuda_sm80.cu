// FlashAttention-2 forward with the tensor cores of sm80 (mma.sync); attention_fwd_cuda_sm80.py says
// what the parameters are for. One block owns BLOCK_M query rows of one head, a warp M_TILES times 16
// of them, and keys pass by in blocks of BLOCK_N, from the last one that any of its rows sees.

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
#ifndef WARPS
#define WARPS 4
#endif
#ifndef BLOCK_M
#define BLOCK_M 64
#endif
#ifndef BLOCK_N
#define BLOCK_N 64
#endif
#ifndef STAGES
#define STAGES 1
#endif
#ifndef Q_IN_REGS
#define Q_IN_REGS 0
#endif
#ifndef SHARE_QK
#define SHARE_QK 0
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif

static_assert(HEAD_DIM % 8 == 0 && HEAD_DIM_V % 8 == 0, "rows are copied 16 bytes at a time");
static_assert(BLOCK_M % (16 * WARPS) == 0 && BLOCK_N % 16 == 0, "a fragment has 16 rows");
static_assert(Q_IN_REGS || !SHARE_QK, "keys may overwrite queries that are in registers");

constexpr int THREADS = 32 * WARPS;

struct Shape {
    static constexpr int M_TILES = BLOCK_M / (16 * WARPS);   // 16 rows each, of a warp
    static constexpr int D_STEPS = (HEAD_DIM + 15) / 16;     // of q k^T; zeros pad the last
    static constexpr int S_TILES = BLOCK_N / 8;              // 8 columns each, of scores
    static constexpr int O_TILES = HEAD_DIM_V / 8;           // and of output
    static constexpr bool IS_BF16 = BF16, KEEP_Q = Q_IN_REGS;
    typedef Tile<BLOCK_M, 16 * D_STEPS> QTile;
    typedef Tile<BLOCK_N, 16 * D_STEPS> KTile;
    typedef Tile<BLOCK_N, HEAD_DIM_V> VTile;
    typedef Tile<BLOCK_M, HEAD_DIM_V> OTile;
};
typedef Shape::QTile QTile;
typedef Shape::KTile KTile;
typedef Shape::VTile VTile;

// Shared memory: queries, STAGES blocks of K, as many of V; at the end the output, over all of it.
constexpr int K_AT = SHARE_QK ? 0 : QTile::BYTES;
constexpr int V_AT = K_AT + STAGES * KTile::BYTES;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
attention_fwd(const Element *q, const Element *k, const Element *v, Element *out, float *lse,
              Strides q_strides, Strides k_strides, Strides v_strides, Strides out_strides,
              Sizes sizes) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Shared smem = shared_address(shared);
    const Owned own = owned_tile<CAUSAL>(sizes);
    const int head_kv = own.head / sizes.group, first_query = own.tile * BLOCK_M;
    q += at(q_strides, own.batch, own.head, first_query);
    k += at(k_strides, own.batch, head_kv, 0);
    v += at(v_strides, own.batch, head_kv, 0);

    // Every row sees the keys before `clear`, none of them one from `end` on.
    const int further = sizes.seqlen_k - sizes.seqlen_q;  // keys of query i: those up to i + further
    int clear = sizes.seqlen_k, end = sizes.seqlen_k;
    if (CAUSAL) {
        const int last_query = min(first_query + BLOCK_M, sizes.seqlen_q) - 1;
        clear = min(max(first_query + further + 1, 0), sizes.seqlen_k);
        end = min(max(last_query + further + 1, 0), sizes.seqlen_k);
    }
    const int blocks = (end + BLOCK_N - 1) / BLOCK_N, clear_blocks = clear / BLOCK_N;

    auto copy_k = [&](int block, int stage, auto tail) {
        const int first = block * BLOCK_N;
        copy_rows<KTile, THREADS, HEAD_DIM, decltype(tail)::value>(
            smem + K_AT + stage * KTile::BYTES, k + Offset(first) * k_strides.row, k_strides.row,
            sizes.seqlen_k - first);
    };
    auto copy_v = [&](int block, int stage, auto tail) {
        const int first = block * BLOCK_N;
        copy_rows<VTile, THREADS, HEAD_DIM_V, decltype(tail)::value>(
            smem + V_AT + stage * VTile::BYTES, v + Offset(first) * v_strides.row, v_strides.row,
            sizes.seqlen_k - first);
    };

    Warp<Shape> warp;
    warp.begin();
    copy_rows<QTile, THREADS, HEAD_DIM, true>(smem, q, q_strides.row, sizes.seqlen_q - first_query);
    end_group();
    if (SHARE_QK) {
        wait_groups<0>();
        __syncthreads();
        warp.keep_q(smem);
        __syncthreads();
    }
    // The last block may have a tail, and is the first to be worked on.
    if (STAGES == 1) {
        if (blocks > 0) copy_k(blocks - 1, 0, True());
        end_group();
    } else {
#pragma unroll
        for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
            if (blocks > ahead) {
                copy_k(blocks - 1 - ahead, ahead, True());
                copy_v(blocks - 1 - ahead, ahead, True());
            }
            end_group();
        }
    }
    if (Q_IN_REGS && !SHARE_QK) {
        wait_groups<STAGES == 1 ? 1 : STAGES - 1>();
        __syncthreads();
        warp.keep_q(smem);
    }

    const int first_row = first_query + warp.first_row;
    int stage = 0;
    auto step = [&](int block, auto masked) {
        float s[Shape::M_TILES][Shape::S_TILES][4];
        if (STAGES == 1) {
            wait_groups<0>();
            __syncthreads();  // K is here, and nobody reads the V before
            copy_v(block, 0, masked);
            end_group();
        } else {
            wait_groups<STAGES - 2>();
            __syncthreads();  // K and V are here, and nobody reads the block before
            if (block >= STAGES - 1) {
                const int free = stage == 0 ? STAGES - 1 : stage - 1;
                copy_k(block - (STAGES - 1), free, False());
                copy_v(block - (STAGES - 1), free, False());
            }
            end_group();
        }
        warp.scores(s, smem, smem + K_AT + stage * KTile::BYTES);
        if (STAGES == 1) {
            wait_groups<0>();
            __syncthreads();  // V is here, and nobody reads K
            if (block > 0) copy_k(block - 1, 0, False());
            end_group();
        }
        if (decltype(masked)::value) {
            const int there = sizes.seqlen_k - block * BLOCK_N;
            const int query = first_row + warp.lane / 4;
            const int seen = CAUSAL ? query + further + 1 - block * BLOCK_N : there;
            warp.mask(s, seen, CAUSAL, there);
        }
        warp.template softmax<decltype(masked)::value>(s, sizes.scale_log2);
        warp.add_values(s, smem + V_AT + stage * VTile::BYTES);
        if (STAGES > 1) stage = stage == STAGES - 1 ? 0 : stage + 1;
    };
    int block = blocks - 1;
    for (; block >= clear_blocks; --block) step(block, True());
    for (; block >= 0; --block) step(block, False());

    wait_groups<0>();
    __syncthreads();  // nobody reads the memory that the output is gathered in
    lse += Offset(own.batch * sizes.heads + own.head) * sizes.seqlen_q + first_row;
    warp.finish(lse, sizes.seqlen_q - first_row, sizes.scale_log2);
    out += at(out_strides, own.batch, own.head, first_row);
    warp.store(out, out_strides.row, sizes.seqlen_q - first_row, smem);
}
