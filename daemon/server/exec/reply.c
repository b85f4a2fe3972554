/* The reply of a run that has ended. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/counters.h"
#include "server/exec/room.h"
#include "server/exec/run.h"
#include "server/peer/request.h"
#include "util/clock.h"

static const char goes_on[] = "; its work goes on and uses its memory until it has ended: trim is answered then",
                  forced[] = "; its kernel was ended, and the outputs are undefined",
                  undefined[] = "; the outputs are undefined", not_started[] = "; it had not started";

/* `what` tells the fate of the work. */
static void set_stop_error(const struct run *run, bool ended, const char *what, struct error *into)
{
    if (run->stop == RUN_DEADLINE)
        error_set(into, ERROR_DEADLINE_EXCEEDED, "deadline_ms passed before the job ended%s", what);
    else
        error_set(into, ERROR_CANCELLED, "the job was cancelled%s", what);
    error_detail_bool(into, "ended", ended);
}

/* Whether nothing of the stopped run was done. A job that came back to be begun anew may be done once more by the
 * client, too. */
static bool has_not_begun(const struct run *run)
{
    const struct backend_job *job = &run->job;

    if (run->state != RUN_SUBMITTED)
        return !job->failed;
    return job->failed && job->error.code == ERROR_CANCELLED && !job->forced && !job->started_ns;
}

static const struct error *end_error(const struct run *run, struct error *into)
{
    if (run->stop == RUN_GOES_ON)
        return &run->error;
    if (run->stop == RUN_ENDING && has_not_begun(run)) {
        error_set(into, ERROR_SHUTTING_DOWN, "the daemon is ending, and the job had not started; connect again");
        return into;
    }
    /* A job that came back to begin anew has begun once. */
    set_stop_error(run, true,
                   run->job.forced                                  ? forced
                   : run->job.started_ns || run->job.begun_anew > 0 ? undefined
                                                                    : not_started,
                   into);
    return into;
}

void run_reply_early(struct run *run)
{
    struct request *r = request_of(run);
    struct error e;

    set_stop_error(run, false, goes_on, &e);
    r->connection->server->counters.jobs_cancelled++;
    request_error(r, &e);
    request_answered(r);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Nearest-rank percentile of sorted samples. */
static double percentile(const double *sorted, uint32_t n, double p)
{
    uint32_t rank = (uint32_t)ceil(p * n);

    return sorted[rank ? rank - 1 : 0];
}

static double median(const double *sorted, uint32_t n)
{
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* The samples in ascending order. NULL: no memory. */
static double *sort_samples(const double *samples, uint32_t n)
{
    double *sorted = malloc(n * sizeof(*sorted));

    if (sorted) {
        memcpy(sorted, samples, n * sizeof(*sorted));
        qsort(sorted, n, sizeof(*sorted), by_value);
    }
    return sorted;
}

/* `sorted`: the samples of several executions; else NULL. */
static struct timings_map timings_of(const struct request *r, const struct run *run, const double *sorted,
                                     double total_us, uint64_t now_ns)
{
    const struct backend_job *job = &run->job;
    const uint64_t started_ns = job->started_ns;
    const uint32_t n = run->sampled ? 0 : job->n_samples;
    const bool asked = job->timing && !run->sampled, host = run->device->backend->times_always;
    /* The device's own clock names all parts of one execution, copies aside. The rest of the time is waiting,
     * also between two time slices of it. */
    const bool told = n == 1 && job->repeat == 1 && !job->warmup && job->gpu_begin_ns && started_ns;
    const double *all = asked ? sorted : NULL, of_one = sorted ? median(sorted, n) : n ? run->samples[0] : NAN;
    /* Where this process does the work itself, its clock is all there is. */
    const double wall_us = isnan(job->wall_us) && started_ns ? clock_us_between(started_ns, now_ns) : job->wall_us;

    return (struct timings_map){
        .received_ns = {asked, r->received_ns},
        .recv_to_start_us = started_ns ? clock_us_between(r->received_ns, started_ns) : NAN,
        .map_us = run->map_us,
        .queue_us = started_ns ? clock_us_between(run->ready_ns, started_ns) : NAN,
        .wait_us = told ? fmax(clock_us_between(started_ns, job->gpu_end_ns) - of_one, 0) : NAN,
        .h2d_us = run->sampled ? NAN : job->h2d_us,
        .d2h_us = run->sampled ? NAN : job->d2h_us,
        .gpu_us = host ? NAN : of_one,
        .host_us = host ? of_one : NAN,
        .end_us = told ? clock_us_between(job->gpu_end_ns, now_ns) : NAN,
        .total_us = total_us,
        .wall_us = asked ? wall_us : NAN,
        .min = all ? all[0] : NAN,
        .median = all ? of_one : NAN,
        .p90 = all ? percentile(all, n, 0.9) : NAN,
        .max = all ? all[n - 1] : NAN,
        .samples = {n, all ? rpc_each_double : NULL, run->samples},
    };
}

static void write_variant(struct rpc_output *out, const void *of, uint32_t i)
{
    rpc_write_text(out, ((const struct step *)of)[i].variant_used);
}

/* Names the timer that told the execution times; NULL: there are none. */
static const char *timer_of(const struct run *run)
{
    static const char *const timers[TIMER_KINDS] = {
        [TIMER_EVENTS] = "events", [TIMER_KERNEL] = "kernel", [TIMER_CUPTI] = "cupti"};

    if (run->sampled || !run->job.n_samples)
        return NULL;
    if (run->device->backend->times_always)
        return "host";
    return timers[run->job.timer];
}

/* How long the device was busy with the run. Timed executions say so. For others the time since the device got the run,
 * or since it ended the one before, is an upper bound. */
static double device_us(struct run *run, uint64_t now_ns)
{
    const uint64_t from = run->job.started_ns, before = run->stream->ended_ns;
    double us = 0;

    if (!from)
        return 0;
    run->stream->ended_ns = now_ns;
    if (run->job.n_samples != run->job.repeat || run->job.warmup || run->failed)
        return clock_us_between(from > before ? from : before, now_ns);
    for (uint32_t i = 0; i < run->job.n_samples; i++)
        us += run->samples[i];
    return us;
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

static void write_counters(struct rpc_output *out, const struct run *run)
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

void run_reply(struct request *r, struct run *run)
{
    struct server *s = r->connection->server;
    const uint64_t now = clock_now_ns();
    const double total_us = clock_us_between(r->received_ns, now);
    const bool several = run->job.repeat > 1 && run->job.n_samples && !run->sampled;
    const struct rpc_maybe exclusive = {run->job.exclusive, run->job.was_alone};
    const struct command_list *const b = &run->commands;
    const char *uuid, *timer;
    struct timings_map timings;
    struct rpc_output *out;
    double *sorted;
    struct error e;

    s->exec->observer->ended(r, run, device_us(run, now), total_us, now);
    if (r->answered)
        return;
    if (run->failed) {
        s->counters.jobs_cancelled += run->stop != RUN_GOES_ON;
        request_error(r, end_error(run, &e));
        return;
    }
    if (run->program)
        program_count_run(run);
    out = request_result(r);
    if (!out)
        return;
    uuid = run->device->info.uuid; /* a refused run may have no device */
    timer = timer_of(run);
    if (run->counters) {
        write_counters(out, run);
        return;
    }
    sorted = several ? sort_samples(run->samples, run->job.n_samples) : NULL;
    timings = timings_of(r, run, sorted, total_us, now);
    if (run->program)
        rpc_write_record(
            out, RECORD(run_program_reply, .timings = timings, .device = uuid, .timer = timer, .exclusive = exclusive));
    else if (r->method == METHOD_SEQUENCE)
        rpc_write_record(out, RECORD(sequence_reply, .timings = timings, .device = uuid, .timer = timer,
                                     .exclusive = exclusive, .variants = {b->n_steps, write_variant, b->steps}));
    else
        rpc_write_record(out, RECORD(run_reply, .timings = timings, .device = uuid, .timer = timer,
                                     .exclusive = exclusive, .variant = b->steps[0].variant_used));
    free(sorted);
}
