/* The embedded kernels of one device: modules loaded at open, functions by name, occupancy cached. */
#ifndef KOPS_CUDA_KERNELS_H
#define KOPS_CUDA_KERNELS_H

#include <cuda.h>
#include <pthread.h>
#include <stdint.h>

#include "util/error.h"

struct cuda_device;

enum { CUDA_OCCUPANCIES = 4 }; /* remembered per kernel: launchers use one or two block sizes */

struct cuda_kernel {
    const char *name;
    CUfunction function;
    struct {
        unsigned block, shared, blocks;
    } occupancies[CUDA_OCCUPANCIES]; /* under cuda_kernels.lock; blocks 0: free */
};

struct cuda_kernels {
    CUmodule *modules; /* one an image */
    unsigned n_modules;
    struct cuda_kernel *table; /* open addressing; a NULL name is a free place */
    unsigned mask;
    pthread_mutex_t lock;
};

/* Loads every image and looks up every kernel in the device's context. */
int cuda_kernels_load(struct cuda_device *d, struct cuda_kernels *k, struct error *e);
void cuda_kernels_unload(struct cuda_device *d, struct cuda_kernels *k);

/* NULL when no image has it. */
CUfunction cuda_kernels_find(struct cuda_kernels *k, const char *name);

/* Blocks that fit on one multiprocessor, at least 1. Thread: any. */
unsigned cuda_kernels_occupancy(struct cuda_device *d, struct cuda_kernels *k, const char *name, unsigned block,
                                unsigned shared);

#endif
