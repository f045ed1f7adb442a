// In place of kernels/cuda/ptx.cuh, for a host compiler: what its instructions do, by the PTX
// ISA, between threads that are fibers. So the kernels themselves run on a CPU, and so do their
// mistakes: a copy arrives as early or as late as it may, warps run ahead of each other as far as
// their barriers let them, shared memory begins as NaN, and reading beside a tensor or two rows of
// the same banks ends the program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <ucontext.h>

typedef unsigned int u32;

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads, blocks)
#define DEVICE inline

using std::max;
using std::min;

struct uint4 {
    unsigned int x, y, z, w;
};
struct Index {
    unsigned int x;
};
static Index threadIdx, blockIdx;

constexpr int SHARED_BYTES = 256 * 1024;
alignas(1024) unsigned char shared[SHARED_BYTES];

[[noreturn]] static void fail(const char *what) {
    std::fprintf(stderr, "%s: thread %u of block %u\n", what, threadIdx.x, blockIdx.x);
    std::exit(3);
}

// -------------------------------------------------------------------------------------- fibers

constexpr int STACK_BYTES = 256 * 1024;

struct Barrier {
    int size = 32, arrived = 0;
    long generation = 0;
};

struct Copy {
    u32 to;
    const void *from;
    bool inside;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    bool done = false;
    const Barrier *waits = nullptr;
    long generation = 0;
    std::vector<Copy> begun;
    std::deque<std::vector<Copy>> groups;
};

struct Lane {
    u32 word[8];
    float number[4];
};

static std::vector<Fiber> fibers;
static std::vector<Barrier> warps;
static std::vector<Lane> lanes;
static Barrier block_barrier;
static ucontext_t scheduler;
static bool copies_are_late;
static std::vector<std::pair<const char *, const char *>> readable;  // tensors

static void wait_at(Barrier &barrier) {
    Fiber &fiber = fibers[threadIdx.x];
    if (++barrier.arrived == barrier.size) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    fiber.waits = &barrier;
    fiber.generation = barrier.generation;
    swapcontext(&fiber.context, &scheduler);
}

static void meet_warp() { wait_at(warps[threadIdx.x / 32]); }
DEVICE void __syncthreads() { wait_at(block_barrier); }
DEVICE void __syncwarp() { meet_warp(); }

// What each lane of the warp has put in, as `read` of all of them sees it.
template <class READ> static auto exchange(const Lane &own, READ read) {
    lanes[threadIdx.x] = own;
    meet_warp();
    auto found = read(&lanes[threadIdx.x / 32 * 32]);
    meet_warp();
    return found;
}

DEVICE float __shfl_xor_sync(unsigned, float value, int distance) {
    Lane own;
    own.number[0] = value;
    return exchange(own, [&](Lane *all) { return all[threadIdx.x % 32 ^ distance].number[0]; });
}

DEVICE bool __any_sync(unsigned, bool value) {
    Lane own;
    own.number[0] = value;
    return exchange(own, [](Lane *all) {
        return std::any_of(all, all + 32, [](const Lane &lane) { return lane.number[0] != 0; });
    });
}

DEVICE float __int_as_float(unsigned int bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// -------------------------------------------------------------------------------------- copies

DEVICE u32 shared_address(const void *pointer) {
    return static_cast<u32>(static_cast<const unsigned char *>(pointer) - shared);
}

static unsigned char *at_shared(u32 address, int bytes) {
    if (address % bytes || address + bytes > SHARED_BYTES) fail("shared memory: bad address");
    return shared + address;
}

static void arrive(const Copy &copy) {
    unsigned char *to = at_shared(copy.to, 16);
    if (!copy.inside) {
        std::memset(to, 0, 16);
        return;
    }
    const char *from = static_cast<const char *>(copy.from);
    if (reinterpret_cast<uintptr_t>(from) % 16) fail("cp.async: not aligned");
    for (auto &[begin, end] : readable)
        if (begin <= from && from + 16 <= end) {
            std::memcpy(to, from, 16);
            return;
        }
    fail("cp.async: beside its tensor");
}

DEVICE void cp_async_16_or_zero(u32 to, const void *from, bool inside) {
    const Copy copy = {to, from, inside};
    if (!copies_are_late) arrive(copy);
    fibers[threadIdx.x].begun.push_back(copy);
}
DEVICE void cp_async_16(u32 to, const void *from) { cp_async_16_or_zero(to, from, true); }

DEVICE void cp_async_commit() {
    Fiber &fiber = fibers[threadIdx.x];
    fiber.groups.push_back(std::move(fiber.begun));
    fiber.begun.clear();
}

template <int PENDING> DEVICE void cp_async_wait() {
    auto &groups = fibers[threadIdx.x].groups;
    for (; groups.size() > PENDING; groups.pop_front())
        if (copies_are_late)
            for (const Copy &copy : groups.front()) arrive(copy);
}

// ------------------------------------------------------------------------------------ matrices

static void load(u32 *to, u32 row, int count, bool transposed) {
    Lane own;
    own.word[0] = row;
    exchange(own, [&](Lane *all) {
        const int lane = threadIdx.x % 32;
        for (int matrix = 0; matrix < count; ++matrix) {
            unsigned int banks = 0;  // in fours
            for (int line = 0; line < 8; ++line)
                banks |= 1 << all[8 * matrix + line].word[0] / 16 % 8;
            if (banks != 0xff) fail("ldmatrix: two rows in the same banks");
            unsigned short both[2];
            for (int i = 0; i < 2; ++i) {
                const int line = transposed ? lane % 4 * 2 + i : lane / 4;
                const int column = transposed ? lane / 4 : lane % 4 * 2 + i;
                const u32 from = all[8 * matrix + line].word[0];
                std::memcpy(&both[i], at_shared(from, 16) + 2 * column, 2);
            }
            std::memcpy(&to[matrix], both, 4);
        }
        return 0;
    });
}
DEVICE void ldmatrix_x4(u32 *to, u32 row) { load(to, row, 4, false); }
DEVICE void ldmatrix_x4_trans(u32 *to, u32 row) { load(to, row, 4, true); }
DEVICE void ldmatrix_x2_trans(u32 *to, u32 row) { load(to, row, 2, true); }

template <bool IS_BF16> static float widened(u32 both, int which) {
    const unsigned int bits = which ? both >> 16 : both & 0xffff;
    if (IS_BF16) return __int_as_float(bits << 16);
    _Float16 half;
    const unsigned short low = bits;
    std::memcpy(&half, &low, 2);
    return half;
}

// By PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
template <bool IS_BF16>
DEVICE void mma_m16n8k16(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    Lane own;
    std::memcpy(own.word, a, 16);
    own.word[4] = b0, own.word[5] = b1;
    exchange(own, [&](Lane *all) {
        for (int i = 0; i < 4; ++i) {
            const int lane = threadIdx.x % 32, column = lane % 4 * 2 + i % 2;
            for (int k = 0; k < 16; ++k) {
                const Lane &left = all[lane / 4 * 4 + k % 8 / 2];
                const Lane &right = all[column * 4 + k % 8 / 2];
                sum[i] += widened<IS_BF16>(left.word[k / 8 * 2 + i / 2], k % 2) *
                          widened<IS_BF16>(right.word[4 + k / 8], k % 2);
            }
        }
        return 0;
    });
}

// ------------------------------------------------------------------------------------- numbers

template <bool IS_BF16> static unsigned int narrowed(float value) {
    if (!IS_BF16) {
        const _Float16 half = static_cast<_Float16>(value);
        unsigned short bits;
        std::memcpy(&bits, &half, 2);
        return bits;
    }
    unsigned int bits;
    std::memcpy(&bits, &value, 4);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
template <bool IS_BF16> DEVICE u32 cvt_16bit_x2(float low, float high) {
    return narrowed<IS_BF16>(low) | narrowed<IS_BF16>(high) << 16;
}
DEVICE int opaque(int x) { return x; }
DEVICE float exp2_approx(float x) { return std::exp2(x); }
DEVICE float reciprocal_approx(float x) { return 1 / x; }
DEVICE float log2_approx(float x) { return std::log2(x); }

DEVICE void st_shared(u32 to, u32 both) { std::memcpy(at_shared(to, 4), &both, 4); }
DEVICE uint4 ld_shared_v4_u32(u32 from) {
    uint4 found;
    std::memcpy(&found, at_shared(from, 16), 16);
    return found;
}
