/* Measures what events add to the times of what lies between them. */
#include "overhead.h"

#include <math.h>
#include <stdlib.h>

#include "driver/events.h"

enum { TRIES = 16, WARMUP = 2 };

/* Flags that the trials use: one for the stamps of the work, the other for those of the gate. */
enum { FLAG_OF_WORK, FLAG_OF_GATE };

struct measuring {
    struct cuda_queue queue;
    const struct cuda_flags *flags;
    const struct cuda_gates *gates;
    CUfunction function;
    struct cuda_launch nothing;
};

/* Low quartiles: rather too little is taken off than too much, also where others use the GPU meanwhile. NaN: unknown.
 */
struct found {
    double more, own, lead;
};

struct trial {
    CUevent start, end; /* EVENT_TIMED */
    const atomic_ullong *times;
    struct cuda_gate gate;
};

static int launch(struct measuring *m, bool gated, unsigned turn, struct trial *t)
{
    struct cuda_device *d = m->queue.device;
    struct error e;
    int r = 0;

    if (gated && cuda_gate_close(m->gates, &m->queue, m->flags, FLAG_OF_GATE, turn, &t->gate, &e) < 0)
        return -1;
    t->times = cuda_stamps_take(m->gates->stamps, FLAG_OF_WORK, turn, &m->nothing);
    if (cuda_event_mark(d, EVENT_TIMED, m->queue.stream, &t->start, &e) < 0 ||
        cuda_embedded_launch(&m->queue, m->function, &m->nothing, &e) < 0 ||
        cuda_event_mark(d, EVENT_TIMED, m->queue.stream, &t->end, &e) < 0)
        r = -1;
    cuda_gate_open(&t->gate);
    return r;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double low_quartile(double *values, unsigned n)
{
    qsort(values, n, sizeof(values[0]), ascending);
    return values[n / 4];
}

/* Has each trial alone on the stream. What events say more than the kernels do, what these take, and when these begin
 * behind a gate. */
static struct found try_all(struct measuring *m, bool gated)
{
    struct trial trials[TRIES] = {{.times = NULL}};
    double more[TRIES], own[TRIES], lead[TRIES];
    struct cuda_device *d = m->queue.device;
    struct cuda_span span;
    struct error e;
    bool fine = true;

    for (unsigned i = 0; i < TRIES && fine; i++) {
        fine = launch(m, gated, i, &trials[i]) == 0;
        /* Also after a failure: launches before it write to the places. */
        fine = CUDA_OPEN_CALL(d, &e, StreamSynchronize, m->queue.stream) == 0 && fine;
    }
    for (unsigned i = 0; i < TRIES; i++) {
        fine = fine && cuda_stamps_span(trials[i].times, &span);
        if (fine) {
            const uint64_t left_ns = cuda_gate_opened_ns(&trials[i].gate);

            own[i] = (double)(span.end_ns - span.begin_ns) / 1e3;
            more[i] = cuda_event_us(d, trials[i].start, trials[i].end) - own[i];
            lead[i] = left_ns ? (double)(int64_t)(span.begin_ns - left_ns) / 1e3 : 0;
            fine = !isnan(more[i]);
        }
        cuda_event_return(d, EVENT_TIMED, trials[i].start);
        cuda_event_return(d, EVENT_TIMED, trials[i].end);
    }
    if (!fine)
        return (struct found){NAN, NAN, NAN};
    return (struct found){.more = low_quartile(more + WARMUP, TRIES - WARMUP),
                          .own = low_quartile(own + WARMUP, TRIES - WARMUP),
                          .lead = low_quartile(lead + WARMUP, TRIES - WARMUP)};
}

void cuda_overhead_measure(struct cuda_device *d, const struct cuda_embedded *kernels, const struct cuda_flags *flags,
                           const struct cuda_gates *gates, struct cuda_overhead *ret_overhead)
{
    struct measuring m = {
        .queue = {.device = d, .stream = d->service},
        .flags = flags,
        .gates = gates,
    };
    struct found first, settled;

    *ret_overhead = (struct cuda_overhead){.first_us = 0};
    if (!gates->function || !flags->host)
        return;
    cuda_ops_nothing(&m.nothing);
    m.function = cuda_embedded_find(kernels, m.nothing.kernel);
    if (!m.function)
        return;
    first = try_all(&m, false);
    settled = try_all(&m, true);
    if (isnan(first.more) || isnan(settled.more))
        return;
    ret_overhead->first_us = fmax(first.more, 0);
    ret_overhead->settled_us = fmin(fmax(settled.more, 0), ret_overhead->first_us);
    ret_overhead->least_us = settled.own;
    ret_overhead->lead_us = settled.lead;
}

double cuda_overhead_off(const struct cuda_overhead *o, double between_events_us, bool settled)
{
    const double us = between_events_us - (settled ? o->settled_us : o->first_us);

    if (isnan(between_events_us))
        return NAN;
    return fmin(fmax(us, o->least_us), between_events_us);
}
