/* Chooses how executions are timed, and reads their times. */
#include "executor.h"

#include <math.h>

#include "driver/device.h"
#include "recorded.h"
#include "util/clock.h"

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
