#include "device.h"

#include "backend/memory_ids.h"
#include "executor.h"
#include "gemm.h"
#include "gemm_way.h"
#include "util/clock.h"

static const uint64_t SLICE_NS = OWNERS_QUANTUM_NS;

enum {
    INLINE_NS = 4000,         /* handing a job to another thread and back takes longer */
    LIGHT_NS = 30000,         /* several threads do not make a shorter job faster */
    ONE_THREAD = 64 * 64 * 64 /* up to this m·n·k several threads are no faster */
};

const char *const *execute_variants(struct host_device *device, const struct op *op, enum dtype dtype)
{
    if (!(op->dtypes & DTYPE_BIT(dtype)))
        return NULL;
    if (op->id == OP_GEMM || op->id == OP_LINEAR || op->id == OP_SCALED_GEMM)
        return device->gemm.variants[dtype];
    return kernels_generic.elementwise[op->id][dtype] ? device->elementwise_variants : NULL;
}

/* Estimates the time of an execution of the step on one thread; *ret_heavy: all threads should share it. */
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

/* Resolves the variant and loads its library. Error: unsupported. */
static int execute_begin(struct host_device *device, const struct thread_context *context, const struct step *step,
                         struct execution *ret_execution, struct error *e)
{
    struct execution x = {0};

    if (step->plan.kind == PLAN_GEMM)
        return gemm_begin(device, context, step, ret_execution, e);
    x.variant = step_variant(step) ? step_variant(step)
                                   : execute_variants(device, op_get((enum op_id)step->op), step->plan.dtype)[0];
    x.kernels = kernels_named(x.variant);
    *ret_execution = x;
    return 0;
}

/* Returns the operand's address; NULL for an empty tensor without memory. No other code of this backend uses an
 * operand's reference to memory. */
static unsigned char *operand_address(const struct step_operand *o)
{
    const struct backend_memory *memory = memory_by_id(o->memory);

    return memory ? memory->host + o->offset : NULL;
}

/* Executes a step once. Errors: memory_fault, out_of_memory. */
static int execute_once(struct host_device *device, const struct thread_context *context, const struct step *step,
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
        result = gemm_run(device, context, step, pointers, x, e);
    } else {
        const bool bypass = step->in_place < 0 && step->operands[operands - 1].extent > device->bypass_bytes;

        elementwise_run(context->pool, x->kernels, op_get((enum op_id)step->op), &step->plan, pointers, bypass);
    }
    if (guard_end(context->guard))
        return error_set(e, ERROR_MEMORY_FAULT,
                         "pages of shared memory behind a tensor are gone; do not truncate what is registered");
    return result;
}

/* ---- jobs ---- */

void progress_fail(struct backend_job *job, const struct error *e)
{
    job->failed = true;
    job->error = *e;
}

/* Decides how a step is executed, which may load a library. */
static int begin_step(struct host_device *device, const struct thread_context *context, struct step *step,
                      struct execution *ret_execution, struct error *e)
{
    if (execute_begin(device, context, step, ret_execution, e) < 0)
        return -1;
    step_copy_variant(step->variant_used, ret_execution->variant);
    return 0;
}

/* Decides how each step is executed before anything is timed. */
static int begin(struct host_device *device, const struct thread_context *context, struct progress *p,
                 struct backend_job *job, struct error *e)
{
    for (unsigned i = 0; i < job->n_steps; i++) {
        if (begin_step(device, context, &job->steps[i], &p->execution, e) < 0) {
            backend_job_blame(job, i, e);
            return -1;
        }
    }
    job->started_ns = clock_now_ns();
    return 0;
}

/* A time slice: how long other streams wait for their turn. */
struct slice {
    uint64_t end;
    const atomic_uint *waiting; /* the number of waiting streams; NULL: none can wait */
};

static bool slice_is_over(const struct slice *slice)
{
    return slice->waiting && atomic_load_explicit(slice->waiting, memory_order_relaxed) > 0 &&
           clock_now_ns() >= slice->end;
}

/* Executes a step. When the job is cancelled, items that have not begun are skipped. */
static int execute_step(struct host_device *device, const struct progress *p, const struct backend_job *job,
                        const struct thread_context *context, const struct step *step, struct error *e)
{
    int r;

    pool_watch(context->pool, &job->cancel);
    r = execute_once(device, context, step, &p->execution, e);
    pool_watch(context->pool, NULL);
    if (r == 0 && atomic_load_explicit(&job->cancel, memory_order_relaxed))
        r = error_set(e, ERROR_CANCELLED, "cancelled while it ran");
    return r;
}

/* Executes the remaining steps of an execution in order, until all are done or the time slice is over; p->step tells. A
 * single step was decided by begin(). */
static int execute(struct host_device *device, struct progress *p, struct backend_job *job,
                   const struct thread_context *context, const struct slice *slice, struct error *e)
{
    const unsigned first = p->step;

    for (; p->step < job->n_steps; p->step++) {
        const unsigned i = p->step;
        struct step *step = &job->steps[i];
        bool stopped = i > 0 && atomic_load_explicit(&job->cancel, memory_order_relaxed);

        if (i > first && !stopped && slice_is_over(slice))
            return 0;
        if (stopped)
            error_set(e, ERROR_CANCELLED, "cancelled before op %u", i);
        if (stopped || (job->n_steps > 1 && begin_step(device, context, step, &p->execution, e) < 0) ||
            execute_step(device, p, job, context, step, e) < 0) {
            backend_job_blame(job, i, e);
            return -1;
        }
    }
    return 0;
}

bool progress_run(struct host_device *device, struct progress *p, struct backend_job *job,
                  const struct thread_context *context, const atomic_uint *waiting)
{
    const uint64_t total = (uint64_t)job->warmup + job->repeat;
    const struct slice slice = {.end = waiting ? clock_now_ns() + SLICE_NS : 0, .waiting = waiting};
    struct error e;

    while (p->executed < total) {
        uint64_t start;

        if (atomic_load_explicit(&job->cancel, memory_order_relaxed)) {
            error_set(&e, ERROR_CANCELLED, "cancelled after %llu of %llu executions", (unsigned long long)p->executed,
                      (unsigned long long)total);
            progress_fail(job, &e);
            return true;
        }
        if (p->executed == 0 && p->step == 0 && begin(device, context, p, job, &e) < 0) {
            progress_fail(job, &e);
            return true;
        }
        start = clock_now_ns();
        if (p->executed == job->warmup && !job->gpu_begin_ns)
            job->gpu_begin_ns = start;
        if (execute(device, p, job, context, &slice, &e) < 0) {
            progress_fail(job, &e);
            return true;
        }
        job->gpu_end_ns = clock_now_ns();
        p->spent_ns += job->gpu_end_ns - start;
        if (p->step < job->n_steps)
            return false;
        if (p->executed++ >= job->warmup && job->samples)
            job->samples[job->n_samples++] = clock_us_between(0, p->spent_ns);
        p->step = 0;
        p->spent_ns = 0;
        if (p->executed < total && slice_is_over(&slice))
            return false;
    }
    return true;
}
