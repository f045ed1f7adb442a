// The functions of the CUDA driver that tunefa's launches call, for the kernel of one program:
// KERNEL, whose clusters have CLUSTER_CTAS CTAs.
#pragma once

#include <utility>

#include "machine.h"

namespace {

void **parameters;
std::string failure;

template <class... TYPES, size_t... PLACES>
void call(void (*kernel)(TYPES...), std::index_sequence<PLACES...>) {
    kernel(*static_cast<TYPES *>(parameters[PLACES])...);
}
template <class... TYPES> void call(void (*kernel)(TYPES...)) {
    call(kernel, std::make_index_sequence<sizeof...(TYPES)>());
}
template <class... TYPES> std::vector<size_t> sizes_of(void (*)(TYPES...)) {
    return {sizeof(TYPES)...};
}

struct LaunchConfig {  // CUlaunchConfig
    unsigned grid[3], block[3], smem_bytes;
};

}  // namespace

extern "C" {

int cuLaunchKernelEx(const LaunchConfig *config, void *, void **given, void *) {
    parameters = given;
    failure = machine::run(config->grid[0], config->block[0], CLUSTER_CTAS,
                           config->smem_bytes, [] { call(&KERNEL); });
    return failure.empty() ? 0 : 719;  // CUDA_ERROR_LAUNCH_FAILED
}

int cuFuncGetParamInfo(void *, size_t number, size_t *, size_t *size) {
    const std::vector<size_t> sizes = sizes_of(&KERNEL);
    if (number >= sizes.size()) return 1;
    *size = sizes[number];
    return 0;
}

int cuGetErrorString(int, const char **text) {
    *text = failure.c_str();
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
