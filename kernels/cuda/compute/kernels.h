/* The kernels of one device: the embedded ones, cuBLASLt's, the limits of users' kernels, and what tuning has chosen.
 * Fixed once they are loaded. */
#ifndef KOPS_CUDA_KERNELS_H
#define KOPS_CUDA_KERNELS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "backend/backend.h"
#include "core/kernel.h"
#include "core/tuning.h"
#include "embedded.h"
#include "ops/launch.h"

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
    uint64_t workspace_bytes;          /* of each device queue, for cuBLASLt */
    const struct tuning_table *tuning; /* NULL: nothing is looked up */
    atomic_ullong machine;             /* a hash of cuda_tuned_machine(); 0: not known yet */
};

/* Fills in all but the embedded kernels. The device need not be active. */
void cuda_kernels_describe(struct cuda_kernels *k, struct cuda_device *d, bool have_blaslt,
                           const struct backend_config *config);
/* Frees all of it, whether the embedded kernels are loaded or not. The device stays as it is. */
void cuda_kernels_close(struct cuda_kernels *k);

/* ---- variants ---- */

extern const char cuda_variant_blaslt[];

/* variants() of struct backend. */
const char *const *cuda_variants_find(const struct cuda_variants *v, const struct op *op, enum dtype dtype);

/* The variant that a step with nothing to do answers with. */
const char *cuda_variants_nominal(const struct cuda_variants *v, const struct step *step);

/* ---- what tuning has chosen, in the table that the daemon writes; thread: any ---- */

/* What choices depend on beside the problem: the kind of GPU, the driver, cuBLASLt, our own kernels. Loads cuBLASLt
 * where it is to be loaded late. May block. */
void cuda_tuned_machine(const struct cuda_kernels *k, char *into, size_t size);

/* The key of a step with this plan at these addresses. Error: unsupported, there is nothing to choose among. May block
 * the first time, as cuda_tuned_machine(). */
int cuda_tuned_key(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses,
                   struct tuning_key *ret, struct error *e);

/* Whether cuda_tuned_find() can tell: the machine's key is known, or there are no choices at all. With `may_block`
 * always true. */
bool cuda_tuned_is_known(const struct cuda_kernels *k, bool may_block);

/* The choice for the plan at these addresses. False: there is none, or the machine's key is not known yet and
 * `may_block` is false. */
bool cuda_tuned_find(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses, bool may_block,
                     struct tuning_choice *ret);

#endif
