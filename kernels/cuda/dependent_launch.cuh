// Programmatic dependent launch (CUDA C++ Programming Guide).
#pragma once

#include "cuda/ptx.cuh"

// The next kernel of the stream may start when all CTAs have executed it, and what it does before it
// waits overlaps with this one.
DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Waits until the kernel before has ended, and its writes are visible.
DEVICE void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
