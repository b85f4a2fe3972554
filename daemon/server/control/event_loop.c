#include "server/control/event_loop.h"

#include "server/control/busy_poll.h"
#include "server/control/drain.h"
#include "server/control/shutdown.h"
#include "server/exec/run.h"
#include "server/exec/timeline.h"
#include "server/peer/backlog.h"
#include "server/peer/connection.h"
#include "server/peer/ring.h"
#include "util/log.h"

static void check_lost(struct server *s)
{
    for (unsigned i = 0; i < s->devices.count; i++)
        if (s->devices.all[i]->lost && s->exit_status != SERVER_EXIT_DEVICE_LOST) {
            log_error("device_lost", "uuid=%s action=exit status=%d", s->devices.all[i]->info.uuid,
                      SERVER_EXIT_DEVICE_LOST);
            s->exit_status = SERVER_EXIT_DEVICE_LOST;
            shutdown_begin(s);
        }
}

static void serve(struct schedule_task *task)
{
    connection_turn(list_entry(task, struct connection, task));
}

/* Everything that can be done without waiting. Replies of one turn leave in one write a connection. */
void event_loop_turn(struct server *s)
{
    timelines_poll(s); /* first: what waits for its client's stream holds that stream up */
    for (unsigned i = 0; (s->n_jobs_running || s->woken) && i < s->devices.count; i++)
        if (s->jobs_running[i] || s->woken) {
            unsigned before = activity_enter(&s->activity, s->devices.all[i]);

            s->devices.all[i]->backend->poll(s->devices.all[i]);
            activity_leave(&s->activity, before);
        }
    s->woken = false;
    check_lost(s);
    shutdown_check_signals(s);
    channels_poll(s);
    streams_end_yielding(s);
    backlog_turn(s);
    do
        schedule_turn(&s->schedule, serve);
    while (drain_step(s));
    if (s->stopping)
        shutdown_step(s);
}

static void on_idle(uv_idle_t *idle)
{
    (void)idle; /* its being there keeps the loop from sleeping */
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct server *s = prepare->data;

    /* Where the last turn has left work, the sockets are looked at before the next one. */
    if (!schedule_waits(&s->schedule))
        event_loop_turn(s);
    if (schedule_waits(&s->schedule) || busy_poll_slice(s) || schedule_waits(&s->schedule) || !channels_sleep(s)) {
        uv_idle_start(&s->idle, on_idle);
        return;
    }
    s->slept = true;
    uv_idle_stop(&s->idle);
    for (unsigned i = 0; s->n_jobs_running && i < s->devices.count; i++)
        if (s->jobs_running[i]) {
            unsigned before = activity_enter(&s->activity, s->devices.all[i]);

            s->devices.all[i]->backend->arm(s->devices.all[i]);
            activity_leave(&s->activity, before);
        }
    timelines_arm(s);
}

static void on_check(uv_check_t *check)
{
    event_loop_turn(check->data);
}

static void on_wake(uv_async_t *async)
{
    struct server *s = async->data;

    /* The turn of this iteration polls every device: one may be lost while no job runs on it. */
    s->woken = true;
}

int event_loop_init(struct server *s, struct error *e)
{
    busy_poll_init(s);
    if (channels_init(s, e) < 0)
        return -1;
    if (timelines_init(s, e) < 0)
        return -1;
    for (unsigned i = 0; i < BACKEND_MAX_DEVICES; i++) {
        list_init(&s->on_device[i]);
        for (unsigned j = 0; j < PRIORITY_COUNT; j++)
            list_init(&s->free_streams[i][j]);
    }
    if (uv_async_init(&s->loop, &s->wake, on_wake) < 0)
        return error_set(e, ERROR_INTERNAL, "the event loop cannot be set up");
    s->wake.data = s;
    uv_prepare_init(&s->loop, &s->prepare);
    uv_check_init(&s->loop, &s->check);
    uv_idle_init(&s->loop, &s->idle);
    device_watchdog_init(s);
    s->prepare.data = s->check.data = s;
    uv_prepare_start(&s->prepare, on_prepare);
    uv_check_start(&s->check, on_check);
    return 0;
}

void event_loop_stop(struct server *s)
{
    channels_stop(s);
    timelines_stop(s);
    device_watchdog_stop(s);
    uv_close((uv_handle_t *)&s->wake, NULL);
    uv_close((uv_handle_t *)&s->prepare, NULL);
    uv_close((uv_handle_t *)&s->check, NULL);
    uv_close((uv_handle_t *)&s->idle, NULL);
}

void event_loop_wake(void *context)
{
    struct server *s = context;

    uv_async_send(&s->wake);
}

/* Says whose the device's oldest job is. */
static void note_oldest(struct server *s, unsigned device)
{
    struct activity_job *oldest = &s->activity.oldest[device];
    const struct op_call *call;
    const struct tensor *t;
    const struct run *run;
    const struct connection *c;

    if (list_empty(&s->on_device[device])) {
        activity_disown(&oldest->owner);
        return;
    }
    run = list_entry(list_first(&s->on_device[device]), struct run, device_link);
    c = list_entry(run, struct request, run)->connection;
    call = &run->commands.calls[0].call;
    t = call->op->n_inputs + call->op->n_outputs ? call->tensors[0] : NULL;
    activity_own(&oldest->owner, call->op->name, c->pid, c->uid);
    activity_store(&oldest->n_ops, run->commands.n_calls);
    activity_store(&oldest->rank, t ? t->rank : 0);
    for (unsigned i = 0; t && i < t->rank; i++)
        activity_store(&oldest->shape[i], t->shape[i]);
    activity_store(&oldest->dtype, t ? (unsigned)t->dtype : ACTIVITY_NO_DTYPE);
}

void device_work_submitted(struct server *s, struct run *run)
{
    const unsigned device = run->device->index;

    s->urgent_running[device] += run->priority != PRIORITY_LOW;
    s->jobs_running[device]++;
    s->n_jobs_running++;
    list_append(&s->on_device[device], &run->device_link);
    if (s->jobs_running[device] == 1)
        note_oldest(s, device);
    s->active = true;
    if (!uv_is_active((uv_handle_t *)&s->device_watchdog_timer))
        device_watchdog_watch(s);
}

void device_work_ended(struct server *s, struct run *run)
{
    const unsigned device = run->device->index;
    const bool oldest = list_first(&s->on_device[device]) == &run->device_link;

    s->urgent_running[device] -= run->priority != PRIORITY_LOW;
    s->jobs_running[device]--;
    s->n_jobs_running--;
    list_remove(&run->device_link);
    if (oldest)
        note_oldest(s, device);
    s->active = true;
}
