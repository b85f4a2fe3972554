/* The kernels of one device: the embedded ones, cuBLASLt's, the limits of users' kernels, and the choices of the
 * tuning. Constant once they are loaded. */
#ifndef KOPS_CUDA_KERNELS_H
#define KOPS_CUDA_KERNELS_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "backend/backend.h"
#include "core/kernel.h"
#include "core/tuning.h"
#include "ops/launch.h"
#include "util/error.h"

/* ---- the embedded kernels: modules, loaded when the device becomes active and read-only after, and functions by name.
 * Thread: any. ---- */

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

struct blaslt;
struct cuda_device;

enum { CUDA_DTYPE_SLOTS = 32 }; /* dtypes are bits of an unsigned */

/* The names of the kernels that may serve an op, as clients see them. */
struct cuda_variants {
    const char *names[OP_COUNT][CUDA_DTYPE_SLOTS][BACKEND_MAX_VARIANTS + 1]; /* best first, NULL-terminated */
};

struct cuda_kernels {
    struct cuda_device *device;
    struct cuda_embedded embedded;
    struct cuda_variants variants;
    struct kernel_limits limits;
    struct blaslt *blaslt;             /* NULL: no cuBLASLt here */
    uint64_t workspace_bytes;          /* cuBLASLt's scratch of each device queue */
    const struct tuning_table *tuning; /* NULL: there are no choices */
    atomic_ullong machine;             /* a hash of cuda_tuned_machine(); 0: not known yet */
};

/* Fills in all but the embedded kernels. The device need not be active. */
void cuda_kernels_describe(struct cuda_kernels *k, struct cuda_device *d, bool have_blaslt,
                           const struct backend_config *config);
/* Frees everything, whether the embedded kernels are loaded or not. The device stays active. */
void cuda_kernels_close(struct cuda_kernels *k);

/* ---- variants ---- */

extern const char cuda_variant_blaslt[];

/* variants() of struct backend. */
const char *const *cuda_variants_find(const struct cuda_variants *v, const struct op *op, enum dtype dtype);

/* Returns the variant that is reported for a step without elements. */
const char *cuda_variants_nominal(const struct cuda_variants *v, const struct step *step);

/* ---- choices of the tuning, in the table that the daemon writes; thread: any ---- */

/* Writes the machine's key, on which choices depend beside the problem: the kind of GPU, the driver, cuBLASLt, our
 * own kernels. Loads cuBLASLt, if that is still to be done. May block. */
void cuda_tuned_machine(const struct cuda_kernels *k, char *into, size_t size);

/* The key of a step with this plan at these addresses. Error: unsupported, there is nothing to choose among. May block
 * the first time, as cuda_tuned_machine(). */
int cuda_tuned_key(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses,
                   struct tuning_key *ret, struct error *e);

/* Whether cuda_tuned_find() can answer: the machine's key is known or may be found, or the table is empty. */
bool cuda_tuned_is_known(const struct cuda_kernels *k, bool may_block);

/* The choice for the plan at these addresses. False: there is none, or the machine's key is not known yet and
 * `may_block` is false. */
bool cuda_tuned_find(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses, bool may_block,
                     struct tuning_choice *ret);

#endif
