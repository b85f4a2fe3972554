/* The kernels of one device: the embedded ones, cuBLASLt's, the limits of users' kernels, and the choices of the
 * tuning. Constant once they are loaded. */
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
