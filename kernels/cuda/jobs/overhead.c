/* Measures what events add to the times of what lies between them. */
#include "overhead.h"

#include <math.h>
#include <stdlib.h>

#include "driver/events.h"

enum { TRIES = 16, WARMUP = 2 };

struct trial {
    CUevent start, end; /* EVENT_TIMED */
    const atomic_ullong *times;
};

static int launch(const struct cuda_queue *queue, CUfunction function, struct cuda_launch *nothing,
                  const struct cuda_stamps *stamps, unsigned turn, struct trial *t)
{
    struct cuda_device *d = queue->device;
    struct error e;

    t->times = cuda_stamps_take(stamps, 0, turn, nothing);
    if (cuda_event_mark(d, EVENT_TIMED, queue->stream, &t->start, &e) < 0 ||
        cuda_embedded_launch(queue, function, nothing, &e) < 0 ||
        cuda_event_mark(d, EVENT_TIMED, queue->stream, &t->end, &e) < 0)
        return -1;
    return 0;
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

/* Launches all, in a row or each on an idle stream. Returns what events say more than the kernels do, NaN: not known.
 * A low quartile: rather too little is taken off than too much, also where others use the GPU meanwhile. */
static double try_all(const struct cuda_queue *queue, CUfunction function, struct cuda_launch *nothing,
                      const struct cuda_stamps *stamps, bool in_a_row, double *ret_least_us)
{
    struct trial trials[TRIES] = {{.times = NULL}};
    double more[TRIES], own[TRIES];
    struct cuda_device *d = queue->device;
    struct error e;
    bool fine = true;

    for (unsigned i = 0; i < TRIES && fine; i++)
        fine = launch(queue, function, nothing, stamps, i, &trials[i]) == 0 &&
               (in_a_row || CUDA_OPEN_CALL(d, &e, StreamSynchronize, queue->stream) == 0);
    /* Also after a failure: launches before it write to the places. */
    fine = CUDA_OPEN_CALL(d, &e, StreamSynchronize, queue->stream) == 0 && fine;
    for (unsigned i = 0; i < TRIES; i++) {
        if (fine) {
            own[i] = cuda_stamps_us(trials[i].times);
            more[i] = cuda_event_us(d, trials[i].start, trials[i].end) - own[i];
            fine = !isnan(more[i]);
        }
        cuda_event_return(d, EVENT_TIMED, trials[i].start);
        cuda_event_return(d, EVENT_TIMED, trials[i].end);
    }
    if (!fine)
        return NAN;
    *ret_least_us = low_quartile(own + WARMUP, TRIES - WARMUP);
    return low_quartile(more + WARMUP, TRIES - WARMUP);
}

void cuda_overhead_measure(struct cuda_device *d, const struct cuda_embedded *kernels, const struct cuda_stamps *stamps,
                           struct cuda_overhead *ret_overhead)
{
    const struct cuda_queue queue = {.device = d, .stream = d->service};
    struct cuda_launch nothing;
    CUfunction function;
    double first, in_a_row, least;

    *ret_overhead = (struct cuda_overhead){.first_us = 0};
    if (!stamps->host)
        return;
    cuda_ops_nothing(&nothing);
    function = cuda_embedded_find(kernels, nothing.kernel);
    if (!function)
        return;
    first = try_all(&queue, function, &nothing, stamps, false, &least);
    in_a_row = try_all(&queue, function, &nothing, stamps, true, &least);
    if (isnan(first) || isnan(in_a_row))
        return;
    ret_overhead->first_us = fmax(first, 0);
    ret_overhead->in_a_row_us = fmin(fmax(in_a_row, 0), ret_overhead->first_us);
    ret_overhead->least_us = least;
}

double cuda_overhead_off(const struct cuda_overhead *o, double between_events_us, bool in_a_row)
{
    const double us = between_events_us - (in_a_row ? o->in_a_row_us : o->first_us);

    if (isnan(between_events_us))
        return NAN;
    return fmin(fmax(us, o->least_us), between_events_us);
}
