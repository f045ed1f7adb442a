// Runs a kernel that was compiled with the ptx.cuh beside this file: `run` is for ctypes.
#pragma once

static void (*work)();

static void start() {
    work();
    fibers[threadIdx.x].done = true;
    if (!fibers[threadIdx.x].groups.empty() && copies_are_late)
        for (auto &group : fibers[threadIdx.x].groups)
            if (!group.empty()) fail("copies under way at the end");
    swapcontext(&fibers[threadIdx.x].context, &scheduler);
}

// Runs a thread until it waits for others.
static void resume(int thread) {
    threadIdx.x = thread;
    fibers[thread].waits = nullptr;
    swapcontext(&scheduler, &fibers[thread].context);
}

static bool is_ready(const Fiber &fiber) {
    return !fiber.done && (!fiber.waits || fiber.waits->generation != fiber.generation);
}

static void run_block(int threads, bool last_warp_first) {
    fibers = std::vector<Fiber>(threads);
    warps = std::vector<Barrier>(threads / 32);
    lanes = std::vector<Lane>(threads);
    block_barrier = {threads, 0, 0};
    std::memset(shared, 0xff, SHARED_BYTES);
    for (Fiber &fiber : fibers) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK_BYTES;
        makecontext(&fiber.context, start, 0);
    }
    for (bool progress = true; progress;) {
        progress = false;
        // One warp as far as it gets, then the next.
        for (int i = 0; i < threads / 32; ++i) {
            const int warp = last_warp_first ? threads / 32 - 1 - i : i;
            for (bool again = true; again;) {
                again = false;
                for (int thread = 32 * warp; thread < 32 * warp + 32; ++thread)
                    if (is_ready(fibers[thread])) resume(thread), again = progress = true;
            }
        }
    }
    for (const Fiber &fiber : fibers)
        if (!fiber.done) fail("some threads wait for ever");
}

static void **parameters;

template <class... TYPES, size_t... PLACES>
static void call(void (*kernel)(TYPES...), std::index_sequence<PLACES...>) {
    kernel(*static_cast<TYPES *>(parameters[PLACES])...);
}
template <class... TYPES> static void call(void (*kernel)(TYPES...)) {
    call(kernel, std::make_index_sequence<sizeof...(TYPES)>());
}

// `ranges`: begin and end of each tensor that may be read. `mode`: bit 0: copies arrive late, bit
// 1: the last warp goes first.
extern "C" void run(int blocks, int threads, int mode, void **given, const char **ranges,
                    int count) {
    copies_are_late = mode & 1;
    parameters = given;
    readable.clear();
    for (int i = 0; i < count; ++i) readable.push_back({ranges[2 * i], ranges[2 * i + 1]});
    work = [] { call(&KERNEL); };
    for (int block = 0; block < blocks; ++block) {
        blockIdx.x = block;
        run_block(threads, mode & 2);
    }
    fibers.clear();
}
