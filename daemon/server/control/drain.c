#include "server/control/drain.h"

#include "server/control/room.h"
#include "server/control/shutdown.h"
#include "server/control/watchdog.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/clock.h"
#include "util/log.h"

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

void drain_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->control->drain.timer, NULL);
}

static void answer(struct request *r)
{
    const struct server *s = r->connection->server;
    struct rpc_output *out = request_result(r);

    if (out) {
        rpc_write_map(out, 3);
        rpc_write_entry_bool(out, "drained", s->admission.work == 0);
        rpc_write_entry_uint(out, "jobs", s->admission.work);
        rpc_write_entry_uint(out, "connections", peers_open_connections(s));
    }
    request_end(r);
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
    (void)timer; /* it has woken the loop, whose turn calls drain_step() */
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
