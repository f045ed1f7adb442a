// Barriers and copies: cp.async, and TMA, whose tensor maps a launch encodes by the function of the
// CUDA driver.
#include <algorithm>
#include <cstdint>

#include "machine.h"

using namespace machine;

// ------------------------------------------------------------------------------------ barriers

static Barrier &named(int number, int threads) {
    if (number < 0 || number >= NAMED_BARRIERS || threads % WARP)
        fail("bar: number %d, %d threads", number, threads);
    Barrier &barrier = this_thread().cta->named[number];
    if (barrier.arrived == 0) barrier.size = threads;
    if (barrier.size != threads)
        fail("bar %d: some say %d threads, others %d", number, barrier.size, threads);
    return barrier;
}

static bool has_ended(Barrier &barrier) {
    if (++barrier.arrived < barrier.size) return false;
    release(barrier);
    return true;
}

void ptx::bar_sync(int number, int threads) {
    Barrier &barrier = named(number, threads);
    const long generation = barrier.generation;
    if (!has_ended(barrier)) machine::wait({"bar", &barrier, generation, nullptr, u32(number)});
}
void ptx::bar_red_or_pred(bool &any, int number, int threads, bool one) {
    Barrier &barrier = named(number, threads);
    if (barrier.arrived == 0) barrier.any = false;  // all threads of the time before have read it
    barrier.any |= one;
    const long generation = barrier.generation;
    bool &result = barrier.result[generation % 2];
    if (barrier.arrived + 1 == barrier.size) result = barrier.any;
    bar_sync(number, threads);
    any = result;
}
void ptx::bar_arrive(int number, int threads) { has_ended(named(number, threads)); }

void ptx::barrier_cluster_arrive_release_aligned() {
    Barrier &barrier = this_thread().cta->cluster->barrier;
    this_thread().cluster_generation = barrier.generation;
    has_ended(barrier);
}
void ptx::barrier_cluster_wait_acquire_aligned() {
    Barrier &barrier = this_thread().cta->cluster->barrier;
    if (this_thread().cluster_generation < 0) fail("barrier.cluster.wait without an arrival");
    if (barrier.generation == this_thread().cluster_generation)
        machine::wait({"barrier.cluster", &barrier, barrier.generation});
}

void ptx::mbarrier_init_shared_cta_b64(u32 barrier, u32 count) {
    Cta &cta = *this_thread().cta;
    machine::at(cta.generic, barrier, 8, 8);
    if (count == 0 || count >= 1 << 20) fail("mbarrier.init: %u arrivals", count);
    cta.mbarriers[barrier] = {int(count), int(count)};
}

static void arrive_at(Cta &cta, u32 address, long bytes) {
    MBarrier &barrier = machine::mbarrier(cta, address);
    if (barrier.pending == 0)
        fail("the mbarrier at %u has all of the %d arrivals of its phase", address, barrier.count);
    barrier.bytes += bytes;
    --barrier.pending;
    machine::advance(barrier);
}
void ptx::mbarrier_arrive_shared_cta_b64(u32 barrier) { arrive_at(*this_thread().cta, barrier, 0); }
void ptx::mbarrier_arrive_expect_tx_shared_cta_b64(u32 barrier, u32 bytes) {
    arrive_at(*this_thread().cta, barrier, bytes);
}

// Bits 24 and up hold the rank + 1, or 0 for this CTA.
void ptx::mapa_shared_cluster_u32(u32 &to, u32 address, int rank) {
    const int ctas = this_thread().cta->cluster->ctas.size();
    if (rank < 0 || rank >= ctas) fail("mapa: rank %d of %d CTAs", rank, ctas);
    to = address | u32(rank + 1) << 24;
}
void ptx::mbarrier_arrive_relaxed_cluster_shared_cluster_b64(u32 barrier) {
    const int rank = int(barrier >> 24) - 1;
    Cta &cta = rank < 0 ? *this_thread().cta : this_thread().cta->cluster->ctas[rank];
    if (cta.done()) fail("it arrives at an mbarrier of CTA %d, which has exited", cta.number);
    arrive_at(cta, barrier & 0xffffff, 0);
}

void ptx::mbarrier_try_wait_parity_shared_cta_b64(bool &done, u32 address, u32 parity) {
    const MBarrier &barrier = machine::mbarrier(*this_thread().cta, address);
    if (parity > 1) fail("mbarrier.try_wait: parity %u", parity);
    done = (barrier.phase & 1) != parity;
    if (!done && this_thread().tried == address) {
        machine::wait({"mbarrier", nullptr, 0, &barrier, address, parity});
        done = true;
    }
    this_thread().tried = done ? 0 : address;
}

// ------------------------------------------------------------------------------------ cp.async

void machine::complete(const Copy &copy) {
    const uint64_t zeros[2] = {};
    if (!copy.inside) return write(copy.to, zeros, 16);
    const char *from = static_cast<const char *>(copy.from);
    if (reinterpret_cast<uintptr_t>(from) % 16) fail("cp.async: not aligned");
    for (auto &[begin, end] : readable)
        if (begin <= from && from + 16 <= end) return write(copy.to, from, 16);
    fail("cp.async reads outside its tensor");
}

void ptx::cp_async_cg_shared_global_L2_128B(u32 to, const void *from, int bytes, int read) {
    if (bytes != 16 || (read && read != 16)) fail("cp.async: %d of %d bytes", read, bytes);
    const Copy copy = {to, from, read != 0};
    if (!(machine::mode & LATE_LOADS)) machine::complete(copy);
    this_thread().copies.push_back(copy);
}

void ptx::cp_async_commit_group() {
    this_thread().copy_groups.push_back(std::move(this_thread().copies));
    this_thread().copies.clear();
}

void ptx::cp_async_wait_group(int pending) {
    auto &groups = this_thread().copy_groups;
    for (; int(groups.size()) > pending; groups.pop_front())
        if (machine::mode & LATE_LOADS)
            for (const Copy &copy : groups.front()) machine::complete(copy);
}

// ----------------------------------------------------------------------------------------- TMA

namespace {

constexpr int AXES = 5;

// The content of a CUtensorMap here. Axes count from the contiguous one.
struct Map {
    char *address;
    int64_t strides[AXES];  // bytes
    int32_t sizes[AXES];
    int16_t box[AXES];
    int16_t axes, element, swizzle_bytes;
    u32 mark;
};
static_assert(sizeof(Map) <= 128, "a CUtensorMap has 128 bytes");
constexpr u32 MARK = 0x54414d50;

const Map &map_at(const void *place) {
    const Map &map = *static_cast<const Map *>(place);
    if (reinterpret_cast<uintptr_t>(place) % 64 || map.mark != MARK) fail("TMA: no tensor map");
    return map;
}

// The address, swizzled as rows of `width` bytes are: bits 7 and up are XORed into bits 4 and up.
u32 swizzled(u32 address, int width) { return address ^ (address >> 3 & u32(width - 16)); }

// Calls work(offset in the box, bytes before the tensor, bytes in the tensor, their address), for
// each row of the box.
template <class WORK> void for_rows(const Map &map, const ptx::Coordinates &place, WORK work) {
    const int *at = place.at;
    int rows = 1;
    for (int axis = 1; axis < map.axes; ++axis) rows *= map.box[axis];
    for (int row = 0; row < rows; ++row) {
        u64 from = 0;  // addresses wrap
        bool inside = true;
        for (int axis = 1, rest = row; axis < map.axes; rest /= map.box[axis++]) {
            const int place = at[axis] + rest % map.box[axis];
            inside &= 0 <= place && place < map.sizes[axis];
            from += u64(place) * u64(map.strides[axis]);
        }
        const int first = std::max(at[0], 0), end = std::min<int>(at[0] + map.box[0], map.sizes[0]);
        if (!inside || first >= end) {
            work(row * map.box[0] * map.element, 0, 0, nullptr);
            continue;
        }
        work(row * map.box[0] * map.element, (first - at[0]) * map.element,
             (end - first) * map.element, map.address + from + first * map.element);
    }
}

int box_bytes(const Map &map) {
    int bytes = map.element;
    for (int axis = 0; axis < map.axes; ++axis) bytes *= map.box[axis];
    return bytes;
}

}  // namespace

// The driver's function, with its conditions (CUDA driver API, "Tensor Map Object Management").
extern "C" int cuTensorMapEncodeTiled(void *to, int type, u32 axes, void *address,
                                      const u64 *sizes, const u64 *strides, const u32 *box,
                                      const u32 *steps, int interleave, int swizzle, int promotion,
                                      int fill_nan) {
    const int bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    (void)promotion;
    const int swizzles[] = {16, 32, 64, 128};
    if (axes < 1 || axes > AXES || type < 0 || type > 9 || interleave || fill_nan) return 1;
    if (swizzle < 0 || swizzle > 3 || reinterpret_cast<uintptr_t>(address) % 16) return 1;
    Map map = {static_cast<char *>(address)};
    map.axes = axes, map.element = bytes[type], map.mark = MARK;
    map.swizzle_bytes = swizzles[swizzle];
    for (u32 axis = 0; axis < axes; ++axis) {
        map.strides[axis] = axis ? strides[axis - 1] : map.element;
        if (axis && (map.strides[axis] % 16 || map.strides[axis] >= int64_t(1) << 40)) return 1;
        if (sizes[axis] < 1 || sizes[axis] >= u64(1) << 31 || steps[axis] != 1) return 1;
        if (box[axis] < 1 || box[axis] > 256) return 1;
        map.sizes[axis] = sizes[axis], map.box[axis] = box[axis];
    }
    const int inner = map.box[0] * map.element;
    if (inner % 16 || (swizzle && inner > map.swizzle_bytes)) return 1;
    std::memcpy(to, &map, sizeof map);
    return 0;
}

// Writes 16 bytes that TMA has copied.
static void land(Cta &cta, u32 to, const void *from) {
    const auto next = cta.mbarriers.lower_bound(to);
    if (next != cta.mbarriers.end() && next->first < to + 16)
        fail("TMA overwrites the mbarrier at %u", next->first);
    std::memcpy(at(cta.generic, to, 16, 16), from, 16);
    std::memcpy(at(cta.async, to, 16, 16), from, 16);
}

static void complete_bytes(Cta &cta, const Load &load) {
    for (u32 unit = 0; unit < load.bytes; unit += 16) land(cta, load.to + unit, load.from + unit);
    MBarrier &barrier = mbarrier(cta, load.barrier);
    barrier.bytes -= load.bytes;
    advance(barrier);
}

void machine::complete(Cluster &cluster, const Load &load) {
    if (!load.map) return complete_bytes(cluster.ctas[load.ranks[0]], load);
    const Map &map = map_at(load.map);
    const int inner = map.box[0] * map.element;
    for (int rank : load.ranks) {
        Cta &cta = cluster.ctas[rank];
        if (cta.done()) fail("TMA writes to CTA %d, which has exited", cta.number);
        at(cta.generic, load.to, box_bytes(map), 128);
        for_rows(map, load.at, [&](int offset, int skip, int bytes, const char *from) {
            Bytes row(inner, 0);
            if (bytes) std::memcpy(row.data() + skip, from, bytes);
            for (int unit = 0; unit < inner; unit += 16) {
                land(cta, swizzled(load.to + offset + unit, map.swizzle_bytes), row.data() + unit);
            }
        });
        MBarrier &barrier = mbarrier(cta, load.barrier);
        barrier.bytes -= box_bytes(map);
        advance(barrier);
    }
}

static void check_axes(const void *map, const ptx::Coordinates &at) {
    if (map_at(map).axes != at.axes) fail("TMA: a map of %d axes", map_at(map).axes);
}

u32 ptx::own_mask() { return 1u << this_thread().cta->rank; }

void ptx::prefetch_tensor(const void *map, const Coordinates &at) { check_axes(map, at); }

void ptx::load_tensor(u32 to, const void *map, const Coordinates &at, u32 barrier, u32 ranks) {
    Cluster &cluster = *this_thread().cta->cluster;
    Load load = {map, nullptr, 0, to, barrier, at, {}};
    check_axes(map, at);
    if (ranks == 0 || ranks >> cluster.ctas.size()) fail("TMA: to CTAs %x", ranks);
    for (int rank = 0; ranks >> rank; ++rank)
        if (ranks >> rank & 1) load.ranks.push_back(rank);
    if (machine::mode & LATE_LOADS)
        cluster.loads.push_back(std::move(load));
    else
        machine::complete(cluster, load);
}

void ptx::cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(u32 to, const void *from,
                                                                         u32 bytes, u32 barrier) {
    const int rank = this_thread().cta->rank;
    if (bytes % 16 || to % 16 || reinterpret_cast<uintptr_t>(from) % 16)
        fail("cp.async.bulk: not a multiple of 16 bytes");
    Cluster &cluster = *this_thread().cta->cluster;
    Load load = {nullptr, static_cast<const char *>(from), bytes, to, barrier, {}, {rank}};
    if (machine::mode & LATE_LOADS)
        cluster.loads.push_back(std::move(load));
    else
        machine::complete(cluster, load);
}

static void complete_numbers(Cta &cta, const Store &store) {
    if (std::memcmp(at(cta.generic, store.from, store.seen.size(), 16), store.seen.data(),
                    store.seen.size()))
        fail("shared memory at %u changed before TMA read it", store.from);
    Numbers numbers = {store.sums, store.adds, std::vector<float>(store.seen.size() / 4)};
    std::memcpy(numbers.values.data(), at(cta.async, store.from, store.seen.size(), 16),
                store.seen.size());
    if (mode & LATE_READS)
        this_thread().unwritten.push_back(std::move(numbers));
    else
        numbers.write();
}

void Numbers::write() const {
    for (size_t i = 0; i < values.size(); ++i) to[i] = adds ? to[i] + values[i] : values[i];
}

static void start_numbers(void *to, u32 from, u32 bytes, bool adds) {
    Cta &cta = *this_thread().cta;
    if (bytes % 16 || from % 16 || reinterpret_cast<uintptr_t>(to) % 16)
        fail("cp.async.bulk: not a multiple of 16 bytes");
    const unsigned char *seen = machine::at(cta.generic, from, bytes, 16);
    Store store = {nullptr, static_cast<float *>(to), adds, from, {}, Bytes(seen, seen + bytes)};
    this_thread().stores.push_back(store);
    if (!(machine::mode & LATE_READS)) machine::complete(cta, store);
}
void ptx::cp_reduce_async_bulk_global_shared_cta_bulk_group_add_f32(void *to, u32 from, u32 bytes) {
    start_numbers(to, from, bytes, true);
}
void ptx::cp_async_bulk_global_shared_cta_bulk_group(void *to, u32 from, u32 bytes) {
    start_numbers(to, from, bytes, false);
}

void machine::complete(Cta &cta, const Store &store) {
    if (!store.map) return complete_numbers(cta, store);
    const Map &map = map_at(store.map);
    const int inner = map.box[0] * map.element, all = box_bytes(map);
    if (std::memcmp(at(cta.generic, store.from, all, 128), store.seen.data(), all))
        fail("shared memory at %u changed before a TMA store read it", store.from);
    for_rows(map, store.at, [&](int offset, int skip, int bytes, char *to) {
        Bytes row(inner);
        for (int unit = 0; unit < inner; unit += 16) {
            const u32 from = swizzled(store.from + offset + unit, map.swizzle_bytes);
            std::memcpy(row.data() + unit, at(cta.async, from, 16, 16), 16);
        }
        if (bytes) std::memcpy(to, row.data() + skip, bytes);
    });
}

void ptx::store_tensor(const void *map, const Coordinates &at, u32 from) {
    Cta &cta = *this_thread().cta;
    check_axes(map, at);
    const int bytes = box_bytes(map_at(map));
    const unsigned char *seen = machine::at(cta.generic, from, bytes, 128);
    this_thread().stores.push_back({map, nullptr, false, from, at, Bytes(seen, seen + bytes)});
    if (!(machine::mode & LATE_READS)) machine::complete(cta, this_thread().stores.back());
}

void ptx::cp_async_bulk_commit_group() {
    auto &committed = this_thread().committed_stores;
    committed.insert(committed.end(), this_thread().stores.begin(), this_thread().stores.end());
    this_thread().stores.clear();
}

// Without LATE_READS each one is written when it starts, which a GPU does not promise.
void ptx::cp_async_bulk_wait_group(int pending) {
    cp_async_bulk_wait_group_read(pending);
    for (const Numbers &numbers : this_thread().unwritten) numbers.write();
    this_thread().unwritten.clear();
}

// A thread that reads the same number again waits until another one releases any.
template <class T> static void acquire(T &to, const T *from) {
    Thread &thread = this_thread();
    // A thread that looks once for each of several tiles does not wait: one that waits looks again and again.
    const bool is_same = thread.looked == from && thread.looked_after == machine::releases;
    thread.looks = is_same ? thread.looks + 1 : 0;
    if (thread.looks > 8)
        machine::wait({"release", nullptr, 0, nullptr, 0, 0, machine::releases});
    to = *from, thread.looked = from, thread.looked_after = machine::releases;
}
void ptx::ld_acquire_gpu_global_u32(u32 &to, const u32 *from) { acquire(to, from); }
void ptx::ld_acquire_gpu_global_u64(u64 &to, const u64 *from) { acquire(to, from); }
void ptx::cp_async_bulk_wait_group_read(int pending) {
    if (pending) fail("cp.async.bulk.wait_group: all groups are waited for here");
    auto &committed = this_thread().committed_stores;
    if (machine::mode & LATE_READS)
        for (const Store &store : committed) machine::complete(*this_thread().cta, store);
    committed.clear();
}

void ptx::fence_proxy_async_shared_cta() {
    Cta &cta = *this_thread().cta;
    for (auto &[address, bytes] : this_thread().unfenced)
        std::memcpy(machine::at(cta.async, address, bytes, 1),
                    machine::at(cta.generic, address, bytes, 1), bytes);
    this_thread().unfenced.clear();
}
