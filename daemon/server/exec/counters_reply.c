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

static void write_numbers(struct rpc_output *out, const char *key, const double *values, unsigned n,
                          const char *(*name)(unsigned))
{
    unsigned known = 0;

    for (unsigned i = 0; i < n; i++)
        known += !isnan(values[i]);
    rpc_write_text(out, key);
    rpc_write_map(out, known);
    for (unsigned i = 0; i < n; i++)
        if (!isnan(values[i]))
            rpc_write_entry_double(out, name(i), values[i]);
}

static void write_dimensions(struct rpc_output *out, const char *key, const uint32_t of[3])
{
    rpc_write_text(out, key);
    rpc_write_array(out, 3);
    for (unsigned i = 0; i < 3; i++)
        rpc_write_uint(out, of[i]);
}

static void write_launch(struct rpc_output *out, const struct counter_launch *launch)
{
    const bool knows = !isnan(launch->occupancy_pct);

    rpc_write_text(out, "launch");
    rpc_write_map(out, 7 + knows);
    write_dimensions(out, "grid", launch->grid);
    write_dimensions(out, "block", launch->block);
    rpc_write_entry_uint(out, "registers", launch->registers);
    rpc_write_entry_uint(out, "static_shared", launch->static_shared);
    rpc_write_entry_uint(out, "dynamic_shared", launch->dynamic_shared);
    rpc_write_entry_uint(out, "local_bytes", launch->local_bytes);
    if (knows)
        rpc_write_entry_double(out, "occupancy_pct", launch->occupancy_pct);
    rpc_write_entry_text(out, "limiter", counter_limiter_name(launch->limiter));
}

void run_write_counters(struct rpc_output *out, const struct run *run)
{
    const struct backend_counters *c = run->counters;
    double stalls[STALL_COUNT];
    char why[COUNTER_WHY_BYTES];
    const enum counter_verdict verdict = counters_judge(c, why);

    for (unsigned i = 0; i < STALL_COUNT; i++)
        stalls[i] = counters_stall_pct(c, i);
    rpc_write_map(out, 10 + c->has_launch + c->knows_others);
    rpc_write_entry_text(out, "device", run->device->info.uuid);
    rpc_write_entry_text(out, "variant", run->commands.steps[0].variant_used);
    rpc_write_entry_text(out, "kernel", c->kernel);
    rpc_write_entry_uint(out, "kernels", c->kernels);
    rpc_write_entry_uint(out, "passes", c->passes);
    rpc_write_entry_uint(out, "copied_bytes", c->copied_bytes);
    rpc_write_entry_text(out, "verdict", counter_verdict_name(verdict));
    rpc_write_entry_text(out, "why", why);
    write_numbers(out, "values", c->values, COUNTER_COUNT, counter_name);
    write_numbers(out, "stalls", stalls, STALL_COUNT, counter_stall_name);
    if (c->has_launch)
        write_launch(out, &c->launch);
    if (c->knows_others)
        rpc_write_entry_uint(out, "others", c->others);
}
