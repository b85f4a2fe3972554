/* Chooses how executions are timed, and reads their times. */
#include "timed.h"

#include <math.h>
#include <stdlib.h>

#include "driver/device.h"
#include "executor.h"
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

/* Whether records time the job's executions. `stamps`: its kernel can write stamps. `in_a_row`: one of many, which
 * events would slow down; no client waits for this one alone. */
static bool cuda_recorded_are_wanted(const struct backend_job *base, bool stamps, bool in_a_row)
{
    return cuda_records_are_on() && are_wanted(base, stamps, in_a_row);
}

/* Gives the execution a ticket. */
static int cuda_recorded_begin(struct backend_job *base, struct cuda_job *job, struct cuda_execution *x,
                               struct error *e)
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

static void cuda_recorded_note(struct backend_job *base, const struct cuda_clock *clock, const struct cuda_span *span)
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

/* Call when an execution with a ticket has ended. */
static void cuda_recorded_ended(struct cuda_recorded *r, struct backend_job *base, struct cuda_job *job,
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

/* ---- records, stamps or events ---- */

enum {
    AHEAD_US = 20, /* with so much work ahead on the stream, the host enqueues an execution in time without a gate */
    AROUND_US = 3, /* time that the GPU takes for two events */
    ROW_JOBS = 8,  /* unfinished jobs of a stream that count as many */
    ROW_US = 20,   /* executions shorter than this suffer from events */
    ANCHOR_NS_MAX = 1000 * 1000 * 1000, /* the driver's event times have 24 bits: 0.1 us precise within this time */
};

/* ---- enqueuing ---- */

void cuda_timed_init(struct cuda_execution *x)
{
    x->start = NULL;
    x->times = NULL;
    x->ticket = 0;
    x->gate = (struct cuda_gate){.times = NULL};
    x->by_events = x->settled = false;
}

/* Behind long work no gate is needed, since the GPU reaches the execution after all of it was enqueued. */
static bool wants_gate(struct cuda_stream *s)
{
    return s->executor->gates.function && s->flag &&
           ((double)cuda_stream_executions_ahead(s) * (s->last_us + AROUND_US) < AHEAD_US || !s->anchor.event ||
            clock_now_ns() - s->anchor.set_ns > ANCHOR_NS_MAX);
}

static int begin_events(struct cuda_stream *s, struct cuda_execution *x, struct error *e)
{
    const struct cuda_flags *flags = &s->streams->flags;

    if (wants_gate(s) && cuda_gate_close(&s->executor->gates, &s->queue, flags, cuda_flag_number(flags, s->flag),
                                         s->marks.issued, &x->gate, e) < 0)
        return -1;
    x->by_events = cuda_event_mark(s->queue.device, EVENT_TIMED, s->queue.stream, &x->start, e) == 0;
    if (x->by_events)
        return 0;
    cuda_gate_open(&x->gate);
    return -1;
}

/* Whether the execution is one of many small ones, which events and gates would slow down. */
static bool comes_in_a_row(const struct cuda_stream *s)
{
    return s->unfinished >= ROW_JOBS && s->last_us < ROW_US;
}

/* Transfers have no records. */
static bool has_transfer(const struct cuda_job *job)
{
    for (unsigned i = 0; job->steps && i < job->n_steps; i++)
        if (job->steps[i].work.host)
            return true;
    return false;
}

int cuda_timed_begin(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct cuda_execution *x,
                     struct error *e)
{
    struct cuda_work *work = job->steps && job->n_steps == 1 ? &job->steps[0].work : NULL;
    const bool stamps = work && cuda_work_is_embedded(work) && s->flag && s->executor->stamps.host;

    x->issued_ns = clock_now_ns();
    /* Decided once, so that all executions of a job are timed in one way even if CUPTI starts meanwhile. */
    if (job->issued == base->warmup)
        job->recorded =
            !has_transfer(job) && cuda_recorded_are_wanted(base, stamps, base->repeat > 1 || comes_in_a_row(s));
    if (job->recorded) {
        base->timer = TIMER_CUPTI;
        return cuda_recorded_begin(base, job, x, e);
    }
    base->timer = stamps ? TIMER_KERNEL : TIMER_EVENTS;
    if (!stamps)
        return begin_events(s, x, e);
    x->times = cuda_stamps_take(&s->executor->stamps, cuda_flag_number(&s->streams->flags, s->flag), s->marks.issued,
                                &work->launch);
    return 0;
}

void cuda_timed_enqueued(struct cuda_stream *s, struct cuda_execution *x)
{
    const bool behind_another = cuda_stream_executions_ahead(s);

    cuda_gate_open(&x->gate);
    x->settled = x->gate.in_time || (x->by_events && behind_another);
}

/* ---- times ---- */

static void set_anchor(struct cuda_stream *s, struct cuda_execution *x, uint64_t begin_ns, uint64_t seen_ns)
{
    cuda_timed_forget(s);
    s->anchor.event = x->start;
    s->anchor.begin_ns = begin_ns;
    s->anchor.set_ns = seen_ns;
    x->start = NULL;
}

/* Finds when the execution began, by the GPU's clock: from its own gate, or from the event time since the anchor. 0:
 * not known. */
static uint64_t begin_of(const struct cuda_stream *s, const struct cuda_execution *x)
{
    const uint64_t left_ns = cuda_gate_opened_ns(&x->gate);
    double us;

    if (left_ns)
        return left_ns + (uint64_t)(s->executor->overhead.lead_us * 1e3);
    us = x->settled ? cuda_event_us(s->queue.device, s->anchor.event, x->start) : NAN;
    return us > 0 ? s->anchor.begin_ns + (uint64_t)(us * 1e3) : 0;
}

static void end_events(struct cuda_stream *s, struct backend_job *base, struct cuda_execution *x, uint64_t seen_ns)
{
    struct cuda_clock *clock = &s->executor->stamp_clock;
    const double us =
        cuda_overhead_off(&s->executor->overhead, cuda_event_us(s->queue.device, x->start, x->end), x->settled);
    const uint64_t begin_ns = begin_of(s, x), ns = (uint64_t)(us * 1e3);

    if (isnan(us))
        return;
    s->last_us = us;
    if (!begin_ns) {
        base->samples[base->n_samples++] = us;
        return;
    }
    cuda_clock_learn(clock, x->issued_ns, begin_ns, begin_ns + ns, seen_ns);
    cuda_recorded_note(base, clock, &(struct cuda_span){.begin_ns = begin_ns, .end_ns = begin_ns + ns});
    if (cuda_gate_opened_ns(&x->gate))
        set_anchor(s, x, begin_ns, seen_ns);
}

void cuda_timed_end(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct cuda_execution *x,
                    uint64_t seen_ns)
{
    struct cuda_executor *executor = s->executor;
    struct cuda_span span;

    if (x->ticket) {
        cuda_recorded_ended(&executor->recorded, base, job, x, seen_ns);
    } else if (x->times && cuda_stamps_span(x->times, &span)) {
        cuda_clock_learn(&executor->stamp_clock, x->issued_ns, span.begin_ns, span.end_ns, seen_ns);
        cuda_recorded_note(base, &executor->stamp_clock, &span);
    } else if (x->start) {
        end_events(s, base, x, seen_ns);
    }
}

void cuda_timed_forget(struct cuda_stream *s)
{
    cuda_event_return(s->queue.device, EVENT_TIMED, s->anchor.event);
    s->anchor.event = NULL;
}
