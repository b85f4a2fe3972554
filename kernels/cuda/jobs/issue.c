/* Submits jobs to their streams, and enqueues their executions as far ahead of the GPU as the windows allow. */
#include "executor.h"

#include <string.h>

#include "compute/kernels.h"
#include "memory/operand.h"
#include "util/clock.h"

_Static_assert((int)STAMPS_WINDOW < (int)MARKS_WINDOW, "each execution in flight has a mark");

/* Launches block when a channel's queue of some 1000 is full. */
enum {
    STREAM_WINDOW = STAMPS_WINDOW, /* executions of all jobs of a stream */
    STEP_WINDOW = 512,             /* launches of all executions of a stream; a sequence has at most as many ops */
    COPY_LAUNCHES = 2              /* added to a staged step, where the job has several: copies in and out */
};

static uint32_t executions_of(const struct backend_job *base)
{
    return base->counters || backend_job_is_empty(base) ? 0 : base->warmup + base->repeat; /* a thread has counted */
}

static void cancel(struct backend_job *base)
{
    struct error e;

    error_set(&e, ERROR_CANCELLED, "the job was cancelled; its outputs are undefined when it had started");
    cuda_job_fail(base, &e);
}

/* ---- beginning ---- */

static int provide_memory(struct cuda_stream *s, const struct cuda_work *work, struct error *e)
{
    if (work->workspace && cuda_stream_need_workspace(s, e) < 0)
        return -1;
    return cuda_queue_need_scratch(&s->queue, work->scratch, e);
}

/* Provides cuBLASLt's workspace and scratch memory. If there is no memory for copies, operands are not copied; if there
 * is none for the workspace either, an embedded kernel takes cuBLASLt's place. */
static int provide(struct cuda_stream *s, const struct step *step, struct cuda_work *work, struct error *e)
{
    const struct cuda_kernels *kernels = s->executor->kernels;
    const bool copied = work->repack;

    if (provide_memory(s, work, e) == 0)
        return 0;
    if (step_variant(step) || cuda_device_is_broken(s->queue.device))
        return -1;
    if (copied && cuda_work_prepare_plain(kernels, step, work, e) == 0 && provide_memory(s, work, e) == 0)
        return 0;
    return cuda_device_is_broken(s->queue.device) ? -1 : cuda_work_prepare_own(kernels, step, work, e);
}

static int start_step(struct cuda_stream *s, struct step *step, struct cuda_step *own, bool prepared, struct error *e)
{
    if (plan_is_empty(&step->plan)) {
        step_copy_variant(step->variant_used, cuda_variants_nominal(&s->executor->kernels->variants, step));
        return 0;
    }
    if ((!prepared && cuda_prepare_step(s, step, own, e) < 0) || provide(s, step, &own->work, e) < 0)
        return -1;
    step_copy_variant(step->variant_used, own->work.variant);
    return 0;
}

/* A step may begin early only right after a user's kernel of the same execution. It must not begin before another job's
 * work has ended. */
static void find_early(const struct backend_job *base, struct cuda_job *job)
{
    const struct cuda_step *before = NULL;

    for (unsigned i = 0; i < base->n_steps; i++) {
        struct cuda_step *step = &job->steps[i];
        const bool kernel = base->steps[i].plan.kind == PLAN_KERNEL;

        if (!step->work.variant)
            continue;
        step->work.early = kernel && base->steps[i].plan.kernel.pdl && before && !step->staged;
        before = kernel && !step->staged ? step : NULL;
    }
}

/* Enqueues copies that the thread left for now: right before the kernel no other process's time slice comes between. */
static int copy_in(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    struct cuda_staging *staging = cuda_job_staging(job);

    if (!staging || (job->prepared && !cuda_staging_is_quick(staging)))
        return 0;
    base->started_ns = clock_now_ns();
    return cuda_staging_copy_in(&s->queue, staging, cuda_job_copies_are_timed(base), e);
}

static int start(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    if (base->counters)
        return 0;
    if (!job->prepared && cuda_graph_is_wanted(base))
        job->graph = cuda_graph_find(&s->executor->capture, base);
    if (job->graph) {
        cuda_graph_name_variants(job->graph, base);
    } else {
        if (!job->steps && cuda_job_take_steps(s->queue.device, job, base, e) < 0)
            return -1;
        job->launches = 0;
        for (unsigned i = 0; i < base->n_steps; i++) {
            if (start_step(s, &base->steps[i], &job->steps[i], job->prepared, e) < 0) {
                backend_job_blame(base, i, e);
                return -1;
            }
            job->launches += job->steps[i].work.launches;
            if (base->n_steps > 1 && job->steps[i].staged)
                job->launches += COPY_LAUNCHES;
        }
        find_early(base, job);
    }
    return copy_in(s, base, job, e);
}

/* ---- one execution ---- */

static void write_value(CUstreamBatchMemOpParams *op, CUdeviceptr address, uint64_t value)
{
    memset(op, 0, sizeof(*op));
    op->writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    op->writeValue.address = address;
    op->writeValue.value64 = value;
}

/* Enqueues the mark behind an execution. The job's signal comes before our flag: that is faster on the GPU, and
 * guarantees that an ended job's signal has been written. */
static int mark_end(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, bool signal,
                    struct cuda_execution *x, struct error *e)
{
    struct cuda_device *d = s->queue.device;
    CUstreamBatchMemOpParams ops[2];
    unsigned n = 0;

    x->end = NULL;
    x->mark = 0;
    if (x->start && s->flag && cuda_event_mark(d, cuda_end_kind(s, x), s->queue.stream, &x->end, e) < 0)
        return -1;
    cuda_timed_enqueued(s, x);
    if (signal)
        write_value(&ops[n++], cuda_signal_address(d, &base->signal), base->signal.value);
    if (s->flag)
        write_value(&ops[n++], s->flag_address, cuda_marks_next(&s->marks, &s->streams->random));
    if (n && CUDA_CALL(d, e, StreamBatchMemOp, s->queue.stream, n, ops, 0) < 0) {
        /* The event stays recorded until its next use. */
        cuda_event_return(d, cuda_end_kind(s, x), x->end);
        return -1;
    }
    if (s->flag)
        x->mark = cuda_marks_issue(&s->marks);
    else if (cuda_event_mark(d, cuda_end_kind(s, x), s->queue.stream, &x->end, e) < 0)
        return -1; /* without a flag the event comes last, behind the signal */
    job->signalled = job->signalled || signal;
    return 0;
}

/* Issues a staged step, of a job with several. Its copies are excluded from recorded times. */
static int issue_staged(struct cuda_stream *s, struct cuda_step *step, const struct cuda_execution *x, struct error *e)
{
    struct cuda_staging *staging = &step->staged->staging;
    int r;

    cuda_recorded_end(x);
    r = cuda_staging_copy_in(&s->queue, staging, false, e);
    cuda_recorded_resume(x);
    if (r < 0 || cuda_work_issue(&s->queue, &step->work, e) < 0)
        return -1;
    cuda_recorded_end(x);
    r = cuda_staging_write_back(&s->queue, staging, false, e);
    cuda_recorded_resume(x);
    return r;
}

static int issue_step(struct cuda_stream *s, struct cuda_step *step, bool alone, const struct cuda_execution *x,
                      struct error *e)
{
    if (!step->work.variant)
        return 0; /* the step has no elements */
    return step->staged && !alone ? issue_staged(s, step, x, e) : cuda_work_issue(&s->queue, &step->work, e);
}

static int issue_work(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct cuda_execution *x,
                      struct error *e)
{
    if (job->graph)
        return CUDA_CALL(s->queue.device, e, GraphLaunch, cuda_graph_exec(job->graph), s->queue.stream);
    for (unsigned i = 0; i < job->n_steps; i++) {
        if (issue_step(s, &job->steps[i], job->n_steps == 1, x, e) < 0) {
            backend_job_blame(base, i, e);
            return -1;
        }
        /* The gate opens after the first step: the others are enqueued while that runs. */
        if (job->n_steps > 1)
            cuda_gate_open(&x->gate);
    }
    return 0;
}

/* Enqueues copies back before the mark of the last execution, which then also marks their end. Left to issue_tail()
 * where copies are timed, and where the execution is timed by events, whose end must not come behind the copies. */
static int write_back(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job,
                      const struct cuda_execution *x, struct error *e)
{
    struct cuda_staging *staging = cuda_job_staging(job);

    if (!staging || cuda_job_copies_are_timed(base) || x->start)
        return 0;
    if (cuda_staging_write_back(&s->queue, staging, false, e) < 0)
        return -1;
    job->written_back = true;
    return 0;
}

static int issue_one(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    struct cuda_execution *x = &job->executions[job->issued % JOB_WINDOW];
    const bool timed = base->timing && job->issued >= base->warmup;
    const bool last = job->issued + 1 == executions_of(base);
    struct cuda_device *d = s->queue.device;
    struct error ignored;
    bool signals;
    int r;

    cuda_timed_init(x);
    x->steps = job->launches;
    if (timed && cuda_timed_begin(s, base, job, x, e) < 0)
        return -1;
    /* A launch that returns an error may still be on the device. */
    if (!base->started_ns)
        base->started_ns = clock_now_ns();
    cuda_recorded_choose(x);
    r = issue_work(s, base, job, x, e);
    cuda_recorded_end(x);
    if (r == 0 && last)
        r = write_back(s, base, job, x, e);
    signals = last && base->signal.page && (!cuda_job_staging(job) || job->written_back);
    /* Part of the work may be in flight, even after a failure. */
    if (mark_end(s, base, job, signals, x, r < 0 ? &ignored : e) < 0)
        goto lose_track;
    job->issued++;
    s->in_flight++;
    s->steps_in_flight += x->steps;
    s->recorded += x->ticket != 0;
    s->executor->recorded.under_way += x->ticket != 0;
    return r;

lose_track:
    /* The end of the work would go unseen, so its memory could not be freed safely. */
    cuda_device_break(d, CUDA_ERROR_UNKNOWN);
    cuda_event_return(d, EVENT_TIMED, x->start);
    return -1;
}

/* ---- the end ---- */

/* Enqueues the copies back, the freeing of scratch memory, and the event behind them. */
static int issue_tail(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    struct cuda_staging *staging = cuda_job_staging(job);
    int r = 0;

    if (staging && !base->failed && !job->written_back)
        r = cuda_staging_write_back(&s->queue, staging, cuda_job_copies_are_timed(base), e);
    for (unsigned i = 0; job->steps && i < job->n_steps; i++)
        if (job->steps[i].staged)
            cuda_staging_free(&s->queue, &job->steps[i].staged->staging);
    if (staging && !job->written_back &&
        cuda_event_mark(s->queue.device, EVENT_TIMED_END, s->queue.stream, &job->tail, e) < 0) {
        cuda_device_break(s->queue.device, CUDA_ERROR_UNKNOWN);
        r = -1;
    }
    return r;
}

/* Issues the signal of a job that is empty or has failed, so that no execution carried it. */
static int issue_signal(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    struct cuda_execution *x = &job->executions[job->issued % JOB_WINDOW];

    cuda_timed_init(x);
    x->steps = 0;
    if (mark_end(s, base, job, true, x, e) < 0) {
        cuda_device_break(s->queue.device, CUDA_ERROR_UNKNOWN);
        return -1;
    }
    job->issued++;
    s->in_flight++;
    return 0;
}

/* ---- the windows ---- */

static bool windows_are_full(const struct cuda_stream *s, const struct cuda_job *job)
{
    return job->issued - job->ended >= JOB_WINDOW || s->in_flight >= STREAM_WINDOW ||
           (s->steps_in_flight && s->steps_in_flight + job->launches > STEP_WINDOW);
}

static void begin(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job)
{
    struct error e;

    job->state = JOB_ISSUING;
    if (base->failed)
        return;
    if (atomic_load_explicit(&base->cancel, memory_order_relaxed))
        cancel(base);
    else if (start(s, base, job, &e) < 0)
        cuda_job_fail(base, &e);
}

static void prepare(void *argument)
{
    struct backend_job *base = argument;
    struct cuda_job *job = base->impl;
    struct error e;

    if (cuda_prepare(job->stream, base, job, &e) < 0)
        cuda_job_fail(base, &e);
    atomic_store_explicit(&job->answered, true, memory_order_release);
}

/* Takes the result of the thread that prepared the job. After a failure the job only has to end. */
static void take_answer(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job)
{
    struct cuda_job_pool *pool = &s->executor->job_pool;

    s->queue.device->base.active = true;
    base->prepared = job->prepared = true;
    if (!base->failed)
        return;
    cuda_job_give(pool, job);
    base->impl = cuda_job_take(pool);
}

/* Gives the job to a thread if preparing may block, once the stream's earlier jobs have ended; later jobs wait. False:
 * the job is not prepared yet. */
static bool is_prepared(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job)
{
    if (job->state == JOB_PREPARING) {
        if (!atomic_load_explicit(&job->answered, memory_order_acquire))
            return false;
        take_answer(s, base, job);
        return true;
    }
    if (atomic_load_explicit(&base->cancel, memory_order_relaxed))
        return true;
    /* Asked once: a job of many steps that waits is looked at in every poll. */
    if (job->state != JOB_WAITING && !cuda_needs_prepare(s->executor, base))
        return true;
    job->state = JOB_WAITING;
    if (s->jobs.next != &base->link)
        return false;
    job->stream = s;
    job->state = JOB_PREPARING;
    if (!cuda_waiters_call(s->executor->waiters, prepare, base))
        job->state = JOB_WAITING;
    return false;
}

/* True: all of the job is issued. Never true on a broken context, where poll() fails the job. */
static bool issue(struct cuda_stream *s, struct backend_job *base)
{
    struct cuda_job *job = base->impl;
    uint32_t total = executions_of(base);
    struct error e;

    if (job && job->state < JOB_ISSUING) {
        if (!is_prepared(s, base, job))
            return false;
        job = base->impl;
    }
    if (!job) {
        error_set(&e, ERROR_OUT_OF_MEMORY, "no memory for a job");
        cuda_job_fail(base, &e);
        return true;
    }
    if (job->state < JOB_ISSUING)
        begin(s, base, job);
    while (!base->failed && job->issued < total) {
        if (windows_are_full(s, job))
            return false;
        if (atomic_load_explicit(&base->cancel, memory_order_relaxed))
            cancel(base);
        else if (issue_one(s, base, job, &e) < 0)
            cuda_job_fail(base, &e);
    }
    if (base->signal.page && !job->signalled && windows_are_full(s, job))
        return false;
    if (issue_tail(s, base, job, &e) < 0)
        cuda_job_fail(base, &e);
    if (base->signal.page && !job->signalled && !cuda_device_is_broken(s->queue.device) &&
        issue_signal(s, base, job, &e) < 0)
        cuda_job_fail(base, &e);
    if (cuda_device_is_broken(s->queue.device))
        return false;
    job->state = JOB_ISSUED;
    return true;
}

void cuda_stream_issue(struct cuda_stream *s)
{
    while (s->next != &s->jobs && !cuda_device_is_broken(s->queue.device)) {
        if (!issue(s, list_entry(s->next, struct backend_job, link)))
            return;
        s->next = s->next->next;
    }
}

bool cuda_submit(struct backend_stream *stream, struct backend_job *base)
{
    struct cuda_stream *s = cuda_stream(stream);
    struct cuda_executor *x = s->executor;
    struct error ignored;

    base->impl = cuda_job_take(&x->job_pool);
    if (list_empty(&s->jobs)) {
        list_append(&x->busy, &s->link);
        x->progress_ns = clock_now_ns();
    }
    list_append(&s->jobs, &base->link);
    s->unfinished++;
    if (s->next == &s->jobs)
        s->next = &base->link;
    x->unfinished++;
    /* On a broken device poll() fails the job. */
    if (cuda_enter(x->device, &ignored) == 0)
        cuda_stream_issue(s);
    return true;
}
