/* Executes jobs. */
#include "progress.h"

#include "owners.h"
#include "util/clock.h"

static const uint64_t SLICE_NS = OWNERS_QUANTUM_NS;

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

/* The time until other streams get their turn. */
struct slice {
    uint64_t end;
    const atomic_uint *waiting; /* the number of streams that wait; NULL: none can */
};

static bool slice_is_over(const struct slice *slice)
{
    return slice->waiting && atomic_load_explicit(slice->waiting, memory_order_relaxed) > 0 &&
           clock_now_ns() >= slice->end;
}

/* Executes one step. Items that were not begun when the job is cancelled are left out. */
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

/* Executes the remaining steps of one execution in order, until the last one (p->step says so) or until the time slice
 * is over. A single step has its execution from begin(). */
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
