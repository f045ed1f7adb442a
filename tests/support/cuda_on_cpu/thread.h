// What a thread of a kernel sees of the machine (machine.h). No header of the standard library is
// included here: every program would compile what it uses of that again.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef __SIZE_TYPE__ size_t;

struct Place {
    unsigned x, y, z;
};
extern Place threadIdx, blockIdx, gridDim;

namespace machine {

// Dynamic shared memory begins after 1 KiB that CUDA reserves (CUDA C++ Programming Guide, "Compute
// Capability 9.0").
constexpr u32 SHARED_BASE = 1024;
constexpr int WARP = 32;

// Ends the launch with a message, formatted as printf does.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char *format, ...);

unsigned char *dynamic_shared_memory();
// `bytes` of shared memory at an address, aligned to so many.
void write(u32 address, const void *from, int bytes);
void read(void *to, u32 address, int bytes);

// What a lane shows the others of its warp.
struct Shown {
    u32 words[8];
};
// Shows the other lanes of the warp something, and waits until all lanes have. Returns what each
// lane showed, until the lane shows something for the second time after that.
const Shown *show(const Shown &own);

// Waits for all threads of the CTA.
void sync_threads();

// How often a number in global memory was released for the other CTAs.
extern long releases;

// Mode::STOPS: stops the cluster of this thread.
void stop();

// Runs a grid. Returns 0, or an error of the driver, whose text is then why it failed.
int launch(int ctas, int threads, int cluster_size, int smem_bytes, void (*kernel)());

}  // namespace machine
