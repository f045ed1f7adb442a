// The shared memory of the key pass of the two-pass attention backward, and its mbarriers.
//
// Included by attention_bwd_two_pass_cuda_sm90.cu, whose parameters and sizes it uses.
#pragma once

// Shared memory begins at a multiple of 1,024. The search space lays it out; offset, bytes of a
// slot and number of slots of each region are macros.
constexpr int BLOCK_CHUNK = BLOCK_M * ROW_BYTES;  // of Q or dO
constexpr int COPIED_ROWS = BLOCK_M / CLUSTER_SIZE;  // of a block, by each CTA of a cluster
static_assert(BLOCK_M % 16 == 0, "WGMMA sums over 16 rows at a time");
// Of K and of V, the columns that are in registers.
constexpr int K_IN_REGISTERS = WIDTH * KV_IN_REGISTERS / 32 * 16;
constexpr int V_IN_REGISTERS = WIDTH_V * KV_IN_REGISTERS / 32 * 16;
static_assert(KV_IN_REGISTERS >= 0 && KV_IN_REGISTERS <= 2, "none, half or all");
static_assert(K_BYTES == CHUNKS * OWN_CHUNK && V_BYTES == K_BYTES && OUT_BYTES == K_BYTES,
              "dK leaves through V's memory, or both through that of sums");
static_assert(!PERSISTENT || KV_IN_REGISTERS == 2, "K and V of the next tile come early");
static_assert(Q_BYTES == CHUNKS * BLOCK_CHUNK && DO_BYTES == CHUNKS_V * BLOCK_CHUNK,
              "Q and dO have a block of rows");
static_assert(HANDED_BYTES == 64 * BLOCK_M * (P_FP16 ? 2 : 4), "P^T has 64 keys of a block");
static_assert(ROWS_BYTES == 4 * BLOCK_M && ROWS_OFFSET % 16 == 0, "a slot has a number a row");
static_assert(K_SLOTS == 1 && V_SLOTS == 1 && Q_SLOTS == Q_STAGES && DO_SLOTS == DO_STAGES &&
                  HANDED_SLOTS == P_STAGES && ROWS_SLOTS == Q_STAGES + DO_STAGES &&
                  OUT_SLOTS == PERSISTENT,
              "each stage has a slot");
static_assert((K_OFFSET | K_BYTES | V_OFFSET | V_BYTES | Q_OFFSET | Q_BYTES | DO_OFFSET | DO_BYTES |
               HANDED_OFFSET | HANDED_BYTES | OUT_OFFSET | OUT_BYTES) %
                      1024 ==
                  0,
              "a swizzle begins anew with every 8 rows");
static_assert(CLUSTER_SIZE == 1 || CLUSTER_SIZE == 2, "a cluster has one or two CTAs");

// The mbarriers. Use i of a buffer with n stages is of stage i % n, in phase i / n.
//
//     barrier      arrivals of a phase                                    who waits
//     K, V full    the producer, and the bytes                            warpgroup 0; 1
//     Q full       the producer, and the bytes of a block with its lse    consumers
//     dO full      the producer, and the bytes of a block with its delta  consumers
//     Q, dO empty  4 warps of each warpgroup of all CTAs of the cluster   the producers
//     P full       4 warps of warpgroup 0 that have stored it             warpgroup 1
//     P empty      4 warps of warpgroup 1 that have loaded it             warpgroup 0
//
// With PERSISTENT there are also:
//
//     K, V empty   4 warps of warpgroup 0; 1 that have them in registers  the producer
//     dV, dK read  a thread of warpgroup 0; 1, when TMA has read it       warpgroup 1; 0
struct Barriers {
    u32 base;
    static constexpr int OF_TILE = 6, COUNT = OF_TILE + 2 * (Q_STAGES + DO_STAGES + P_STAGES);

    // Of K and V, or of dV and dK: of what a warpgroup loads and stores.
    DEVICE u32 own_full(int warpgroup) const { return base + 8 * warpgroup; }
    DEVICE u32 own_empty(int warpgroup) const { return base + 8 * (2 + warpgroup); }
    DEVICE u32 sum_read(int warpgroup) const { return base + 8 * (4 + warpgroup); }
    DEVICE u32 q_full(int stage) const { return base + 8 * (OF_TILE + stage); }
    DEVICE u32 q_empty(int stage) const { return q_full(Q_STAGES + stage); }
    DEVICE u32 do_full(int stage) const { return q_full(2 * Q_STAGES + stage); }
    DEVICE u32 do_empty(int stage) const { return do_full(DO_STAGES + stage); }
    DEVICE u32 p_full(int stage) const { return do_full(2 * DO_STAGES + stage); }
    DEVICE u32 p_empty(int stage) const { return p_full(P_STAGES + stage); }

    DEVICE void init() const {
        for (int warpgroup = 0; warpgroup < WARPGROUPS; warpgroup++) {
            mbarrier_init(own_full(warpgroup), 1);
            mbarrier_init(own_empty(warpgroup), 4);
            mbarrier_init(sum_read(warpgroup), 1);
        }
        for (int stage = 0; stage < Q_STAGES; stage++) {
            mbarrier_init(q_full(stage), 1);
            mbarrier_init(q_empty(stage), 4 * WARPGROUPS * CLUSTER_SIZE);
        }
        for (int stage = 0; stage < DO_STAGES; stage++) {
            mbarrier_init(do_full(stage), 1);
            mbarrier_init(do_empty(stage), 4 * WARPGROUPS * CLUSTER_SIZE);
        }
        for (int stage = 0; stage < P_STAGES; stage++) {
            mbarrier_init(p_full(stage), 4);
            mbarrier_init(p_empty(stage), 4);
        }
    }
};
static_assert(BARRIERS_OFFSET % 8 == 0 && BARRIERS_BYTES == 8 && BARRIERS_SLOTS == Barriers::COUNT,
              "each barrier has a slot");

DEVICE int cluster_rank() { return blockIdx.x % CLUSTER_SIZE; }
// The first key of this CTA.
DEVICE int own_key(const KeyTile& tile) { return tile.key + 64 * cluster_rank(); }
