/* Which kernels may serve an op on one device, by the names that clients see. */
#ifndef KOPS_CUDA_VARIANTS_H
#define KOPS_CUDA_VARIANTS_H

#include <stdbool.h>

#include "backend/backend.h"

enum { CUDA_DTYPE_SLOTS = 32 }; /* dtypes are bits of an unsigned */

struct cuda_device;

struct cuda_variants {
    const char *names[OP_COUNT][CUDA_DTYPE_SLOTS][BACKEND_MAX_VARIANTS + 1]; /* best first, NULL-terminated */
};

extern const char cuda_variant_blaslt[];

void cuda_variants_init(struct cuda_variants *v, bool have_blaslt);

/* The vtable's variants() and check(). */
const char *const *cuda_variants(struct backend_device *base, const struct op *op, enum dtype dtype);
int cuda_check_step(struct backend_device *base, const struct backend_step *step, struct error *e);

#endif
