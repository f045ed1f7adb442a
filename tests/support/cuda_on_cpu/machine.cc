// The scheduler of the fibers, barriers, and shared memory.
#include "machine.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

Place threadIdx, blockIdx;

namespace machine {

int mode;
std::vector<std::pair<const char *, const char *>> readable;

static constexpr int STACK_BYTES = 256 * 1024;
static std::vector<std::unique_ptr<char[]>> stacks;  // of all launches: memory comes when touched
static ucontext_t scheduler;
static Thread *running;
static void (*kernel_of_launch)();
static std::string failure;
static long ended;  // generations and phases, of all barriers

Thread &me() { return *running; }
Warpgroup &my_warpgroup() { return me().block->warpgroups[me().index / WARPGROUP]; }

void fail(const char *format, ...) {
    char text[400];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    failure = text;
    if (!running) throw std::runtime_error(failure);  // the scheduler itself
    failure += ": thread " + std::to_string(me().index) + " of block " +
               std::to_string(me().block->number);
    swapcontext(&me().context, &scheduler);
    std::abort();  // nobody resumes it
}

// ------------------------------------------------------------------------------------ barriers

void wait(const Wait &what) {
    me().wait = what;
    me().waits = true;
    swapcontext(&me().context, &scheduler);
}

void meet(Barrier &barrier, const char *name, const std::function<void()> &work) {
    if (++barrier.arrived < barrier.size) {
        wait({name, &barrier, barrier.generation});
        return;
    }
    if (work) work();
    let_go(barrier);
}

void let_go(Barrier &barrier) {
    barrier.arrived = 0;
    ++barrier.generation;
    ++ended;
}

// Two slots take turns: a lane that shows something for the third time knows that all others have
// arrived for the second, so have read the first.
void show(const Shown &own) {
    Thread &thread = me();
    thread.shown[++thread.times_shown % 2] = own;
    meet(thread.block->warps[thread.index / WARP], "the other lanes of its warp");
}
const Shown &shown_by(int lane) {
    const Thread &other = me().block->threads[me().index / WARP * WARP + lane];
    return other.shown[me().times_shown % 2];
}

MBarrier &mbarrier(Block &block, u32 address) {
    const auto found = block.mbarriers.find(address);
    if (found == block.mbarriers.end()) fail("no mbarrier was initialised at %u", address);
    return found->second;
}

void advance(MBarrier &barrier) {
    if (barrier.pending || barrier.bytes) return;
    barrier.pending = barrier.count;
    ++barrier.phase;
    ++ended;
}

// -------------------------------------------------------------------------------- shared memory

unsigned char *at(Bytes &memory, u32 address, int bytes, int alignment) {
    if (address % alignment) fail("shared memory: %u is no multiple of %d", address, alignment);
    if (address < SHARED_BASE || address - SHARED_BASE + bytes > memory.size())
        fail("shared memory: %d bytes at %u are outside of its %zu", bytes, address, memory.size());
    return memory.data() + (address - SHARED_BASE);
}

void write(u32 address, const void *from, int bytes) {
    Block &block = *me().block;
    const auto next = block.mbarriers.lower_bound(address & ~7u);
    if (next != block.mbarriers.end() && next->first < address + bytes)
        fail("the mbarrier at %u is overwritten", next->first);
    std::memcpy(at(block.generic, address, bytes, bytes), from, bytes);
    me().unfenced.push_back({address, bytes});
}

void read(void *to, u32 address, int bytes) {
    std::memcpy(to, at(me().block->generic, address, bytes, bytes), bytes);
}

// ----------------------------------------------------------------------------------- scheduling

static bool is_ready(const Thread &thread) {
    if (thread.done) return false;
    if (!thread.waits) return true;
    const Wait &wait = thread.wait;
    if (wait.barrier) return wait.barrier->generation != wait.generation;
    return (wait.mbarrier->phase & 1) != wait.parity;
}

bool Block::done() const {
    for (const Thread &thread : threads)
        if (!thread.done) return false;
    return true;
}

static void finish() {
    Thread &thread = me();
    if (!thread.stores.empty() || !thread.committed_stores.empty())
        fail("it ends, and its TMA stores may not have read shared memory");
    if (!thread.products.empty()) fail("it ends with products that it did not commit");
    for (auto &group : thread.copy_groups)
        if (!group.empty()) fail("it ends with copies under way");
    thread.done = true;
    Block &block = *thread.block;
    if (!block.done()) return;
    for (const Load &load : block.cluster->loads)
        for (int rank : load.ranks)
            if (rank == block.rank) fail("it is its block's last, and TMA still writes there");
    for (const Warpgroup &warpgroup : block.warpgroups)
        if (!warpgroup.groups.empty()) fail("it is its block's last, and products are unfinished");
}

static void begin() {
    kernel_of_launch();
    finish();
    swapcontext(&me().context, &scheduler);
}

// Runs a thread until it waits.
static void resume(Thread &thread) {
    threadIdx = {unsigned(thread.index), 0, 0};
    blockIdx = {unsigned(thread.block->number), 0, 0};
    thread.waits = false;
    running = &thread;
    swapcontext(&scheduler, &thread.context);
    running = nullptr;
    if (!failure.empty()) throw std::runtime_error(failure);
}

static std::string described(const Thread &thread) {
    const Wait &wait = thread.wait;
    char text[160];
    if (wait.mbarrier)
        std::snprintf(text, sizeof text,
                      "the end of a phase of parity %u of the mbarrier at %u, whose phase %ld lacks "
                      "%d arrivals and %ld bytes",
                      wait.parity, wait.number, wait.mbarrier->phase, wait.mbarrier->pending,
                      wait.mbarrier->bytes);
    else
        std::snprintf(text, sizeof text, "%s %u, at which are %d of %d", wait.name, wait.number,
                      wait.barrier->arrived, wait.barrier->size);
    return text;
}

// Who waits for what, threads that wait for the same in one line.
static std::string deadlock(const Cluster &cluster) {
    std::string text = "deadlock";
    for (const Block &block : cluster.blocks)
        for (size_t first = 0, end; first < block.threads.size(); first = end) {
            end = first + 1;
            if (block.threads[first].done) continue;
            const std::string what = described(block.threads[first]);
            while (end < block.threads.size() && !block.threads[end].done &&
                   described(block.threads[end]) == what)
                ++end;
            text += "\n  threads " + std::to_string(first) + " to " + std::to_string(end - 1) +
                    " of block " + std::to_string(block.number) + " wait for " + what;
        }
    return text;
}

// Threads that can go on, in the order of the mode, and from its beginning after each that let
// others go on: so some are as far ahead as barriers let them. Returns whether there was one.
static bool run_threads(Cluster &cluster) {
    const int warps = cluster.blocks[0].warps.size(), all = cluster.blocks.size() * warps;
    const long ended_before = ended;
    bool progress = false;
    for (int i = 0; i < all; ++i) {
        const int warp = mode & LAST_WARP_FIRST ? all - 1 - i : i;
        Block &block = cluster.blocks[warp / warps];
        for (int lane = 0; lane < WARP; ++lane) {
            Thread &thread = block.threads[warp % warps * WARP + lane];
            if (!is_ready(thread)) continue;
            resume(thread);
            if (ended != ended_before) return true;
            progress = true;
        }
    }
    return progress;
}

static void run_cluster(Cluster &cluster) {
    for (;;) {
        while (run_threads(cluster)) continue;
        bool left = false;
        for (const Block &block : cluster.blocks) left |= !block.done();
        if (!left) return;
        if (cluster.loads.empty()) throw std::runtime_error(deadlock(cluster));
        const auto place = mode & LAST_LOAD_FIRST ? cluster.loads.end() - 1 : cluster.loads.begin();
        const Load load = *place;
        cluster.loads.erase(place);
        arrive(cluster, load);
    }
}

static void prepare(Cluster &cluster, int first, int size, int threads, int smem_bytes) {
    cluster.blocks.resize(size);
    cluster.barrier.size = size * threads;
    while (int(stacks.size()) < size * threads) stacks.emplace_back(new char[STACK_BYTES]);
    for (int rank = 0; rank < size; ++rank) {
        Block &block = cluster.blocks[rank];
        block.cluster = &cluster;
        block.number = first + rank, block.rank = rank;
        block.warps.assign(threads / WARP, {WARP});
        block.warpgroups.resize((threads + WARPGROUP - 1) / WARPGROUP);
        for (Warpgroup &warpgroup : block.warpgroups) {
            warpgroup.barrier.size = WARPGROUP;
            warpgroup.committing.resize(WARPGROUP);
        }
        // NaN in each dtype, until it is written.
        block.generic.assign(smem_bytes, 0xff);
        block.async.assign(smem_bytes, 0xff);
        block.threads.resize(threads);
        for (int i = 0; i < threads; ++i) {
            Thread &thread = block.threads[i];
            thread.block = &block, thread.index = i;
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = stacks[rank * threads + i].get();
            thread.context.uc_stack.ss_size = STACK_BYTES;
            makecontext(&thread.context, begin, 0);
        }
    }
}

std::string run(int blocks, int threads, int cluster_size, int smem_bytes, void (*kernel)()) {
    kernel_of_launch = kernel;
    running = nullptr;
    failure.clear();
    if (threads % WARP || blocks % cluster_size) return "a grid is of whole clusters, of whole warps";
    try {
        for (int first = 0; first < blocks; first += cluster_size) {
            Cluster cluster;
            prepare(cluster, first, cluster_size, threads, smem_bytes);
            run_cluster(cluster);
        }
    } catch (const std::runtime_error &error) {
        return error.what();
    }
    return "";
}

}  // namespace machine
