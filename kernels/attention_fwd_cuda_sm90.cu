// FlashAttention forward for Hopper: warp-specialised, persistent, TMA and WGMMA of any width.
//
//     out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))
//
// Algorithm: Shah et al., "FlashAttention-3", arXiv:2407.08608. One program runs on each SM and works
// through tiles of 64 * WARPGROUPS query rows of one head, which a table from the host gives it. The
// last warpgroup copies: Q once, K and V in blocks of BLOCK_N keys, from the last visible block to the
// first. Each of the others owns 64 rows. It issues the scores of a block together with the output of
// the block before (OVERLAP), and computes the softmax of the one while the other is multiplied.
//
// What the tensor cores take is not rounded to powers of two: BLOCK_N is any multiple of 16, and a
// head dimension costs as many columns as it has, rounded up to 16.
//
// Rows in shared memory are cut into chunks of SWIZZLE bytes, one behind the other, in the layout that
// WGMMA reads without bank conflicts; TMA fills columns beyond the head dimension with zeros.

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
#ifndef STAGES
#define STAGES 2
#endif
#ifndef Q_STAGES
#define Q_STAGES 1
#endif
#ifndef O_PARTS
#define O_PARTS 0
#endif
#ifndef OVERLAP
#define OVERLAP 1
#endif
#ifndef PING_PONG
#define PING_PONG 0
#endif
#ifndef SLACK
#define SLACK 8
#endif
#ifndef HALF_DIAGONAL
#define HALF_DIAGONAL 0
#endif
#ifndef SWIZZLE
#define SWIZZLE 128
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

#include "cuda/hopper.cuh"
#include "cuda/wgmma.cuh"

// ---------------------------------------------------------------------------- what follows from them

constexpr int padded(int n) { return (n + 15) / 16 * 16; }
constexpr int chunks(int columns) { return (2 * columns + SWIZZLE - 1) / SWIZZLE; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

constexpr int K_COLUMNS = padded(HEAD_DIM), V_COLUMNS = padded(HEAD_DIM_V);
constexpr int K_CHUNKS = chunks(K_COLUMNS), V_CHUNKS = chunks(V_COLUMNS);
constexpr int CHUNK = SWIZZLE / 2;  // columns
constexpr int Q_CHUNK_BYTES = 64 * SWIZZLE, KV_CHUNK_BYTES = BLOCK_N * SWIZZLE;
// The output leaves through the buffer of the queries, or through one of its own in O_PARTS trips.
constexpr int Q_BYTES = (O_PARTS ? K_CHUNKS : larger(K_CHUNKS, V_CHUNKS)) * Q_CHUNK_BYTES;
constexpr int O_CHUNKS = O_PARTS ? V_CHUNKS / O_PARTS : V_CHUNKS;  // of a trip
constexpr int O_BYTES = O_PARTS ? O_CHUNKS * Q_CHUNK_BYTES : 0;
constexpr int K_BYTES = K_CHUNKS * KV_CHUNK_BYTES, V_BYTES = V_CHUNKS * KV_CHUNK_BYTES;
constexpr int ROWS = 64 * WARPGROUPS;
constexpr int THREADS = 128 * (WARPGROUPS + 1);
// Of the 65,536 registers of an SM; the launch gives each thread as many.
constexpr int CONSUMER_REGISTERS = WARPGROUPS == 3 ? 160 : 240;
constexpr int PRODUCER_REGISTERS = WARPGROUPS == 3 ? 32 : 24;
constexpr float LN_2 = 0.6931471805599453f;
#define INFINITE __int_as_float(0x7f800000)

// Shared memory, in bytes from a multiple of 1,024, at which swizzles begin.
constexpr int Q_AT = 0, K_AT = Q_AT + Q_STAGES * WARPGROUPS * Q_BYTES, V_AT = K_AT + STAGES * K_BYTES;
constexpr int O_AT = V_AT + STAGES * V_BYTES, BARRIERS_AT = O_AT + WARPGROUPS * O_BYTES;

struct Sizes {
    int heads, seqlen_q, seqlen_k;
    float scale_log2;  // of q @ k^T, times log2(e)
};

// A tile as the table has it.
struct Tile {
    int batch, head, head_kv, row;
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
        barrier_wait(freed(use % SLOTS), ((use / SLOTS) & 1) ^ 1);
    }
};
typedef Ring<0, STAGES> KRing;
typedef Ring<2 * STAGES, STAGES> VRing;
typedef Ring<4 * STAGES, Q_STAGES * WARPGROUPS> QRing;

__device__ __forceinline__ Tile tile_at(const int* tiles, int i) {
    int4 entry = ((const int4*)tiles)[i];
    return {entry.x, entry.y, entry.z, entry.w};
}

// Key blocks [0, end) are seen by some of the query rows [row, row + rows): at least one.
__device__ __forceinline__ int blocks_end(const Sizes& sizes, int row, int rows) {
    int seen = sizes.seqlen_k;
    if (CAUSAL) seen = min(row + rows, sizes.seqlen_q) + sizes.seqlen_k - sizes.seqlen_q;
    return max((seen + BLOCK_N - 1) / BLOCK_N, 1);
}

// ------------------------------------------------------------------------------------- the producer

__device__ __forceinline__ void load_chunks(const TensorMap* map, u32 to, int chunk_bytes, int chunks,
                                            u32 barrier, int row, int head, int batch) {
#pragma unroll
    for (int i = 0; i < chunks; i++)
        tma_load(to + i * chunk_bytes, map, barrier, i * CHUNK, row, head, batch);
}

// One thread: Q of each tile, then K and V of its blocks in the order of their use.
__device__ __forceinline__ void produce(const TensorMap* q_map, const TensorMap* k_map,
                                        const TensorMap* v_map, const Sizes& sizes, const int* schedule,
                                        const int* tiles, u32 shared) {
    KRing k{shared + BARRIERS_AT};
    VRing v{shared + BARRIERS_AT};
    QRing q{shared + BARRIERS_AT};
    int first = schedule[blockIdx.x], count = schedule[blockIdx.x + 1] - first;
    Tile tile = tile_at(tiles, first);
    int loaded = 0;  // blocks of V; K is one ahead within a tile
    auto load_k = [&](const Tile& of, int use, int block) {
        k.wait_freed(use);
        barrier_expect(k.filled(use % STAGES), K_BYTES);
        load_chunks(k_map, shared + K_AT + use % STAGES * K_BYTES, KV_CHUNK_BYTES, K_CHUNKS,
                    k.filled(use % STAGES), block * BLOCK_N, of.head_kv, of.batch);
    };
    auto load_v = [&](const Tile& of, int use, int block) {
        v.wait_freed(use);
        barrier_expect(v.filled(use % STAGES), V_BYTES);
        load_chunks(v_map, shared + V_AT + use % STAGES * V_BYTES, KV_CHUNK_BYTES, V_CHUNKS,
                    v.filled(use % STAGES), block * BLOCK_N, of.head_kv, of.batch);
    };
    for (int turn = 0; turn < count; turn++) {
        Tile here = tile;
        tile = tile_at(tiles, first + turn + 1);  // long before it is needed
        int end = blocks_end(sizes, here.row, ROWS);
        for (int me = 0; me < WARPGROUPS; me++) {
            int slot = turn % Q_STAGES * WARPGROUPS + me;
            barrier_wait(q.freed(slot), ((turn / Q_STAGES) & 1) ^ 1);
            barrier_expect(q.filled(slot), K_CHUNKS * Q_CHUNK_BYTES);
            load_chunks(q_map, shared + Q_AT + slot * Q_BYTES, Q_CHUNK_BYTES, K_CHUNKS, q.filled(slot),
                        here.row + 64 * me, here.head, here.batch);
            if (me == 0) load_k(here, loaded, end - 1);  // the first scores need no more than this
        }
        for (int block = end - 2; block >= 0; block--, loaded++) {
            load_k(here, loaded + 1, block);
            load_v(here, loaded, block + 1);
        }
        load_v(here, loaded++, 0);
    }
}

// ------------------------------------------------------------------------------------ the consumers

// What a warpgroup knows of its 64 rows.
struct Rows {
    float out[V_COLUMNS / 2];
    u32 p[BLOCK_N / 4];  // probabilities of the block before, in the dtype
    float max_log2[2], sum[2], decay[2];
};

struct Consumer {
    const Sizes& sizes;
    KRing k;
    VRing v;
    QRing q;
    u32 shared;
    int me, lane, warp;

    // This lane's first row and column of a block, beside `row` and `key`.
    __device__ __forceinline__ int lane_row() const { return 16 * warp + lane / 4; }
    __device__ __forceinline__ int lane_column() const { return 2 * (lane % 4); }

    // Ping-pong: warpgroups issue their products one after the other, so that one's softmax runs
    // under another's products (FlashAttention-3, section 3.1). Barriers 1 to WARPGROUPS.
    __device__ __forceinline__ void wait_turn() const {
        if (PING_PONG) threads_sync(1 + me, 256);
    }
    __device__ __forceinline__ void give_turn() const {
        if (PING_PONG) threads_arrive(1 + (me + 1 == WARPGROUPS ? 0 : me + 1), 256);
    }
    __device__ __forceinline__ void free(u32 barrier) const {
        if (lane == 0) barrier_arrive(barrier);
    }

    // Starts s = q @ k^T of a block's first N keys.
    template <int N>
    __device__ __forceinline__ void start_scores(float (&s)[N / 2], int slot, int use) const {
        u64 a = matrix_descriptor<SWIZZLE>(shared + Q_AT + slot * Q_BYTES, 16, 8 * SWIZZLE);
        u64 b = matrix_descriptor<SWIZZLE>(shared + K_AT + use % STAGES * K_BYTES, 16, 8 * SWIZZLE);
        wgmma_begin();
#pragma unroll
        for (int column = 0; column < K_COLUMNS; column += 16) {
            int chunk = column / CHUNK, bytes = column % CHUNK * 2;
            Wgmma<N>::ss(s, a + ((chunk * Q_CHUNK_BYTES + bytes) >> 4),
                               b + ((chunk * KV_CHUNK_BYTES + bytes) >> 4), column > 0);
        }
        wgmma_commit();
    }

    // Starts out += p @ v.
    __device__ __forceinline__ void start_output(Rows& rows, int use) const {
        // Columns of V lie side by side, chunk behind chunk; groups of 8 keys follow each other.
        u64 b = matrix_descriptor<SWIZZLE>(shared + V_AT + use % STAGES * V_BYTES, KV_CHUNK_BYTES,
                                           8 * SWIZZLE);
        wgmma_begin();
#pragma unroll
        for (int key = 0; key < BLOCK_N; key += 16)
            Wgmma<V_COLUMNS>::rs(rows.out, rows.p + key / 4, b + ((key * SWIZZLE) >> 4));
        wgmma_commit();
    }

    // -inf where a row does not see a key.
    template <int N>
    __device__ __forceinline__ void mask(float (&s)[N / 2], int row, int key) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int last = sizes.seqlen_k - 1;
            if (CAUSAL)
                last = min(last, row + lane_row() + 8 * half + sizes.seqlen_k - sizes.seqlen_q);
            last -= key + lane_column();
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                float* pair = s + 4 * i + 2 * half;
                if (8 * i > last) pair[0] = -INFINITE;
                if (8 * i + 1 > last) pair[1] = -INFINITE;
            }
        }
    }

    // Scores become probabilities: FlashAttention-2, arXiv:2307.08691, algorithm 1, lines 8 and 9.
    // Sums stay spread over a row's four lanes. With SLACK a maximum stays until scores exceed it by
    // so many powers of two: then decay is nearly always 1, and the output need not be rescaled.
    // EMPTY: some rows may have seen no key yet.
    template <bool EMPTY, int N>
    __device__ __forceinline__ void softmax(float (&s)[N / 2], Rows& rows) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = -INFINITE;
#pragma unroll
            for (int i = 0; i < N / 8; i++)
                most = fmaxf(most, fmaxf(s[4 * i + 2 * half], s[4 * i + 2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * sizes.scale_log2;
            float before = rows.max_log2[half];
            float now = SLACK ? (most > before + SLACK ? most : before) : fmaxf(most, before);
            float shift = EMPTY && now == -INFINITE ? 0.0f : now;  // -inf - -inf would be NaN
            rows.decay[half] = exp2_approx(before - shift);
            rows.max_log2[half] = now;
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                float* pair = s + 4 * i + 2 * half;
                pair[0] = exp2_approx(fmaf(pair[0], sizes.scale_log2, -shift));
                pair[1] = exp2_approx(fmaf(pair[1], sizes.scale_log2, -shift));
                sum += pair[0] + pair[1];
            }
            rows.sum[half] = fmaf(rows.sum[half], rows.decay[half], sum);
        }
    }

    template <int N>
    __device__ __forceinline__ void keep(const float (&s)[N / 2], Rows& rows) const {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 4; i++)
            rows.p[i] = i < N / 4 ? packed(s[2 * i % (N / 2)], s[2 * i % (N / 2) + 1]) : 0;
    }

    // out times what its rows' maxima have grown by; a warp in which none has does nothing.
    __device__ __forceinline__ void rescale(Rows& rows) const {
        if (SLACK && !__any_sync(~0u, rows.decay[0] != 1.0f || rows.decay[1] != 1.0f)) return;
#pragma unroll
        for (int i = 0; i < V_COLUMNS / 2; i++) rows.out[i] *= rows.decay[i / 2 % 2];
    }

    // A tile's first block, or the first N keys of it: nothing to multiply with V yet.
    template <int N>
    __device__ __forceinline__ void first_block(Rows& rows, int slot, int use, int row, int block) const {
        float s[N / 2];
        k.wait_filled(use);
        wait_turn();
        start_scores<N>(s, slot, use);
        give_turn();
        wgmma_wait<0>();
        pin(s);
        free(k.freed(use % STAGES));
        if (CAUSAL || RAGGED) mask<N>(s, row, block * BLOCK_N);
        softmax<CAUSAL, N>(s, rows);
        keep<N>(s, rows);
    }

    // Scores and softmax of a block, and p @ v of the one before.
    template <bool MASKED>
    __device__ __forceinline__ void step(Rows& rows, int slot, int use, int row, int block) const {
        float s[BLOCK_N / 2];
        k.wait_filled(use);
        wait_turn();
        start_scores<BLOCK_N>(s, slot, use);
        rescale(rows);
        v.wait_filled(use - 1);
        start_output(rows, use - 1);
        give_turn();
        wgmma_wait<1>();
        pin(s);
        free(k.freed(use % STAGES));
        if (MASKED) mask<BLOCK_N>(s, row, block * BLOCK_N);
        softmax<MASKED && CAUSAL, BLOCK_N>(s, rows);
        wgmma_wait<0>();
        pin(rows.out);
        pin(rows.p);
        free(v.freed((use - 1) % STAGES));
        keep<BLOCK_N>(s, rows);
    }

    // The same, one product after the other: fewer registers, and other warpgroups fill the gaps.
    template <bool MASKED>
    __device__ __forceinline__ void step_in_turn(Rows& rows, int slot, int use, int row,
                                                 int block) const {
        float s[BLOCK_N / 2];
        k.wait_filled(use);
        start_scores<BLOCK_N>(s, slot, use);
        wgmma_wait<0>();
        pin(s);
        free(k.freed(use % STAGES));
        if (MASKED) mask<BLOCK_N>(s, row, block * BLOCK_N);
        softmax<MASKED && CAUSAL, BLOCK_N>(s, rows);
        keep<BLOCK_N>(s, rows);
        rescale(rows);
        v.wait_filled(use);
        start_output(rows, use);
        wgmma_wait<0>();
        pin(rows.out);
        pin(rows.p);
        free(v.freed(use % STAGES));
    }

    // Hands back a block that other warpgroups of the tile need, and this one does not.
    __device__ __forceinline__ void skip(int use) const {
        wait_turn();
        give_turn();
        k.wait_filled(use);
        free(k.freed(use % STAGES));
        v.wait_filled(use);
        free(v.freed(use % STAGES));
    }

    // 64 rows past the key blocks below `end`, from the last to the first; the next use of a slot.
    // `before_output` is called when there is time, `after_scores` when the queries have been read.
    template <class Before, class After>
    __device__ __forceinline__ int attend(Rows& rows, int slot, int use, int row, int end,
                                          Before before_output, After after_scores) const {
        int clear = sizes.seqlen_k;  // blocks of which each row sees each key
        if (CAUSAL) clear = min(clear, max(row + sizes.seqlen_k - sizes.seqlen_q + 1, 0));
        clear = CAUSAL || RAGGED ? clear / BLOCK_N : end;
        int block = end - 1;
        if (OVERLAP) {
            int seen = row + 64 + sizes.seqlen_k - sizes.seqlen_q - block * BLOCK_N;  // of this block
            if (CAUSAL && HALF_DIAGONAL && seen <= BLOCK_N / 2)
                first_block<HALF_DIAGONAL ? BLOCK_N / 2 : BLOCK_N>(rows, slot, use, row, block);
            else
                first_block<BLOCK_N>(rows, slot, use, row, block);
            use++, block--;
            before_output();
            if (CAUSAL)
                for (; block >= clear; block--, use++) step<true>(rows, slot, use, row, block);
            for (; block >= 0; block--, use++) step<false>(rows, slot, use, row, block);
            after_scores();
            rescale(rows);
            v.wait_filled(use - 1);
            start_output(rows, use - 1);
            wgmma_wait<0>();
            pin(rows.out);
            free(v.freed((use - 1) % STAGES));
        } else {
            if (CAUSAL || RAGGED)
                for (; block >= clear; block--, use++) step_in_turn<true>(rows, slot, use, row, block);
            for (; block >= 0; block--, use++) step_in_turn<false>(rows, slot, use, row, block);
            before_output();
            after_scores();
        }
        return use;
    }

    // Divides by the sums and writes lse: what the output is still to be multiplied with.
    __device__ __forceinline__ void finish(Rows& rows, float* lse, int row) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = rows.sum[half];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            rows.decay[half] = sum > 0.0f ? 1.0f / sum : 0.0f;
            int mine = row + lane_row() + 8 * half;
            if (lane % 4 == 0 && mine < sizes.seqlen_q)
                lse[mine] = sum > 0.0f ? (rows.max_log2[half] + log2_approx(sum)) * LN_2 : -INFINITE;
        }
    }

    // Puts chunks [FIRST, FIRST + COUNT) of the output into shared memory, where TMA finds them.
    template <int FIRST, int COUNT>
    __device__ __forceinline__ void put(const Rows& rows, u32 to) const {
        threads_sync(1 + WARPGROUPS + me, 128);  // every warp has read what is there
        const float *share = rows.decay;
        int at = 16 * warp + lane % 16;
        constexpr int SHIFT = SWIZZLE == 128 ? 0 : SWIZZLE == 64 ? 1 : 2, UNITS = SWIZZLE / 16;
        constexpr int END = (FIRST + COUNT) * CHUNK < V_COLUMNS ? (FIRST + COUNT) * CHUNK : V_COLUMNS;
#pragma unroll
        for (int column = FIRST * CHUNK; column < END; column += 16) {
            const float* x = rows.out + column / 2;
            int unit = column % CHUNK / 8 + lane / 16;  // of 16 bytes, in a row of SWIZZLE
            u32 address = to + (column / CHUNK - FIRST) * Q_CHUNK_BYTES + at * SWIZZLE +
                          ((unit ^ ((at >> SHIFT) % UNITS)) << 4);
            matrices_store(address, packed(x[0] * share[0], x[1] * share[0]),
                           packed(x[2] * share[1], x[3] * share[1]),
                           packed(x[4] * share[0], x[5] * share[0]),
                           packed(x[6] * share[1], x[7] * share[1]));
        }
        fence_async_proxy();
        threads_sync(1 + WARPGROUPS + me, 128);
    }
};

__device__ __forceinline__ void consume(const TensorMap* o_map, float* lse, const Sizes& sizes,
                                        const int* schedule, const int* tiles, u32 shared, int me) {
    u32 barriers = shared + BARRIERS_AT;
    int thread = threadIdx.x % 128;
    Consumer c{sizes, {barriers}, {barriers}, {barriers}, shared, me, thread % 32, thread / 32};
    int first = schedule[blockIdx.x], count = schedule[blockIdx.x + 1] - first;
    Tile tile = tile_at(tiles, first);
    int use = 0;  // counts blocks that went through the rings, over all tiles
    if (me == WARPGROUPS - 1) c.give_turn();  // the first turn is warpgroup 0's
    for (int turn = 0; turn < count; turn++) {
        Tile here = tile;
        tile = tile_at(tiles, first + turn + 1);
        int row = here.row + 64 * me, slot = turn % Q_STAGES * WARPGROUPS + me;
        int end = blocks_end(sizes, row, 64);
        if (CAUSAL)
            for (int left = blocks_end(sizes, here.row, ROWS) - end; left > 0; left--) c.skip(use++);
        Rows rows;
#pragma unroll
        for (int i = 0; i < V_COLUMNS / 2; i++) rows.out[i] = 0.0f;
        for (int half = 0; half < 2; half++) {
            rows.max_log2[half] = -INFINITE;
            rows.sum[half] = 0.0f;
        }
        // With two slots the output of the tile before leaves while this one's first block is
        // worked on; with a buffer of its own it never keeps queries waiting.
        auto free_before = [&] {
            if (O_PARTS == 0 && Q_STAGES > 1 && turn > 0 && thread == 0) {
                tma_store_wait();
                barrier_arrive(c.q.freed((turn - 1) % Q_STAGES * WARPGROUPS + me));
            }
        };
        auto free_queries = [&] {
            if (O_PARTS > 0) c.free(c.q.freed(slot));
        };
        barrier_wait(c.q.filled(slot), (turn / Q_STAGES) & 1);
        use = c.attend(rows, slot, use, row, end, free_before, free_queries);
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
        u32 to = O_PARTS ? shared + O_AT + me * O_BYTES : shared + Q_AT + slot * Q_BYTES;
        if (O_PARTS > 0 && thread == 0) tma_store_wait();  // what left last has been read
        c.put<0, O_CHUNKS>(rows, to);
        send(to, 0);
        if (O_PARTS == 2) {
            if (thread == 0) tma_store_wait();
            c.put<V_CHUNKS - O_CHUNKS, O_CHUNKS>(rows, to);
            send(to, O_CHUNKS);
        }
        if (O_PARTS == 0 && Q_STAGES == 1 && thread == 0) {
            tma_store_wait();
            barrier_arrive(c.q.freed(slot));
        }
    }
    if (thread == 0) tma_store_wait();  // shared memory is gone with the program
}

// --------------------------------------------------------------------------------------- the kernel

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_fwd(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                  const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap o_map,
                  float* lse, const int* schedule, const int* tiles, int heads, int seqlen_q,
                  int seqlen_k, float scale_log2) {
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 shared = shared_address(memory);
    Sizes sizes{heads, seqlen_q, seqlen_k, scale_log2};
    // The same in all lanes, which the compiler cannot know of threadIdx.
    int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        u32 barriers = shared + BARRIERS_AT;
        KRing{barriers}.init(4 * WARPGROUPS);
        VRing{barriers}.init(4 * WARPGROUPS);
        QRing{barriers}.init(O_PARTS ? 4 : 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (warpgroup == WARPGROUPS) {
        give_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == WARPGROUPS * 128)
            produce(&q_map, &k_map, &v_map, sizes, schedule, tiles, shared);
    } else {
        if (WARPGROUPS > 1) take_registers<CONSUMER_REGISTERS>();
        consume(&o_map, lse, sizes, schedule, tiles, shared, warpgroup);
    }
}
