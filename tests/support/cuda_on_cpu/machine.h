// CTAs, clusters and their memory on a CPU. Threads are fibers: one runs until it waits.
//
// What a GPU may do early or late happens here as early or as late as the `Mode` says. What the PTX
// ISA leaves undefined, such as reading outside shared memory, ends the launch with a message. So
// does a deadlock: the message says which threads wait, and for what.
#pragma once

#include <cmath>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "ptx.h"

namespace machine {

enum Mode {
    LATE_LOADS = 1,       // cp.async completes at the wait, a TMA load when no thread can run
    LAST_WARP_FIRST = 2,  // among the warps that can run
    LATE_READS = 4,       // WGMMA and TMA stores read their operands when they are waited for, and
                          // stores and additions without a map write when they are waited for
    LAST_LOAD_FIRST = 8,  // among TMA loads that are late
    LANES_APART = 16,     // a lane does not wait until its warp's other lanes pass an mbarrier, too
    STOPS = 32,           // a cluster stops where it tells others in global memory that it came, until
                          // no other can run; the one that stopped last goes on first
};

constexpr int WARPGROUP = 128, NAMED_BARRIERS = 16;

typedef std::vector<unsigned char> Bytes;

// `size` threads wait for each other.
struct Barrier {
    int size = 0, arrived = 0;
    long generation = 0;
    bool any = false, result[2] = {};  // bar.red: of this generation, and of the last two
};

// PTX ISA, "mbarrier": a phase ends when neither arrivals nor bytes are pending.
struct MBarrier {
    int count, pending;
    long bytes = 0, phase = 0;
};

// What a thread waits for: the end of a generation of a barrier, or of a phase of that parity, or
// for more releases of numbers in global memory than there were.
struct Wait {
    const char *name = nullptr;
    const Barrier *barrier = nullptr;
    long generation = 0;
    const MBarrier *mbarrier = nullptr;
    u32 number = 0;  // of a named barrier; the address of an mbarrier
    u32 parity = 0;
    long releases = -1;
};

// 16 bytes that cp.async copies.
struct Copy {
    u32 to;
    const void *from;
    bool inside;
};

// A TMA store, or a store or an addition of contiguous numbers (without a map), that may not have
// read its shared memory yet.
struct Store {
    const void *map;
    float *sums;
    bool adds;
    u32 from;
    ptx::Coordinates at;
    Bytes seen;  // what threads see there when it is issued
};

// Contiguous numbers that TMA has read and may not have written yet.
struct Numbers {
    float *to;
    bool adds;
    std::vector<float> values;
    void write() const;
};

// A TMA load that is not complete, into each CTA of `ranks`: of a box, or of contiguous `bytes`
// (without a map).
struct Load {
    const void *map;
    const char *from;
    u32 bytes;
    u32 to, barrier;
    ptx::Coordinates at;
    std::vector<int> ranks;
};

// A wgmma as one thread issues it. `a`: registers, or null for `a_rows` in shared memory.
struct Product {
    int columns, bytes;  // N, and how many bytes of a row are multiplied
    char type;           // 'b'f16, 'f'16 or 'e'4m3
    float *d;  // its registers, one after the other
    const u32 *a[4];
    u64 a_rows, b_rows;
    bool add, transposes_b, transposes_a;
};

// `shown`: what its lanes show each other, in two slots that alternate.
struct Warp {
    Barrier barrier = {WARP};
    Shown shown[2][WARP];
};

struct Fiber;
struct Cta;
struct Thread {
    Cta *cta = nullptr;
    int index = 0;
    bool started = false, done = false, waits = false;
    Wait wait;
    Fiber *fiber = nullptr;
    int times_shown = 0;
    std::vector<Copy> copies;
    std::list<std::vector<Copy>> copy_groups;  // an empty deque has memory, too
    std::vector<Store> stores, committed_stores;
    std::vector<Numbers> unwritten;
    std::vector<std::pair<u32, int>> unfenced;  // written; TMA and WGMMA do not see it yet
    bool is_fenced = false;                     // wgmma.fence was executed
    std::vector<Product> products;
    long cluster_generation = -1;  // of which it has arrived at the barrier
    u32 tried = 0;                 // the mbarrier at which its last try_wait failed
    const void *looked = nullptr;  // the number that its last ld.acquire read
    long looked_after = 0;         // so many releases
    int looks = 0;                 // so many times, with nothing released in between
};

// `groups`: committed products, by group, then by thread. `finished`: a group whose memory the next
// one may use.
struct Warpgroup {
    Barrier barrier;
    std::vector<std::vector<Product>> committing, finished;
    std::deque<std::vector<std::vector<Product>>> groups;
};

struct Cluster;
struct Cta {
    Cluster *cluster = nullptr;
    int number = 0, rank = 0;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<Warpgroup> warpgroups;
    Barrier named[NAMED_BARRIERS];
    std::map<u32, MBarrier> mbarriers;
    // Shared memory as threads see it, and as TMA and WGMMA do (PTX ISA, "async proxy").
    Bytes generic, async;
    bool done() const;
};

struct Cluster {
    std::deque<Cta> ctas;
    Barrier barrier;
    std::vector<Load> loads;
    long stopped = 0;  // it was the one of that number that stopped; 0: it runs
};

extern int mode;
// Tensors that cp.async may read: where each begins and ends.
extern std::vector<std::pair<const char *, const char *>> readable;

// The thread that runs.
extern Thread *running;
inline Thread &this_thread() { return *running; }
// Its warpgroup.
Warpgroup &this_warpgroup();

void wait(const Wait &what);
// Arrives. Waits for the others and returns false, except in the last thread.
bool is_last(Barrier &barrier, const char *name);
void release(Barrier &barrier);
// Arrives, and waits for the others. The last thread does `work` before any goes on.
template <class WORK> void meet(Barrier &barrier, const char *name, WORK work) {
    if (!is_last(barrier, name)) return;
    work();
    release(barrier);
}

// `bytes` of shared memory at an address, aligned to so many.
unsigned char *at(Bytes &memory, u32 address, int bytes, int alignment);

MBarrier &mbarrier(Cta &cta, u32 address);
// Ends the phase where nothing of it is pending.
void advance(MBarrier &barrier);

// What asynchronous instructions do when they complete; in copies.cc and products.cc.
void complete(const Copy &copy);
void complete(Cluster &cluster, const Load &load);
void complete(Cta &cta, const Store &store);
void multiply(Cta &cta, int warpgroup);

}  // namespace machine
