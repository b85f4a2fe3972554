/* Owns the table of variant names, and checks forced ones before anything runs. */
#include "variants.h"

#include <string.h>

#include "blaslt.h"
#include "code.h"
#include "device.h"

const char cuda_variant_blaslt[] = "cublaslt";

static void init_one(const char **names, enum op_id op, enum dtype dtype, bool have_blaslt)
{
    const char *const *own = cuda_ops_variants(op, dtype);
    unsigned n = 0;

    if (!own)
        return;
    if (op == OP_GEMM && have_blaslt)
        names[n++] = cuda_variant_blaslt;
    while (*own && n < BACKEND_MAX_VARIANTS)
        names[n++] = *own++;
}

void cuda_variants_init(struct cuda_variants *v, bool have_blaslt)
{
    memset(v, 0, sizeof(*v));
    for (unsigned op = 0; op < OP_COUNT; op++) {
#define X(NAME, name, value, size) init_one(v->names[op][DTYPE_##NAME], (enum op_id)op, DTYPE_##NAME, have_blaslt);
        KOPS_DTYPES(X)
#undef X
    }
}

const char *const *cuda_variants(struct backend_device *base, const struct op *op, enum dtype dtype)
{
    const char *const *names = cuda_device(base)->variants.names[op->id][dtype];

    return names[0] ? names : NULL;
}

static int check_variant(struct cuda_device *d, const struct backend_step *step, struct error *e)
{
    const char *const *names = cuda_variants(&d->base, step->op, step->plan.dtype);

    if (!names) {
        error_set(e, ERROR_UNSUPPORTED, "%s has no %s kernel for %s", d->base.info.name, step->op->name,
                  dtype_name(step->plan.dtype));
        return -1;
    }
    if (!step->variant)
        return 0;
    for (; *names; names++)
        if (strcmp(*names, step->variant) == 0)
            return 0;
    error_set(e, ERROR_INVALID_ARGUMENT, "%s has no variant \"%.32s\" of %s here; hello lists them", d->base.info.name,
              step->variant, step->op->name);
    return error_detail_text(e, "key", "attrs.variant");
}

/* A forced variant must be able to run this plan; otherwise the request is at fault, so it is told before it is queued.
 * Memory that is not mapped yet is taken to be aligned as allocations are. */
static int check_forced(struct cuda_device *d, const struct backend_step *step, struct error *e)
{
    uint64_t addresses[STEP_MAX_OPERANDS];
    struct cuda_launch launch;

    if (strcmp(step->variant, cuda_variant_blaslt) == 0)
        return blaslt_check(&step->plan, e);
    /* Those behind the op's own are of no step, but of what the memory held before. */
    for (unsigned i = 0; i < step->op->n_inputs + step->op->n_outputs; i++)
        addresses[i] = (step->operands[i].memory ? step->operands[i].memory->address : 0) + step->operands[i].offset;
    /* The launcher may ask for the occupancy of a kernel. */
    if (cuda_enter(d, e) < 0)
        return -1;
    return cuda_ops_launch(step->op->id, &step->plan, addresses, step->variant, &d->launch, &launch, e);
}

static bool stages(const struct backend_step *step)
{
    for (unsigned i = 0; i < step->op->n_inputs + step->op->n_outputs; i++)
        if (step->operands[i].memory && step->operands[i].memory->kind == MEMORY_MEMFD)
            return true;
    return false;
}

int cuda_check_step(struct backend_device *base, const struct backend_step *step, struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    const bool is_users = step->plan.kind == PLAN_KERNEL;

    if ((is_users ? cuda_code_check(d, &step->plan, e) : check_variant(d, step, e)) < 0)
        return -1;
    if (plan_is_empty(&step->plan))
        return 0;
    if (!d->pool && stages(step))
        return error_set(e, ERROR_UNSUPPORTED,
                         "%s has no memory pools, so it cannot copy shared host memory in and out; use device memory",
                         base->info.name);
    return step->variant && !is_users ? check_forced(d, step, e) : 0;
}
