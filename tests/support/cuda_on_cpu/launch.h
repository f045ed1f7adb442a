// The functions of the CUDA driver that tunefa's launches call and that know the kernel of one
// program: KERNEL, whose clusters have CLUSTER_CTAS CTAs. The machine has the others.
#pragma once

#include "thread.h"

namespace {

void **parameters;

template <int...> struct Places {};
template <class... TYPES, int... PLACES>
void call(void (*kernel)(TYPES...), Places<PLACES...>) {
    kernel(*static_cast<TYPES *>(parameters[PLACES])...);
}
template <class... TYPES> void call(void (*kernel)(TYPES...)) {
    call(kernel, Places<__integer_pack(int(sizeof...(TYPES)))...>());
}
template <class... TYPES> int size_of(void (*)(TYPES...), size_t number, size_t &size) {
    const size_t sizes[] = {sizeof(TYPES)...};
    if (number >= sizeof...(TYPES)) return 1;
    size = sizes[number];
    return 0;
}

struct LaunchConfig {  // CUlaunchConfig
    unsigned grid[3], block[3], smem_bytes;
};

}  // namespace

extern "C" {

int cuLaunchKernelEx(const LaunchConfig *config, void *, void **given, void *) {
    parameters = given;
    return machine::launch(config->grid[0], config->block[0], CLUSTER_CTAS, config->smem_bytes,
                           [] { call(&KERNEL); });
}

int cuFuncGetParamInfo(void *, size_t number, size_t *, size_t *size) {
    return size_of(&KERNEL, number, *size);
}
}
