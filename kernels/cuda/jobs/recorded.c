#include "recorded.h"

#include <stdlib.h>

#include "util/clock.h"

enum {
    EXACT_AT_ONCE = 256, /* records are read before the job's end when so many of its ended executions wait for one */
    EXACT_MAX = 768,     /* with so many waiting, the oldest is given up, before CUPTI's tickets run over */
    ROW_AT_ONCE = 24, /* jobs in a row: records are read for so many executions together, since reading takes 20 us */
    ROW_NS = 200 * 1000,        /* jobs in a row: longest wait for more executions */
    IDLE_NS = 30 * 1000,        /* … where the stream is idle, so its client waits */
    TELL_AT_ONCE = 64,          /* later times are reported when there are so many … */
    TELL_NS = 20 * 1000 * 1000, /* … or after this time; a trace waits 0.2 s for them */
    FLUSH_NS = 500 * 1000,      /* interval of flushes while CUPTI may hold records back */
};

/* A record that is not there so long after the GPU became idle is lost. */
static const uint64_t patience_ns = 100 * 1000 * 1000;

/* A record that is not there so long after its execution is lost, while the GPU is busy. CUPTI delivers a buffer when
 * all launches in it have ended, and launches fill it until it is full, with some 75. A stream whose first job waits
 * stops after 32 more executions, so the time is enough for executions of 60 ms; in statistics of a stream that never
 * stops, for executions of 25 ms. A lost record delays its reply by this time. */
static const uint64_t busy_patience_ns = 2000 * 1000 * 1000ULL;

_Static_assert(2 * ((int)EXACT_MAX + (int)RECORDED_LATE_MAX) <= (int)RECORDS_TICKETS,
               "tickets are not forgotten before they are read");

void cuda_recorded_init(struct cuda_recorded *r)
{
    *r = (struct cuda_recorded){.late_begin = 0};
}

/* ---- executions with records ---- */

static bool are_wanted(const struct backend_job *base, bool stamps, bool in_a_row)
{
    switch (base->timing) {
    case TIMING_EXACT:
        return true;
    case TIMING_NOW:
        return !stamps && in_a_row;
    case TIMING_STATISTIC:
        return !stamps && base->token;
    case TIMING_NONE:
        break;
    }
    return false;
}

bool cuda_recorded_may_be_wanted(const struct backend_job *base, bool busy)
{
    /* Element-wise kernels write stamps. Of other work a later job may be a sample of the statistics. */
    const bool stamps = base->n_steps == 1 && base->steps[0].plan.kind == PLAN_ELEMENTWISE;

    return !stamps || are_wanted(base, stamps, busy || base->repeat > 1);
}

bool cuda_recorded_are_wanted(const struct backend_job *base, bool stamps, bool in_a_row)
{
    return cuda_records_are_on() && are_wanted(base, stamps, in_a_row);
}

int cuda_recorded_begin(struct backend_job *base, struct cuda_job *job, struct cuda_execution *x, struct error *e)
{
    if (base->timing != TIMING_STATISTIC && !job->exact) {
        job->exact = malloc(base->repeat * sizeof(*job->exact));
        if (!job->exact)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for %u times", base->repeat);
    }
    x->ticket = cuda_records_begin(!job->graph);
    return 0;
}

void cuda_recorded_choose(const struct cuda_execution *x)
{
    if (!x->ticket && cuda_records_are_on())
        cuda_records_pause();
}

void cuda_recorded_end(const struct cuda_execution *x)
{
    if (x->ticket)
        cuda_records_end();
}

void cuda_recorded_resume(const struct cuda_execution *x)
{
    if (x->ticket)
        cuda_records_resume(x->ticket);
}

/* ---- times ---- */

void cuda_recorded_note(struct backend_job *base, const struct cuda_clock *clock, const struct cuda_span *span)
{
    if (!base->n_samples)
        base->gpu_begin_ns = clock ? cuda_clock_host_ns(clock, span->begin_ns) : span->begin_ns;
    base->gpu_end_ns = clock ? cuda_clock_host_ns(clock, span->end_ns) : span->end_ns;
    base->samples[base->n_samples++] = (double)(span->end_ns - span->begin_ns) / 1e3;
}

/* ---- flushes and lost records ---- */

/* Notes whether CUPTI may hold records back now. The first look after a busy one still counts as busy, since held
 * records come only now. */
static void look(struct cuda_recorded *r, bool busy, uint64_t now_ns)
{
    if (busy || r->busy)
        r->busy_ns = now_ns;
    r->busy = busy;
}

/* Makes CUPTI deliver records, `at_once` or FLUSH_NS after the last flush. False: not due, or code is being loaded. */
static bool flush(struct cuda_recorded *r, bool at_once, uint64_t now_ns)
{
    if ((!at_once && now_ns - r->flushed_ns < FLUSH_NS) || !cuda_records_flush())
        return false;
    r->flushed_ns = now_ns;
    return true;
}

static bool is_overdue(const struct cuda_recorded *r, const struct cuda_ended *ended, uint64_t now_ns)
{
    if (r->busy)
        return now_ns - ended->seen_ns > busy_patience_ns;
    return now_ns - (ended->seen_ns > r->busy_ns ? ended->seen_ns : r->busy_ns) > patience_ns;
}

/* `flushed`: a flush came right before, so an overdue record is lost. */
static enum cuda_record_state read_one(const struct cuda_recorded *r, const struct cuda_ended *ended, bool flushed,
                                       uint64_t now_ns, struct cuda_span *ret)
{
    const enum cuda_record_state state = cuda_records_read(ended->ticket, ret);

    return state == RECORD_PENDING && flushed && is_overdue(r, ended, now_ns) ? RECORD_MISSING : state;
}

/* ---- jobs that wait for records ---- */

static void take_exact(const struct cuda_recorded *r, struct backend_job *base, struct cuda_job *job, bool flushed,
                       uint64_t now_ns)
{
    struct cuda_span span;

    for (; job->exact_read < job->n_exact; job->exact_read++) {
        const enum cuda_record_state state = read_one(r, &job->exact[job->exact_read], flushed, now_ns, &span);

        if (state == RECORD_PENDING)
            return;
        if (state == RECORD_READY)
            cuda_recorded_note(base, NULL, &span);
    }
}

static void take_some(struct cuda_recorded *r, struct backend_job *base, struct cuda_job *job, uint64_t now_ns)
{
    bool flushed;

    look(r, true, now_ns);
    flushed = flush(r, false, now_ns);
    take_exact(r, base, job, flushed, now_ns);
    while (flushed && job->n_exact - job->exact_read >= EXACT_MAX) {
        job->exact_read++;
        take_exact(r, base, job, flushed, now_ns);
    }
}

void cuda_recorded_ended(struct cuda_recorded *r, struct backend_job *base, struct cuda_job *job,
                         const struct cuda_execution *x, uint64_t seen_ns)
{
    const struct cuda_ended ended = {.ticket = x->ticket, .seen_ns = seen_ns};

    if (base->timing == TIMING_STATISTIC) {
        job->later = ended;
        return;
    }
    job->exact[job->n_exact++] = ended;
    if (job->n_exact - job->exact_read >= EXACT_AT_ONCE)
        take_some(r, base, job, seen_ns);
}

/* Whether to read the job's records now. Exact timing and repeated jobs read at once; single jobs in a row wait for
 * others, to read together. */
static bool are_due(const struct backend_job *base, const struct cuda_rest *rest, uint64_t waited_ns)
{
    return base->timing == TIMING_EXACT || base->repeat > 1 || rest->ended >= ROW_AT_ONCE ||
           waited_ns > (rest->idle ? IDLE_NS : ROW_NS);
}

/* Called at the job's end, since the host does not know the token before. */
static void expect_later(struct cuda_recorded *r, struct backend_job *base, const struct cuda_job *job)
{
    base->timed_later = true;
    if (r->late_end - r->late_begin == RECORDED_LATE_MAX)
        r->late_begin++;
    r->late[r->late_end++ % RECORDED_LATE_MAX] = (struct cuda_late){.ended = job->later, .token = base->token};
}

bool cuda_recorded_collect(struct cuda_recorded *r, struct backend_job *base, struct cuda_job *job,
                           const struct cuda_rest *rest)
{
    uint64_t now_ns, waited_ns;
    bool flushed;

    if (job->later.ticket)
        expect_later(r, base, job);
    if (job->exact_read < job->n_exact)
        take_exact(r, base, job, false, 0); /* records that came with other jobs' */
    if (job->exact_read == job->n_exact)
        return true;
    now_ns = clock_now_ns();
    waited_ns = now_ns - job->exact[job->n_exact - 1].seen_ns;
    if (!are_due(base, rest, waited_ns))
        return false;
    look(r, rest->busy, now_ns);
    /* The last job of an idle stream does not wait for the interval of flushes, which other streams share. */
    flushed = flush(r, !rest->busy || (rest->idle && waited_ns < FLUSH_NS), now_ns);
    take_exact(r, base, job, flushed, now_ns);
    return job->exact_read == job->n_exact;
}

/* ---- times reported after the job's end ---- */

static bool are_to_be_told(const struct cuda_recorded *r, uint64_t now_ns)
{
    const struct cuda_late *oldest = &r->late[r->late_begin % RECORDED_LATE_MAX];

    return r->late_end - r->late_begin >= TELL_AT_ONCE || now_ns > oldest->ended.seen_ns + TELL_NS;
}

bool cuda_recorded_tell(struct cuda_recorded *r, const struct backend_host *host, bool idle, uint64_t now_ns)
{
    struct cuda_span span;
    bool flushed;

    if (r->late_end == r->late_begin || (!idle && !are_to_be_told(r, now_ns)))
        return false;
    now_ns = clock_now_ns();
    look(r, r->under_way, now_ns);
    flushed = flush(r, !r->under_way, now_ns);
    for (; r->late_begin < r->late_end; r->late_begin++) {
        const struct cuda_late *late = &r->late[r->late_begin % RECORDED_LATE_MAX];
        const enum cuda_record_state state = read_one(r, &late->ended, flushed, now_ns, &span);

        if (state == RECORD_PENDING)
            return true;
        if (state == RECORD_READY && host->timed)
            host->timed(host->context, late->token,
                        &(struct backend_times){.begin_ns = span.begin_ns,
                                                .end_ns = span.end_ns,
                                                .us = (double)(span.end_ns - span.begin_ns) / 1e3});
    }
    return false;
}
