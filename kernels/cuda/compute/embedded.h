/* The embedded kernels of one device: modules, loaded when the device becomes active and read-only after, and
 * functions by name. Thread: any. */
#ifndef KOPS_CUDA_EMBEDDED_H
#define KOPS_CUDA_EMBEDDED_H

#include <cuda.h>

#include "ops/launch.h"
#include "util/error.h"

struct backend_device_info;
struct backend_image;
struct cuda_device;
struct cuda_embedded_kernel;
struct cuda_queue;

struct cuda_embedded {
    CUmodule *modules; /* a module for each binary */
    unsigned n_modules;
    struct cuda_embedded_kernel *table; /* open addressing */
    unsigned mask;
    CUdeviceptr stamp_counts; /* kops_stamp_counts of stamp.cu */
};

/* Describes the device to the launchers. */
struct cuda_ops_device cuda_embedded_device(const struct backend_device_info *info);

int cuda_embedded_load(const struct cuda_device *d, struct cuda_embedded *k, struct error *e);
/* Harmless where nothing is loaded. */
void cuda_embedded_unload(const struct cuda_device *d, struct cuda_embedded *k);

/* NULL when no binary has the kernel. get() has an error then. */
CUfunction cuda_embedded_find(const struct cuda_embedded *k, const char *name);
int cuda_embedded_get(const struct cuda_embedded *k, const char *name, CUfunction *ret, struct error *e);

/* image() of struct backend. */
bool cuda_embedded_image(const char *name, size_t length, struct backend_image *ret_image);

/* The driver's function for the launchers. */
cuda_ops_encoder cuda_embedded_encoder;

/* Encodes the maps of a launch, once, before it is enqueued. */
int cuda_embedded_encode(struct cuda_launch *l, struct error *e);

int cuda_embedded_launch(const struct cuda_queue *q, CUfunction function, struct cuda_launch *l, struct error *e);

#endif
