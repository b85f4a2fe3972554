/* The kernels of one device: the embedded ones, cuBLASLt's, and the limits of users' kernels. Fixed once they are
 * loaded. */
#ifndef KOPS_CUDA_KERNELS_H
#define KOPS_CUDA_KERNELS_H

#include <stdatomic.h>

#include "core/kernel.h"
#include "embedded.h"
#include "variants.h"

struct backend_config;
struct blaslt;
struct cuda_device;
struct tuning_table;

struct cuda_kernels {
    struct cuda_device *device;
    struct cuda_embedded embedded;
    struct cuda_variants variants;
    struct kernel_limits limits;
    struct blaslt *blaslt;             /* NULL: no cuBLASLt here */
    uint64_t workspace_bytes;          /* of each device queue, for cuBLASLt */
    const struct tuning_table *tuning; /* NULL: nothing is looked up */
    atomic_ullong machine;             /* see tuned.h; 0: not known yet */
};

/* Fills in all but the embedded kernels. The device need not be active. */
void cuda_kernels_describe(struct cuda_kernels *k, struct cuda_device *d, bool have_blaslt,
                           const struct backend_config *config);
/* Loads the embedded kernels of an active device, which stays active until they are unloaded. */
int cuda_kernels_load(struct cuda_kernels *k, struct error *e);
void cuda_kernels_unload(struct cuda_kernels *k);
/* Frees all of it, loaded or not. A device that was active still is. */
void cuda_kernels_close(struct cuda_kernels *k);

#endif
