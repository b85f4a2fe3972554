#include "server/observe/latency.h"

#include <math.h>
#include <stdlib.h>

#include "server/observe/room.h"
#include "util/clock.h"

static const uint64_t FADE_NS = UINT64_C(60000000000);

#define KOPS_DTYPE_FITS(NAME, name, value, size) _Static_assert((value) < LATENCY_DTYPES, "raise LATENCY_DTYPES");
KOPS_DTYPES(KOPS_DTYPE_FITS)
#undef KOPS_DTYPE_FITS

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define S  UINT64_C(1000000000)
const uint64_t latency_bounds_ns[LATENCY_BOUNDS] = {
    1 * US, US * 5 / 2, 5 * US,  10 * US, 25 * US,  50 * US,  100 * US, 250 * US, 500 * US,  1 * MS, MS * 5 / 2,
    5 * MS, 10 * MS,    25 * MS, 50 * MS, 100 * MS, 250 * MS, 500 * MS, 1 * S,    S * 5 / 2, 5 * S,  10 * S,
};
#undef US
#undef MS
#undef S

const char *latency_kind_name(unsigned kind)
{
    switch (kind) {
    case LATENCY_USER_KERNEL:
        return "user_kernel";
    case LATENCY_SEQUENCE:
        return "sequence";
    case LATENCY_PROGRAM:
        return "program";
    default:
        return op_get((enum op_id)kind)->name;
    }
}

struct latency_table *latency_table_new(void)
{
    struct latency_table *table = calloc(1, sizeof(*table));

    for (unsigned e = 0; table && e < 64; e++)
        while (table->first_bound[e] < LATENCY_BOUNDS && latency_bounds_ns[table->first_bound[e]] < UINT64_C(1) << e)
            table->first_bound[e]++;
    return table;
}

struct latency_table *latency_table_free(struct latency_table *table)
{
    for (unsigned d = 0; table && d < BACKEND_MAX_DEVICES; d++)
        for (unsigned k = 0; k < LATENCY_KINDS; k++)
            for (unsigned t = 0; t < LATENCY_DTYPES; t++)
                free(table->ops[d][k][t]);
    free(table);
    return NULL;
}

/* The first bucket whose bound is not less. Each bound is at least twice the one before, so at most one lies between
 * two powers of two: one look-up and one comparison find it. */
static unsigned bound_of(const struct latency_table *table, uint64_t ns)
{
    const unsigned first = table->first_bound[63 - __builtin_clzll(ns | 1)];

    return first + (first < LATENCY_BOUNDS && ns > latency_bounds_ns[first]);
}

static double executions_us(const struct run *run)
{
    double us = run->samples[0];

    for (uint32_t i = 1; i < run->job.n_samples; i++)
        us += run->samples[i];
    return us;
}

void latency_of(const struct run *run, double total_us, struct latency *ret)
{
    const bool started = run->job.started_ns != 0;

    ret->part[LATENCY_QUEUE] = started ? clock_us_between(run->ready_ns, run->job.started_ns) : NAN;
    ret->part[LATENCY_DEVICE] = run->job.n_samples ? executions_us(run) : NAN;
    ret->part[LATENCY_TOTAL] = total_us;
    for (unsigned i = 0; i < LATENCY_PARTS; i++)
        ret->bucket[i] = histogram_bucket(ret->part[i], &ret->ns[i]);
}

struct latency_op *latency_op_of(struct server *s, const struct run *run)
{
    const struct step *step = &run->commands.steps[0];
    unsigned kind, dtype = 0;
    struct latency_op **at;

    if (run->program)
        kind = LATENCY_PROGRAM;
    else if (run->commands.n_steps != 1)
        kind = LATENCY_SEQUENCE;
    else
        kind = step->op < OP_COUNT ? step->op : LATENCY_USER_KERNEL;
    if (kind < LATENCY_SEQUENCE && step_operands(step))
        dtype = run->commands.tensors[step->tensors[0]].dtype;
    at = &s->observe->latencies->ops[run->device->index][kind][dtype];
    if (!*at)
        *at = calloc(1, sizeof(**at));
    return *at;
}

/* The connection's histograms, made at first use. NULL: no memory; a lost statistic is no reason to fail the job. */
static struct latencies *latencies_of(struct connection *c, uint64_t now_ns)
{
    struct latencies *l = c->statistics->latencies;

    if (!l) {
        l = c->statistics->latencies = calloc(1, sizeof(*l));
        if (l)
            l->faded_ns = now_ns;
        return l;
    }
    if (__builtin_expect(now_ns - l->faded_ns >= FADE_NS, 0)) {
        uint64_t halvings = (now_ns - l->faded_ns) / FADE_NS;

        for (unsigned i = 0; i < LATENCY_PARTS; i++)
            histogram_fade(&l->part[i], halvings < 64 ? (unsigned)halvings : 64);
        l->faded_ns += halvings * FADE_NS;
    }
    return l;
}

/* `own`, `op`: NULL for none. */
static void note(const struct server *s, struct latencies *own, struct latency_op *op, const struct latency *latency,
                 unsigned part)
{
    if (own)
        histogram_add_in(&own->part[part], latency->part[part], latency->bucket[part]);
    if (op) {
        op->buckets[part][bound_of(s->observe->latencies, latency->ns[part])]++;
        op->sum_ns[part] += latency->ns[part];
    }
}

void latency_note(struct connection *c, const struct run *run, const struct latency *latency, uint64_t now_ns)
{
    struct latency_op *op = latency_op_of(c->server, run);
    struct latencies *own = latencies_of(c, now_ns);

    for (unsigned i = 0; i < LATENCY_PARTS; i++)
        if (!isnan(latency->part[i]))
            note(c->server, own, op, latency, i);
}

void latency_note_device(struct server *s, struct connection *c, struct latency_op *op, double us)
{
    struct latency latency = {.part[LATENCY_DEVICE] = us};

    latency.bucket[LATENCY_DEVICE] = histogram_bucket(us, &latency.ns[LATENCY_DEVICE]);
    note(s, c ? c->statistics->latencies : NULL, op, &latency, LATENCY_DEVICE);
}
