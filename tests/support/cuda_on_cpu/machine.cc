// The scheduler of the fibers, barriers, and shared memory.
#include "machine.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include <setjmp.h>
#include <ucontext.h>

Place threadIdx, blockIdx, gridDim;

namespace machine {

int mode;
Thread *running;
long releases;
std::vector<std::pair<const char *, const char *>> readable;

// How many clusters run at the same time. LAST_WARP_FIRST: the last of them come first, too.
static int resident = 1;
static constexpr int STACK_BYTES = 256 * 1024;
static jmp_buf scheduler;
static void (*kernel_of_launch)();
static std::string failure;
static long ended;  // generations and phases, of all barriers

static long stops;  // of clusters

// Executes one thread after the other, as to begin a new one takes system calls.
struct Fiber {
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    jmp_buf left;            // where its thread waits
    bool has_ended = false;  // its thread: it can begin another one
};
static std::vector<std::unique_ptr<Fiber>> fibers;  // for all launches

Warpgroup &this_warpgroup() { return running->cta->warpgroups[running->index / WARPGROUP]; }

static void leave();

void fail(const char *format, ...) {
    char text[400];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    failure = text;
    if (!running) throw std::runtime_error(failure);  // the scheduler itself
    failure += ": thread " + std::to_string(this_thread().index) + " of CTA " +
               std::to_string(this_thread().cta->number);
    leave();
    std::abort();  // the scheduler does not resume it
}

// Goes on with the scheduler, until that resumes this thread. swapcontext would make a system call.
static void leave() {
    if (!_setjmp(this_thread().fiber->left)) _longjmp(scheduler, 1);
}

void stop() {
    if (!(mode & STOPS)) return;
    this_thread().cta->cluster->stopped = ++stops;
    leave();
}

// ------------------------------------------------------------------------------------ barriers

void wait(const Wait &what) {
    this_thread().wait = what;
    this_thread().waits = true;
    leave();
}

bool is_last(Barrier &barrier, const char *name) {
    if (++barrier.arrived >= barrier.size) return true;
    wait({name, &barrier, barrier.generation});
    return false;
}

void release(Barrier &barrier) {
    barrier.arrived = 0;
    ++barrier.generation;
    ++ended;
}

// Two slots alternate: when a lane shows something for the third time, all lanes have arrived for
// the second time, so they have read the first slot.
const Shown *show(const Shown &own) {
    Thread &thread = this_thread();
    Warp &warp = thread.cta->warps[thread.index / WARP];
    Shown *slot = warp.shown[++thread.times_shown % 2];
    slot[thread.index % WARP] = own;
    if (is_last(warp.barrier, "the other lanes of its warp")) release(warp.barrier);
    return slot;
}

void sync_threads() { ptx::bar_sync(0, this_thread().cta->threads.size()); }

MBarrier &mbarrier(Cta &cta, u32 address) {
    const auto found = cta.mbarriers.find(address);
    if (found == cta.mbarriers.end()) fail("no mbarrier was initialised at %u", address);
    return found->second;
}

void advance(MBarrier &barrier) {
    if (barrier.pending || barrier.bytes) return;
    barrier.pending = barrier.count;
    ++barrier.phase;
    ++ended;
}

// -------------------------------------------------------------------------------- shared memory

unsigned char *dynamic_shared_memory() { return this_thread().cta->generic.data(); }

unsigned char *at(Bytes &memory, u32 address, int bytes, int alignment) {
    if (address % alignment) fail("shared memory: %u is no multiple of %d", address, alignment);
    if (address < SHARED_BASE || address - SHARED_BASE + bytes > memory.size())
        fail("shared memory: %d bytes at %u are outside of its %zu", bytes, address, memory.size());
    return memory.data() + (address - SHARED_BASE);
}

void write(u32 address, const void *from, int bytes) {
    Cta &cta = *this_thread().cta;
    const auto next = cta.mbarriers.lower_bound(address & ~7u);
    if (next != cta.mbarriers.end() && next->first < address + bytes)
        fail("the mbarrier at %u is overwritten", next->first);
    std::memcpy(at(cta.generic, address, bytes, bytes), from, bytes);
    this_thread().unfenced.push_back({address, bytes});
}

void read(void *to, u32 address, int bytes) {
    std::memcpy(to, at(this_thread().cta->generic, address, bytes, bytes), bytes);
}

// ----------------------------------------------------------------------------------- scheduling

static bool is_ready(const Thread &thread) {
    if (thread.done) return false;
    if (!thread.waits) return true;
    const Wait &wait = thread.wait;
    if (wait.releases >= 0) return wait.releases != releases;
    if (wait.barrier) return wait.barrier->generation != wait.generation;
    return (wait.mbarrier->phase & 1) != wait.parity;
}

bool Cta::done() const {
    for (const Thread &thread : threads)
        if (!thread.done) return false;
    return true;
}

static void finish() {
    Thread &thread = this_thread();
    if (!thread.stores.empty() || !thread.committed_stores.empty())
        fail("it exits, and its TMA stores may not have read shared memory");
    if (!thread.products.empty()) fail("it exits with products that it did not commit");
    for (auto &group : thread.copy_groups)
        if (!group.empty()) fail("it exits with cp.async copies that it did not wait for");
    for (const Numbers &numbers : thread.unwritten) numbers.write();
    thread.done = true;
    Cta &cta = *thread.cta;
    if (!cta.done()) return;
    for (const Load &load : cta.cluster->loads)
        for (int rank : load.ranks)
            if (rank == cta.rank) fail("its CTA exits while TMA loads write there");
    for (const Warpgroup &warpgroup : cta.warpgroups)
        if (!warpgroup.groups.empty()) fail("its CTA exits with products that it did not wait for");
}

static void run_thread_after_thread() {
    for (;;) {
        kernel_of_launch();
        finish();
        this_thread().fiber->has_ended = true;
        leave();
    }
}

[[noreturn]] static void begin(Fiber &fiber) {
    static ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack.get();
    context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&context, run_thread_after_thread, 0);
    setcontext(&context);
    std::abort();
}

// Runs a thread until it waits.
static void resume(Thread &thread) {
    threadIdx = {unsigned(thread.index), 0, 0};
    blockIdx = {unsigned(thread.cta->number), 0, 0};
    thread.waits = false;
    running = &thread;
    if (!_setjmp(scheduler)) {
        const bool can_go_on = thread.started || thread.fiber->has_ended;
        thread.started = true, thread.fiber->has_ended = false;
        if (can_go_on) _longjmp(thread.fiber->left, 1);
        begin(*thread.fiber);
    }
    running = nullptr;
    if (!failure.empty()) throw std::runtime_error(failure);
}

static std::string described(const Thread &thread) {
    const Wait &wait = thread.wait;
    char text[160];
    if (wait.releases >= 0)
        std::snprintf(text, sizeof text, "a number that another CTA releases");
    else if (wait.mbarrier)
        std::snprintf(text, sizeof text,
                      "the end of a phase of parity %u of the mbarrier at %u, whose phase %ld "
                      "lacks %d arrivals and %ld bytes",
                      wait.parity, wait.number, wait.mbarrier->phase, wait.mbarrier->pending,
                      wait.mbarrier->bytes);
    else
        std::snprintf(text, sizeof text, "%s %u, at which are %d of %d", wait.name, wait.number,
                      wait.barrier->arrived, wait.barrier->size);
    return text;
}

// Which threads wait for what; one line for neighbours that wait for the same.
static std::string waits(const Cluster &cluster) {
    std::string text;
    for (const Cta &cta : cluster.ctas)
        for (size_t first = 0, end; first < cta.threads.size(); first = end) {
            end = first + 1;
            if (cta.threads[first].done) continue;
            const std::string what = described(cta.threads[first]);
            while (end < cta.threads.size() && !cta.threads[end].done &&
                   described(cta.threads[end]) == what)
                ++end;
            text += "\n  threads " + std::to_string(first) + " to " + std::to_string(end - 1) +
                    " of CTA " + std::to_string(cta.number) + " wait for " + what;
        }
    return text;
}

// Runs the threads that can run, in the order of the mode, until one completes a barrier. The caller
// then begins anew, so that the first threads are as far ahead of the others as barriers allow.
// Returns whether any thread ran.
static bool run_threads(Cluster &cluster) {
    const int warps = cluster.ctas[0].warps.size(), all = cluster.ctas.size() * warps;
    const long ended_before = ended;
    bool progress = false;
    for (int i = 0; i < all; ++i) {
        const int warp = mode & LAST_WARP_FIRST ? all - 1 - i : i;
        Cta &cta = cluster.ctas[warp / warps];
        for (int lane = 0; lane < WARP; ++lane) {
            Thread &thread = cta.threads[warp % warps * WARP + lane];
            if (!is_ready(thread)) continue;
            resume(thread);
            if (cluster.stopped) return true;
            if (mode & LANES_APART && ended != ended_before) return true;
            progress = true;
        }
        if (ended != ended_before) return true;
    }
    return progress;
}

static bool is_done(const Cluster &cluster) {
    for (const Cta &cta : cluster.ctas)
        if (!cta.done()) return false;
    return true;
}

// Runs a cluster until its threads wait for a load, which then completes, or for other clusters, or
// it stops. Returns whether anything happened.
static bool run_cluster(Cluster &cluster) {
    bool progress = false;
    while (!cluster.stopped && run_threads(cluster)) progress = true;
    if (cluster.stopped || is_done(cluster) || cluster.loads.empty()) return progress;
    const auto place = mode & LAST_LOAD_FIRST ? cluster.loads.end() - 1 : cluster.loads.begin();
    const Load load = *place;
    cluster.loads.erase(place);
    complete(cluster, load);
    return true;
}

// Each cluster that runs has its own fibers, from `first_fiber` on.
static void prepare(Cluster &cluster, int first, int size, int threads, int smem_bytes,
                    int first_fiber) {
    cluster.ctas.resize(size);
    cluster.barrier.size = size * threads;
    while (int(fibers.size()) < first_fiber + size * threads)
        fibers.push_back(std::make_unique<Fiber>());
    for (int rank = 0; rank < size; ++rank) {
        Cta &cta = cluster.ctas[rank];
        cta.cluster = &cluster;
        cta.number = first + rank, cta.rank = rank;
        cta.warps.resize(threads / WARP);
        cta.warpgroups.resize((threads + WARPGROUP - 1) / WARPGROUP);
        for (Warpgroup &warpgroup : cta.warpgroups) {
            warpgroup.barrier.size = WARPGROUP;
            warpgroup.committing.resize(WARPGROUP);
        }
        // NaN in each dtype, until it is written.
        cta.generic.assign(smem_bytes, 0xff);
        cta.async.assign(smem_bytes, 0xff);
        cta.threads.resize(threads);
        for (int i = 0; i < threads; ++i) {
            Thread &thread = cta.threads[i];
            thread.cta = &cta, thread.index = i;
            thread.fiber = fibers[first_fiber + rank * threads + i].get();
        }
    }
}

static std::string deadlock(const std::vector<std::unique_ptr<Cluster>> &clusters) {
    std::string text = "deadlock";
    for (int i = 0; i < resident; ++i) {
        const auto &cluster = clusters[mode & LAST_WARP_FIRST ? resident - 1 - i : i];
        if (cluster) text += waits(*cluster);
    }
    return text;
}

// Lets the cluster that stopped last go on. Returns whether one had stopped.
static bool go_on(const std::vector<std::unique_ptr<Cluster>> &clusters) {
    Cluster *last = nullptr;
    for (const auto &each : clusters)
        if (each && each->stopped > (last ? last->stopped : 0)) last = each.get();
    if (last) last->stopped = 0;
    return last;
}

// Returns why it failed, or "".
static std::string run(int ctas, int threads, int cluster_size, int smem_bytes, void (*kernel)()) {
    kernel_of_launch = kernel;
    running = nullptr;
    failure.clear();
    gridDim = {unsigned(ctas), 1, 1};
    if (threads % WARP || ctas % cluster_size) return "a grid needs whole warps and clusters";
    try {
        std::vector<std::unique_ptr<Cluster>> running(resident);
        int first = 0, left = ctas / cluster_size;
        while (left) {
            for (int slot = 0; slot < resident; ++slot) {
                if (running[slot] || first == ctas) continue;
                running[slot] = std::make_unique<Cluster>();
                prepare(*running[slot], first, cluster_size, threads, smem_bytes,
                        slot * cluster_size * threads);
                first += cluster_size;
            }
            bool progress = false;
            for (int i = 0; i < resident; ++i) {
                auto &cluster = running[mode & LAST_WARP_FIRST ? resident - 1 - i : i];
                if (!cluster) continue;
                progress |= run_cluster(*cluster);
                if (!is_done(*cluster)) continue;
                cluster.reset();
                --left;
            }
            if (!progress && !go_on(running)) throw std::runtime_error(deadlock(running));
        }
    } catch (const std::runtime_error &error) {
        return error.what();
    }
    return "";
}

int launch(int ctas, int threads, int cluster_size, int smem_bytes, void (*kernel)()) {
    failure = run(ctas, threads, cluster_size, smem_bytes, kernel);
    return failure.empty() ? 0 : 719;  // CUDA_ERROR_LAUNCH_FAILED
}

}  // namespace machine

extern "C" {

int cuGetErrorString(int, const char **text) {
    *text = machine::failure.c_str();
    return 0;
}

// Functions that the driver does not have: the Mode, how many clusters run at the same time, and the
// tensors that cp.async may read.
void set_mode(int mode) { machine::mode = mode; }
void set_resident(int clusters) { machine::resident = clusters; }
void set_readable(int count, const char **edges) {
    machine::readable.clear();
    for (int i = 0; i < count; ++i) machine::readable.push_back({edges[2 * i], edges[2 * i + 1]});
}
}
