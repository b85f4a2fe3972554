/* The reply and the end of a run that counted. Thread: loop. */
#include <math.h>
#include <stdlib.h>

#include "core/counters.h"
#include "server/exec/run.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

void run_free_counters(struct run *run)
{
    if (!run->counters)
        return;
    request_of(run)->connection->account->counting = false;
    free(run->counters);
    run->counters = run->job.counters = NULL;
}

/* The values that are known, with their names. */
static struct rpc_values known(struct rpc_number *ret, const double *values, unsigned n, const char *(*name)(unsigned))
{
    unsigned there = 0;

    for (unsigned i = 0; i < n; i++)
        if (!isnan(values[i]))
            ret[there++] = (struct rpc_number){name(i), values[i]};
    return (struct rpc_values){there, rpc_each_number, ret};
}

void run_write_counters(struct rpc_output *out, const struct run *run)
{
    const struct backend_counters *c = run->counters;
    const struct counter_launch *l = &c->launch;
    struct rpc_number values[COUNTER_COUNT], stalls[STALL_COUNT];
    double stalls_pct[STALL_COUNT];
    char why[COUNTER_WHY_BYTES];
    const enum counter_verdict verdict = counters_judge(c, why);
    const struct counter_launch_map launch = {
        .grid = {3, rpc_each_u32, l->grid},
        .block = {3, rpc_each_u32, l->block},
        .registers = l->registers,
        .static_shared = l->static_shared,
        .dynamic_shared = l->dynamic_shared,
        .local_bytes = l->local_bytes,
        .occupancy_pct = l->occupancy_pct,
        .limiter = c->has_launch ? counter_limiter_name(l->limiter) : NULL,
    };

    for (unsigned i = 0; i < STALL_COUNT; i++)
        stalls_pct[i] = counters_stall_pct(c, i);
    rpc_write_record(out, RECORD(counters_reply, .device = run->device->info.uuid,
                                 .variant = run->commands.steps[0].variant_used, .kernel = c->kernel,
                                 .kernels = c->kernels, .passes = c->passes, .copied_bytes = c->copied_bytes,
                                 .verdict = counter_verdict_name(verdict), .why = why,
                                 .values = known(values, c->values, COUNTER_COUNT, counter_name),
                                 .stalls = known(stalls, stalls_pct, STALL_COUNT, counter_stall_name),
                                 .launch = c->has_launch ? &launch : NULL, .others = {c->knows_others, c->others}));
}
