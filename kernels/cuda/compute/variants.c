/* Owns the table of variant names. */
#include "variants.h"

#include <string.h>

#include "ops/launch.h"
#include "repack_sketch.h"
#include "transfer.h"
#include "user_kernel.h"

const char cuda_variant_blaslt[] = "cublaslt";

static void init_one(const char **names, enum op_id op, enum dtype dtype, enum cuda_ops_level level, bool have_blaslt,
                     bool have_copies)
{
    const char *const *own = cuda_ops_variants(op, dtype, level), *const *repacked = repack_variants(op, dtype);
    unsigned n = 0;

    if (!own)
        return;
    if ((op == OP_GEMM || op == OP_LINEAR || op == OP_SCALED_GEMM) && have_blaslt)
        names[n++] = cuda_variant_blaslt;
    for (; have_blaslt && *repacked; repacked++)
        if (have_copies || strcmp(*repacked, repack_activated) == 0)
            names[n++] = *repacked;
    while (*own)
        names[n++] = *own++;
    if (op == OP_COPY)
        names[n++] = cuda_variant_transfer;
}

void cuda_variants_init(struct cuda_variants *v, enum cuda_ops_level level, bool have_blaslt, bool have_copies)
{
    memset(v, 0, sizeof(*v));
    for (unsigned op = 0; op < OP_COUNT; op++) {
#define X(NAME, name, value, size)                                                                                     \
    init_one(v->names[op][DTYPE_##NAME], (enum op_id)op, DTYPE_##NAME, level, have_blaslt, have_copies);
        KOPS_DTYPES(X)
#undef X
    }
}

const char *const *cuda_variants_find(const struct cuda_variants *v, const struct op *op, enum dtype dtype)
{
    const char *const *names = v->names[op->id][dtype];

    return names[0] ? names : NULL;
}

const char *cuda_variants_nominal(const struct cuda_variants *v, const struct step *step)
{
    if (step->plan.kind == PLAN_KERNEL)
        return cuda_variant_user;
    return step_variant(step) ? step_variant(step) : v->names[(enum op_id)step->op][step->plan.dtype][0];
}
