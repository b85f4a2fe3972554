/* Executes the CUDA kernels on the CPU: the .cu files compiled as C++, a block's threads as coroutines of one thread.
 * Slow and exact: what the kernels read, write and compute is what a GPU does, but for the hand-written instructions
 * of warp.cuh, which the emulator has its own form of.
 *
 * Thread: one at a time in the process; shared memory is static. */
#ifndef KOPS_TESTS_CUDA_OPS_EMULATOR_H
#define KOPS_TESTS_CUDA_OPS_EMULATOR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The kernels as sm_80 and later get them, and as sm_75 does. */
enum emulated_arch { EMULATED_SM_80, EMULATED_SM_75, EMULATED_ARCHS };

/* Runs a launch on host addresses; returns 0, or -1 where no kernel has this name or its params another size. */
int emulate(enum emulated_arch arch, const char *kernel, unsigned grid, unsigned block, const void *params,
            size_t params_size);

enum { EMULATED_HOPPER_SUMS = 128 };

/* Bias and activation of kops_linear_<bf16 or f16>_hopper_128x256: what one of the 128 threads of a consumer does to
 * its sums of the tile whose first row, column and batch are `place`. */
void emulate_hopper_finish(const void *params, int bf16, const int place[3], unsigned consumer, unsigned thread,
                           float *sums);

#ifdef __cplusplus
}
#endif

#endif
