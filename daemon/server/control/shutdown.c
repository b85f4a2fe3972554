/* The shutdown: refuses new work, sends the replies of work in flight, closes everything, in that order and within
 * server.shutdown_grace_ms. Thread: loop. */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "server/code/code.h"
#include "server/control/room.h"
#include "server/exec/exec.h"
#include "server/observe/observe.h"
#include "server/peer/back_pressure.h"
#include "server/peer/connection.h"
#include "server/peer/listener.h"
#include "server/peer/peers.h"
#include "server/peer/request.h"
#include "server/tune/tune.h"
#include "util/clock.h"
#include "util/log.h"

static void drain_close(struct server *s);

enum { LOST_GRACE_MS = 500, WIND_UP_MS = 10000 };

static void on_grace_over(uv_timer_t *timer);

/* The handler stays installed for good, so that a second signal near the end of the process is harmless. A uv_signal_t
 * would put the default action back. */
static _Atomic(struct server *) signalled_server;
static atomic_int signal_seen, reload_seen; /* lock-free, as a signal may interrupt any thread */

static void on_signal(int number)
{
    struct server *s = atomic_load(&signalled_server);

    if (number == SIGHUP)
        reload_seen = 1;
    else
        signal_seen = number;
    if (s)
        uv_async_send(&s->wake);
}

void shutdown_init(struct server *s)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigset_t hangup;

    uv_timer_init(&s->loop, &s->control->shutdown_timer);
    s->control->shutdown_timer.data = s;
    signal_seen = reload_seen = 0;
    atomic_store(&signalled_server, s);
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    /* SIGHUP was blocked during the start; one that came then is delivered now. */
    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP);
    pthread_sigmask(SIG_UNBLOCK, &hangup, NULL);
}

void shutdown_check_signals(struct server *s)
{
    if (s->admission.stopping)
        return;
    if (reload_seen && !s->control->reading_settings) {
        reload_seen = 0;
        server_read_settings(s, false);
    }
    if (!signal_seen)
        return;
    log_info("stop", "signal=%d", (int)signal_seen);
    shutdown_begin(s);
}

static void tell_stopping(struct server *s, uint64_t grace_ms)
{
    if (s->hooks.stopping)
        s->hooks.stopping(s->hooks.context, grace_ms + WIND_UP_MS);
}

void shutdown_begin(struct server *s)
{
    uint64_t grace = s->config.shutdown_grace_ms;

    if (s->admission.stopping)
        return;
    s->admission.stopping = true;
    listener_stop(s);
    /* Requests sent before the shutdown are read and answered, with results or with shutting_down. */
    list_for_each_safe (node, after, peers_connections(s))
        connection_end_input(list_entry(node, struct connection, link));
    tune_cancel_all(s);
    /* A lost device completes nothing more: failures are reported soon, and clients wait for the next daemon. */
    if (s->control->exit_status == SERVER_EXIT_DEVICE_LOST && grace > LOST_GRACE_MS)
        grace = LOST_GRACE_MS;
    tell_stopping(s, grace);
    uv_timer_start(&s->control->shutdown_timer, on_grace_over, grace, grace + 1000);
}

static void cancel_everything(struct server *s)
{
    list_for_each_safe (node, after, peers_connections(s)) {
        struct connection *c = list_entry(node, struct connection, link);
        struct error e;

        exec_cancel_all(c);
        error_set(&e, ERROR_SHUTTING_DOWN, "the daemon is ending; connect again");
        compiles_cancel_all(c, &e);
        barriers_advance(c);
    }
}

/* False: there are none. */
static bool end_processes(struct server *s, bool all)
{
    bool any = false;

    for (unsigned i = 0; i < s->devices.count; i++) {
        struct backend_device *d = s->devices.all[i];

        if (d->backend->end_processes)
            d->backend->end_processes(d, all);
        any = any || d->backend->end_processes;
    }
    return any;
}

/* First cancels the work that still runs, and ends the executors that have code of users; then, where a driver hangs,
 * the other one. At last something hangs that nothing here can stop. */
static void on_grace_over(uv_timer_t *timer)
{
    struct server *s = timer->data;

    if (s->admission.cancelled && !s->control->processes_ended && end_processes(s, true)) {
        s->control->processes_ended = true;
        log_error("stop_executors", "jobs=%u", exec_jobs(s));
        tell_stopping(s, s->config.shutdown_grace_ms + 1000);
        return;
    }
    if (s->admission.cancelled || s->control->exit_status == SERVER_EXIT_DEVICE_LOST) {
        log_error("stop_forced", "jobs=%u why=\"a running kernel does not end\"", exec_jobs(s));
        _exit(s->control->exit_status ? s->control->exit_status : SERVER_EXIT_FAILED);
    }
    s->admission.cancelled = true;
    tell_stopping(s, s->config.shutdown_grace_ms + 1000);
    cancel_everything(s);
    end_processes(s, false);
}

void shutdown_step(struct server *s)
{
    list_for_each_safe (node, after, peers_connections(s)) {
        struct connection *c = list_entry(node, struct connection, link);

        /* A client may read its last replies until the grace is over. */
        if (!c->closed && !c->inflight && (!connection_has_output(c) || s->admission.cancelled))
            connection_close(c, "the daemon is ending");
    }
    if (!list_empty(peers_connections(s)) || s->mappings.count || observe_is_busy(s) || tune_is_busy(s) ||
        modules_are_loading(s) || s->control->handles_closed)
        return;
    s->control->handles_closed = true;
    atomic_store(&signalled_server, NULL);
    watchdog_wind_up(s);
    mapping_registry_stop(&s->mappings);
    event_loop_stop(s);
    peers_stop(s);
    modules_stop(s);
    exec_stop(s);
    observe_stop(s);
    tune_stop(s);
    trimming_stop(&s->trimming);
    uv_close((uv_handle_t *)&s->control->shutdown_timer, NULL);
    drain_close(s);
    idle_exit_close(s);
    socket_folder_close(s);
    close_queues_stop(s->accounts.close_queues);
}

/* ---- drain ---- */

/* The state of a drain request. */
struct drain_call {
    uint64_t by_ns; /* 0: no limit */
};
const size_t drain_state_bytes = sizeof(struct drain_call);

static struct drain_call *drain_of(const struct request *r)
{
    return request_state(r);
}

void drain_init(struct server *s)
{
    list_init(&s->control->drain.waiting);
    uv_timer_init(&s->loop, &s->control->drain.timer);
    s->control->drain.timer.data = s;
}

static void drain_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->control->drain.timer, NULL);
}

static void answer(struct request *r)
{
    const struct server *s = r->connection->server;

    request_end_record(r, RECORD(drain_reply, .drained = s->admission.work == 0, .jobs = s->admission.work,
                                 .connections = peers_open_connections(s)));
}

static void answer_all(struct server *s)
{
    struct list *node;

    while ((node = list_pop(&s->control->drain.waiting)))
        answer(list_entry(node, struct request, queue_link));
}

static void resume(struct request *r)
{
    struct server *s = r->connection->server;
    char who[CONNECTION_WHO_MAX];

    if (s->admission.draining && !s->admission.stopping)
        log_info("resume", "%s jobs=%u", connection_who(r->connection, who), s->admission.work);
    s->admission.draining = s->control->drain.stop = s->control->drain.done = false;
    watchdog_tell(s);
    answer_all(s);
    answer(r);
}

static void begin(struct request *r, bool stop, uint64_t timeout_ms)
{
    struct server *s = r->connection->server;
    char who[CONNECTION_WHO_MAX];

    log_info("drain", "%s stop=%s timeout_ms=%llu jobs=%u", connection_who(r->connection, who), stop ? "true" : "false",
             (unsigned long long)timeout_ms, s->admission.work);
    s->admission.draining = true;
    s->control->drain.done = false;
    watchdog_tell(s);
    drain_of(r)->by_ns = timeout_ms ? r->received_ns + timeout_ms * 1000000U : 0;
    if (stop) {
        s->control->drain.stop = true;
        s->control->drain.stop_by_ns = drain_of(r)->by_ns;
    }
    list_append(&s->control->drain.waiting, &r->queue_link);
}

void handle_drain(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct error e;

    (void)fds;
    if (args[DRAIN_stop].b && args[DRAIN_resume].b) {
        error_set(&e, ERROR_INVALID_ARGUMENT, "resume: a daemon that goes on cannot stop; give either");
        error_detail_text(&e, "key", "resume");
        request_end_error(r, &e);
        return;
    }
    if (args[DRAIN_resume].b)
        resume(r);
    else
        begin(r, args[DRAIN_stop].b, args[DRAIN_timeout_ms].u);
}

static void on_timer(uv_timer_t *timer)
{
    (void)timer; /* the timer has woken the loop, whose turn calls drain_step() */
}

/* Wakes the loop at the earliest time limit. */
static void arm(struct server *s, uint64_t now)
{
    uint64_t earliest =
        s->control->drain.stop && s->control->drain.stop_by_ns ? s->control->drain.stop_by_ns : UINT64_MAX;

    list_for_each_safe (node, after, &s->control->drain.waiting) {
        const struct request *r = list_entry(node, struct request, queue_link);

        if (drain_of(r)->by_ns && drain_of(r)->by_ns < earliest)
            earliest = drain_of(r)->by_ns;
    }
    if (earliest != UINT64_MAX)
        uv_timer_start(&s->control->drain.timer, on_timer, earliest > now ? (earliest - now) / 1000000 + 1 : 0, 0);
}

static bool is_over(uint64_t by_ns, uint64_t now)
{
    return by_ns && now >= by_ns;
}

bool drain_step(struct server *s)
{
    const bool empty = s->admission.work == 0;
    bool did = false;
    uint64_t now;

    if (!s->admission.draining || (list_empty(&s->control->drain.waiting) && !s->control->drain.stop))
        return false;
    now = clock_now_ns();
    if (empty && !s->control->drain.done) {
        s->control->drain.done = true;
        log_info("drained", "connections=%u", peers_open_connections(s));
    }
    list_for_each_safe (node, after, &s->control->drain.waiting) {
        struct request *r = list_entry(node, struct request, queue_link);

        if (!empty && !is_over(drain_of(r)->by_ns, now) && !r->connection->closed)
            continue;
        list_remove(node);
        answer(r);
        did = true;
    }
    if (s->control->drain.stop && (empty || is_over(s->control->drain.stop_by_ns, now))) {
        s->control->drain.stop = false;
        log_info("stop", "why=\"drained\" jobs=%u", s->admission.work);
        shutdown_begin(s);
        return true;
    }
    arm(s, now);
    return did;
}
