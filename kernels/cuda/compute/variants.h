/* The names of the kernels that may serve an op on one device, as clients see them. */
#ifndef KOPS_CUDA_VARIANTS_H
#define KOPS_CUDA_VARIANTS_H

#include <stdbool.h>

#include "backend/backend.h"
#include "ops/launch.h"

enum { CUDA_DTYPE_SLOTS = 32 }; /* dtypes are bits of an unsigned */

struct cuda_variants {
    const char *names[OP_COUNT][CUDA_DTYPE_SLOTS][BACKEND_MAX_VARIANTS + 1]; /* best first, NULL-terminated */
};

extern const char cuda_variant_blaslt[];

/* `have_copies`: there is memory for copies of operands. */
void cuda_variants_init(struct cuda_variants *v, enum cuda_ops_level level, bool have_blaslt, bool have_copies);

/* variants() of struct backend. */
const char *const *cuda_variants_find(const struct cuda_variants *v, const struct op *op, enum dtype dtype);

/* The variant that a step with nothing to do answers with. */
const char *cuda_variants_nominal(const struct cuda_variants *v, const struct step *step);

#endif
