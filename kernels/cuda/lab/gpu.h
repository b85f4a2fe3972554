/* The lab's own way to the GPU: libcuda by dlopen, one device, its primary context, the default stream.
 * Thread: one. */
#ifndef KOPS_CUDA_LAB_GPU_H
#define KOPS_CUDA_LAB_GPU_H

#include "machine.h"

/* Candidate kernels, embedded beside cuda_ops_binaries. */
extern const struct cuda_ops_binary lab_binaries[];
extern const unsigned lab_binary_count;

struct lab_gpu; /* opaque */

/* Loads the driver, the device and every binary; NULL after a line on stderr. */
struct lab_gpu *lab_gpu_open(void);
void lab_gpu_close(struct lab_gpu *gpu);

const char *lab_gpu_name(const struct lab_gpu *gpu);
/* Its memory and launches; owned by the gpu. */
const struct lab_machine *lab_gpu_machine(const struct lab_gpu *gpu);

/* Blocks of `block` threads of the kernel that fit on one multiprocessor, at least 1. */
unsigned lab_gpu_occupancy(struct lab_gpu *gpu, const char *kernel, unsigned block);

/* Fills memory with a 16-bit pattern. */
int lab_gpu_fill(struct lab_gpu *gpu, uint64_t address, uint16_t pattern, size_t count);

/* Median microseconds of `repeat` launches after one more; negative when it failed. */
double lab_gpu_time(struct lab_gpu *gpu, const struct cuda_launch *launch, unsigned repeat);
/* The same of a copy on the device. */
double lab_gpu_time_copy(struct lab_gpu *gpu, uint64_t to, uint64_t from, size_t size, unsigned repeat);

#endif
