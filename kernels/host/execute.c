/* Decides where and how steps are executed. */
#include "execute.h"

#include <string.h>

#include "backend/memory_ids.h"
#include "device.h"
#include "elementwise.h"
#include "gemm.h"
#include "gemm_way.h"
#include "linear.h"
#include "scaled.h"

enum {
    INLINE_NS = 4000,         /* less than the cost of handing a job to another thread and back */
    LIGHT_NS = 30000,         /* several threads would not make such a job faster */
    ONE_THREAD = 64 * 64 * 64 /* m·n·k up to which BLAS libraries use the calling thread alone */
};

const char *const *execute_variants(struct host_device *device, const struct op *op, enum dtype dtype)
{
    if (!(op->dtypes & DTYPE_BIT(dtype)))
        return NULL;
    if (op->id == OP_GEMM || op->id == OP_LINEAR)
        return device->gemm.variants[dtype];
    if (op->id == OP_SCALED_GEMM)
        return device->gemm.variants[DTYPE_F32];
    return kernels_generic.elementwise[op->id][dtype] ? device->elementwise_variants : NULL;
}

/* The cost of one execution of the step on one thread; *ret_heavy: all threads should share it. */
static double step_cost_ns(const struct step *step, bool *ret_heavy)
{
    const struct plan_gemm *g = &step->plan.gemm;
    double mn, k, ns;

    *ret_heavy = false;
    if (plan_is_empty(&step->plan))
        return 0;
    if (step->plan.kind == PLAN_ELEMENTWISE) {
        ns = elementwise_cost_ns(op_get((enum op_id)step->op), &step->plan);
    } else {
        ns = gemm_cost_ns(&step->plan);
        mn = (double)g->m * (double)g->n;
        k = (double)g->k;
        *ret_heavy = mn * k > ONE_THREAD || ((g->m == 1 || g->n == 1) && mn * k > 8192);
    }
    *ret_heavy = *ret_heavy || ns > LIGHT_NS;
    return ns;
}

enum execute_place execute_place(struct host_device *device, const struct backend_job *job)
{
    const double executions = (double)job->warmup + job->repeat;
    bool needs_worker = false;
    double ns = 0;

    for (unsigned i = 0; i < job->n_steps; i++) {
        const struct step *step = &job->steps[i];
        bool heavy;

        ns += step_cost_ns(step, &heavy);
        if (heavy)
            return EXECUTE_HEAVY;
        needs_worker = needs_worker ||
                       (step->plan.kind == PLAN_GEMM && !plan_is_empty(&step->plan) && gemm_needs_worker(device, step));
    }
    if (ns * executions > INLINE_NS)
        return EXECUTE_LIGHT;
    return needs_worker ? EXECUTE_LIGHT : EXECUTE_INLINE;
}

static const struct kernels *kernels_named(const char *name)
{
    for (int isa = CPU_ISAS - 1; isa >= CPU_GENERIC; isa--) {
        const struct kernels *kernels = kernels_get((enum cpu_isa)isa);

        if (kernels && !strcmp(kernels->name, name))
            return kernels;
    }
    return NULL;
}

int execute_begin(struct host_device *device, const struct thread_context *context, const struct step *step,
                  struct execution *ret_execution, struct error *e)
{
    struct execution x = {0};

    if (step->plan.kind == PLAN_GEMM && step->plan.gemm.has_scales) {
        struct step product = *step;

        product.plan = scaled_product(&step->plan); /* of f32: that is what is chosen a way for */
        return gemm_begin(device, context, &product, ret_execution, e);
    }
    if (step->plan.kind == PLAN_GEMM)
        return gemm_begin(device, context, step, ret_execution, e);
    x.variant = step_variant(step) ? step_variant(step)
                                   : execute_variants(device, op_get((enum op_id)step->op), step->plan.dtype)[0];
    x.kernels = kernels_named(x.variant);
    *ret_execution = x;
    return 0;
}

/* The only place of this backend that follows an operand's reference to memory. NULL for an empty tensor that lies
 * nowhere. */
static unsigned char *operand_address(const struct step_operand *o)
{
    const struct backend_memory *memory = memory_by_id(o->memory);

    return memory ? memory->host + o->offset : NULL;
}

/* What the product of a step with more operands needs beside its plan. */
struct multiplier {
    struct host_device *device;
    const struct thread_context *context;
    const struct step *step;
    const struct execution *execution;
};

static int multiply(void *context, const struct plan *plan, unsigned char *const *pointers, struct error *e)
{
    const struct multiplier *m = context;
    struct step product = *m->step;

    product.plan = *plan;
    return gemm_run(m->device, m->context, &product, pointers, m->execution, e);
}

/* A product that is followed by a pass over its sums. */
static int run_more(struct host_device *device, const struct thread_context *context, const struct step *step,
                    unsigned char *const *pointers, const struct execution *x, struct error *e)
{
    struct multiplier m = {device, context, step, x};
    const struct linear_call linear = {.plan = &step->plan,
                                       .pointers = pointers,
                                       .kernels = kernels_best(),
                                       .pool = context->pool,
                                       .product = multiply,
                                       .context = &m};

    return step->plan.gemm.has_scales ? scaled_run(&linear, e) : linear_run(&linear, e);
}

int execute_once(struct host_device *device, const struct thread_context *context, const struct step *step,
                 const struct execution *x, struct error *e)
{
    const unsigned operands = step_operands(step);
    unsigned char *pointers[PLAN_MAX_OPERANDS] = {NULL};
    struct guard_range ranges[PLAN_MAX_OPERANDS];
    unsigned n_ranges = 0;
    int result = 0;

    if (plan_is_empty(&step->plan))
        return 0;
    for (unsigned i = 0; i < operands; i++) {
        const uintptr_t start = (uintptr_t)(pointers[i] = operand_address(&step->operands[i]));

        if (start)
            ranges[n_ranges++] = (struct guard_range){start, start + step->operands[i].extent};
    }
    guard_begin(context->guard, ranges, n_ranges);
    if (step->plan.kind == PLAN_GEMM) {
        result = plan_gemm_extras(&step->plan.gemm) ? run_more(device, context, step, pointers, x, e)
                                                    : gemm_run(device, context, step, pointers, x, e);
    } else {
        const bool bypass = step->in_place < 0 && step->operands[operands - 1].extent > device->bypass_bytes;

        elementwise_run(context->pool, x->kernels, op_get((enum op_id)step->op), &step->plan, pointers, bypass);
    }
    if (guard_end(context->guard))
        return error_set(e, ERROR_MEMORY_FAULT,
                         "pages of shared memory behind a tensor are gone; do not truncate what is registered");
    return result;
}
