/* The device watchdog: finds kernels that never end. Only the end of its process stops such a kernel and frees the GPU.
 * A kernel of a domain has an executor of its own, which ends: run_end_now(). For all other jobs the watchdog abandons
 * the device, and another common executor takes the place of the one that has it. Thread: loop.
 *
 * A timer looks while there are jobs. A stream is stuck when its first job is the same, with as many ended executions,
 * over several ticks, and no job that came before it progressed either. A job pays for one comparison. */

#include <stdio.h>
#include <string.h>

#include "server/exec/room.h"
#include "server/exec/run.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/log.h"

enum { TICKS = 4 /* in one timeout; a stuck job is found at most one tick late */ };

/* The stream's first run, when it is on a device; NULL otherwise. */
static struct run *first_on_device(const struct stream *stream)
{
    return !stream || list_empty(&stream->given) ? NULL
                                                 : list_entry(list_first(&stream->given), struct run, queue_link);
}

/* Whether the run has not progressed since the last tick. */
static bool is_still(struct server *s, struct stream *stream, const struct run *run)
{
    const struct request *r = request_of(run);

    if (stream->watched == r->sequence + 1 && stream->watched_ended == run->job.ended)
        return true;
    if (stream->watched == r->sequence + 1)
        note_progress(s, run->device->index, r->received_ns);
    stream->watched = r->sequence + 1;
    stream->watched_ended = run->job.ended;
    stream->watched_ticks = 0;
    return false;
}

/* Whether the run has stood still for several ticks in which no job progressed that it may wait for: an earlier one,
 * or, while a process opens what it needs, any. */
static bool is_stuck(const struct server *s, struct stream *stream, const struct run *run)
{
    const uint64_t progress_ns = s->exec->progress_of_ns[run->device->index];
    const bool waits = run_can_end_now(run) && !run->job.started_ns;

    if (progress_ns < (waits ? UINT64_MAX : request_of(run)->received_ns))
        stream->watched_ticks = 0;
    else
        stream->watched_ticks++;
    return stream->watched_ticks >= TICKS;
}

static void describe(const struct run *run, char *into, size_t size)
{
    const struct step *step = &run->commands.steps[0];
    int n = snprintf(into, size, "%s", run->commands.ops[0]->name);

    for (unsigned o = 0; o < step_operands(step) && n < (int)size; o++) {
        const struct tensor *t = &run->commands.tensors[step->tensors[o]];

        n += snprintf(into + n, size - (size_t)n, " [");
        for (unsigned i = 0; i < t->rank && n < (int)size; i++)
            n += snprintf(into + n, size - (size_t)n, "%s%lld", i ? "x" : "", (long long)t->shape[i]);
        if (n < (int)size)
            n += snprintf(into + n, size - (size_t)n, "] %s", dtype_name(t->dtype));
    }
    if (run->commands.n_steps > 1 && n < (int)size)
        snprintf(into + n, size - (size_t)n, " and %u more ops", run->commands.n_steps - 1);
}

static void report(struct server *s, struct run *run)
{
    const struct connection *c = request_of(run)->connection;
    char what[200], quoted[400], client[2 * CLIENT_NAME_MAX], who[CONNECTION_WHO_MAX];

    describe(run, what, sizeof(what));
    log_error("job_timeout", "uuid=%s %s client=%s timeout_s=%llu action=end_job what=%s", run->device->info.uuid,
              connection_who(c, who), log_quote(client, sizeof(client), c->client, strlen(c->client)),
              (unsigned long long)s->config.job_timeout_s, log_quote(quoted, sizeof(quoted), what, strlen(what)));
    if (run->failed)
        return;
    run->failed = true;
    error_set(&run->error, ERROR_JOB_TIMEOUT,
              "%.60s did not end within %llu s (server.job_timeout_s); it alone was ended, and its outputs are "
              "undefined; the connection and its memory go on",
              run->commands.ops[0]->name, (unsigned long long)s->config.job_timeout_s);
    error_detail_number(&run->error, "timeout_s", (int64_t)s->config.job_timeout_s);
}

/* Calls `what` for every stream whose first run is on a device that can be abandoned, and was not told to end. */
static void each(struct server *s, void (*what)(struct server *s, struct stream *stream, struct run *run))
{
    list_for_each_safe (node, after, peers_connections(s)) {
        struct connection *c = list_entry(node, struct connection, link);

        for (unsigned i = 0; i < STREAMS_MAX; i++) {
            struct run *run = first_on_device(c->exec->streams[i]);

            if (run && run->device->backend->abandon && !run->device->lost && !atomic_load(&run->job.end_now))
                what(s, c->exec->streams[i], run);
        }
    }
}

static void note(struct server *s, struct stream *stream, struct run *run)
{
    stream->still = is_still(s, stream, run);
}

/* Whether `a`, rather than `b`, is the run that the other may wait for: a kernel of a user, one that has begun (domains
 * have the GPU in turns), the one that began or came first. */
static bool is_first(const struct run *a, const struct run *b)
{
    if (run_can_end_now(a) != run_can_end_now(b))
        return run_can_end_now(a);
    if (!a->job.started_ns != !b->job.started_ns)
        return a->job.started_ns != 0;
    if (a->job.started_ns != b->job.started_ns)
        return a->job.started_ns < b->job.started_ns;
    return request_of(a)->received_ns < request_of(b)->received_ns;
}

/* Finds the stuck runs, and the first one of each device. */
static void judge(struct server *s, struct stream *stream, struct run *run)
{
    struct run **first = &s->exec->to_end[run->device->index];

    if (stream->still && is_stuck(s, stream, run) && (!*first || is_first(run, *first)))
        *first = run;
}

/* The first stuck run is ended alone, and all others have their full time again: they may have waited for it. A run of
 * the common executor is cancelled, so that it is not begun anew in the next one. */
static void settle(struct server *s, struct stream *stream, struct run *run)
{
    const unsigned device = run->device->index;

    if (s->exec->to_end[device])
        stream->watched_ticks = 0;
    if (s->exec->to_end[device] != run)
        return;
    report(s, run);
    if (run_can_end_now(run)) {
        run_end_now(run);
        return;
    }
    run_cancel_job(run);
    s->exec->hung[device] = true;
}

static void look(struct server *s)
{
    struct error why;

    memset(s->exec->to_end, 0, sizeof(s->exec->to_end));
    each(s, note);
    each(s, judge);
    each(s, settle);
    for (unsigned i = 0; i < s->devices.count; i++) {
        if (!s->exec->hung[i])
            continue;
        s->exec->hung[i] = false;
        error_set(&why, ERROR_DEVICE_LOST, "a job did not end within %llu s, so its executor was ended to free the GPU",
                  (unsigned long long)s->config.job_timeout_s);
        s->devices.all[i]->backend->abandon(s->devices.all[i], &why);
        server_wake(s);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct server *s = timer->data;

    if (s->exec->n_jobs_running)
        look(s);
    else
        uv_timer_stop(timer);
    memset(s->exec->progress_of_ns, 0xff, sizeof(s->exec->progress_of_ns));
}

void device_watchdog_init(struct server *s)
{
    memset(s->exec->progress_of_ns, 0xff, sizeof(s->exec->progress_of_ns));
    uv_timer_init(&s->loop, &s->exec->device_watchdog_timer);
    s->exec->device_watchdog_timer.data = s;
}

void device_watchdog_watch(struct server *s)
{
    const uint64_t tick = s->config.job_timeout_s * 1000 / TICKS;

    if (tick && !s->admission.stopping)
        uv_timer_start(&s->exec->device_watchdog_timer, on_tick, tick, tick);
}

void device_watchdog_reload(struct server *s)
{
    uv_timer_stop(&s->exec->device_watchdog_timer);
    if (s->exec->n_jobs_running)
        device_watchdog_watch(s);
}

void device_watchdog_stop(struct server *s)
{
    uv_close((uv_handle_t *)&s->exec->device_watchdog_timer, NULL);
}
