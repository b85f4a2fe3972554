#include "server/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "backend/memfd.h"
#include "server/connection.h"
#include "server/request.h"
#include "server/run.h"
#include "util/clock.h"
#include "util/shortage.h"
#include "util/watch.h"

enum {
    PAGE_BYTES = 4096,
    LOOK_MIN_NS = 20 * 1000, /* between two looks while the loop sleeps … */
    LOOK_MAX_NS = 1000 * 1000,
    RESUMED_A_LOOK = 16,
    LOOK_SHARE = 8 /* … or this part of how long the wait has lasted */
};
static const int64_t FAR_END = INT64_MAX;

/* One connection's page: `ready` words that the client's streams write, then `done` words that ours do. */
struct timelines {
    struct backend_memory *page;
    int fd;
    bool attached; /* to every device that can write it */
    struct server *server;
    struct work work;
};

static _Atomic(int64_t) *word(const struct timelines *t, unsigned index)
{
    return (_Atomic(int64_t) *)(void *)(t->page->host + (size_t)index * sizeof(int64_t));
}

/* ---- the page ---- */

static bool have_signals(const struct server *s)
{
    for (unsigned i = 0; i < s->devices.count; i++)
        if (s->devices.all[i]->signals)
            return true;
    return false;
}

static int make_page(struct connection *c, struct error *e)
{
    struct timelines *t;

    _Static_assert(2 * STREAMS_MAX * sizeof(int64_t) <= PAGE_BYTES, "a word a stream in each direction");
    if (c->timelines)
        return 0;
    if (!have_signals(c->server))
        return error_set(e, ERROR_UNSUPPORTED,
                         "no device here writes timelines; see `ordered` in hello's features. Use blocking calls");
    if (account_charge(c->account, c->pid, QUOTA_FDS, 1, e) < 0)
        return -1;
    t = calloc(1, sizeof(*t));
    if (!t) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a page of timelines");
        goto discharge;
    }
    t->server = c->server;
    if (memfd_new(PAGE_BYTES, &t->page, &t->fd, e) < 0)
        goto free_timelines;
    c->timelines = t;
    return 0;

free_timelines:
    free(t);
discharge:
    account_discharge(c->account, QUOTA_FDS, 1);
    return -1;
}

static void attach(struct work *work)
{
    struct request *r = (struct request *)(void *)((char *)work - offsetof(struct request, timelines.work));
    const struct device_set *devices = &r->connection->server->devices;

    for (unsigned i = 0; i < devices->count && !r->timelines.failed; i++)
        if (devices->all[i]->signals)
            r->timelines.failed = devices->all[i]->backend->memory_attach(
                                      devices->all[i], r->connection->timelines->page, &r->timelines.error) < 0;
}

static void attach_done(struct work *work)
{
    struct request *r = (struct request *)(void *)((char *)work - offsetof(struct request, timelines.work));
    struct timelines *t = r->connection->timelines;
    struct rpc_output *out;
    uint64_t start;
    int fd;

    if (r->timelines.failed) {
        request_end_error(r, &r->timelines.error);
        return;
    }
    t->attached = true;
    fd = fcntl(t->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        error_shortage(&r->timelines.error, errno, "giving you the page");
        request_end_error(r, &r->timelines.error);
        return;
    }
    start = rpc_output_position(&r->connection->output);
    out = request_result(r);
    if (out) {
        rpc_write_map(out, 4);
        rpc_write_entry_uint(out, "nfds", 1);
        rpc_write_entry_uint(out, "fd", 0);
        rpc_write_entry_uint(out, "size", PAGE_BYTES);
        rpc_write_entry_uint(out, "streams", STREAMS_MAX);
        if (rpc_output_attach(out, start, fd) < 0)
            out->bytes.failed = true;
    } else {
        close(fd);
    }
    request_end(r);
}

void handle_timelines(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct error e;

    (void)args;
    (void)fds;
    if (make_page(r->connection, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
    r->timelines.failed = false;
    work_submit(&r->connection->server->loop, &r->timelines.work, attach, attach_done);
}

/* On a thread: giving a registration back may block. */
static void detach(struct work *work)
{
    struct timelines *t = list_entry(work, struct timelines, work);
    const struct device_set *devices = &t->server->devices;

    for (unsigned i = 0; i < devices->count; i++)
        if (t->page->attached[i])
            devices->all[i]->backend->memory_detach(devices->all[i], t->page);
    memfd_unmap(t->page);
    close(t->fd);
}

static void detach_done(struct work *work)
{
    free(list_entry(work, struct timelines, work));
}

void timelines_close(struct server *s, struct timelines *t)
{
    if (!t)
        return;
    for (unsigned i = 0; i < STREAMS_MAX; i++)
        atomic_store(word(t, STREAMS_MAX + i), FAR_END);
    work_submit(&s->loop, &t->work, detach, detach_done);
}

/* ---- runs ---- */

static int check_rising(uint64_t value, uint64_t last, const char *key, struct error *e)
{
    if (!value || value > last)
        return 0;
    error_set(e, ERROR_INVALID_ARGUMENT, "%s: must be higher than %llu, the last value on this stream", key,
              (unsigned long long)last);
    return error_detail_text(e, "key", key);
}

int timeline_check(struct stream *stream, uint64_t ready, uint64_t done, struct error *e)
{
    const struct timelines *t = stream->connection->timelines;

    if (!ready && !done)
        return 0;
    if (!t || !t->attached) {
        error_set(e, ERROR_INVALID_ARGUMENT, "ready and done need the page that the method timelines answers with");
        return error_detail_text(e, "key", ready ? "ready" : "done");
    }
    if (check_rising(ready, stream->last_ready, "ready", e) < 0 || check_rising(done, stream->last_done, "done", e) < 0)
        return -1;
    stream->last_ready = ready ? ready : stream->last_ready;
    stream->last_done = done ? done : stream->last_done;
    return 0;
}

void timeline_set_signal(struct run *run)
{
    if (run->done)
        run->job.signal = (struct backend_signal){
            .page = run->stream->connection->timelines->page,
            .offset = (STREAMS_MAX + run->stream->number) * sizeof(int64_t),
            .value = run->done,
        };
}

/* What word the run waits for: its own, or one that an earlier run did not wait for. */
static uint64_t awaited(const struct run *run)
{
    return run->ready > run->stream->owed_ready ? run->ready : run->stream->owed_ready;
}

bool timeline_is_reached(const struct run *run)
{
    uint64_t value = awaited(run);
    int64_t now;

    if (!value)
        return true;
    now = atomic_load_explicit(word(run->stream->connection->timelines, run->stream->number), memory_order_acquire);
    return now >= (int64_t)value;
}

void timeline_pass_on(struct run *run)
{
    run->stream->owed_ready = awaited(run);
}

void timeline_write_done(struct run *run)
{
    _Atomic(int64_t) *done;
    int64_t now;

    if (!run->done)
        return;
    /* A device may have written the value of a later run already. */
    done = word(run->stream->connection->timelines, STREAMS_MAX + run->stream->number);
    now = atomic_load_explicit(done, memory_order_relaxed);
    while (now < (int64_t)run->done && !atomic_compare_exchange_weak_explicit(
                                           done, &now, (int64_t)run->done, memory_order_release, memory_order_relaxed))
        ;
    run->done = 0;
}

void timeline_hold(struct run *run)
{
    struct stream *stream = run->stream;

    if (!list_empty(&stream->held_link) && stream->held_for == awaited(run))
        return;
    /* Each wait has its own time, also where the one before it ended unseen by timelines_poll(). */
    stream->held_since_ns = clock_now_ns();
    stream->held_for = awaited(run);
    list_remove(&stream->held_link);
    list_append(&stream->connection->server->held.streams, &stream->held_link);
}

/* The first run that no device has; NULL: none. */
static struct run *next_run(struct stream *stream)
{
    return list_empty(&stream->queue) ? NULL : list_entry(list_first(&stream->queue), struct run, queue_link);
}

static void fail_stalled(struct connection *c)
{
    struct error e;

    error_set(&e, ERROR_STALLED, "an ordered op's stream has not come to it within stall_timeout_ms (%llu)",
              (unsigned long long)c->server->config.stall_timeout_ms);
    connection_fail(c, &e, "an ordered op stalled");
}

/* Resumes the first stream whose word is reached. False: there is none. The list may be another one afterwards, since a
 * connection may have ended. */
static bool resume_one(struct server *s)
{
    const uint64_t limit_ns = s->config.stall_timeout_ms * 1000000;
    uint64_t now = limit_ns ? clock_now_ns() : 0;

    list_for_each_safe (node, after, &s->held.streams) {
        struct stream *stream = list_entry(node, struct stream, held_link);
        struct run *run = next_run(stream);

        if (!run || timeline_is_reached(run)) {
            list_remove(node);
            s->active = true;
            stream_advance(stream);
            return true;
        }
        timeline_hold(run); /* it may not be the one that was held */
        if (limit_ns && now > stream->held_since_ns + limit_ns) {
            list_remove(node);
            fail_stalled(stream->connection);
            return true;
        }
    }
    return false;
}

void timelines_poll(struct server *s)
{
    for (unsigned i = 0; i < RESUMED_A_LOOK && !list_empty(&s->held.streams) && resume_one(s); i++)
        ;
}

/* ---- the clock ---- */

static void on_clock(uv_poll_t *poll, int status, int events)
{
    struct timeline_poll *held = poll->data;
    uint64_t times;

    (void)status;
    (void)events;
    if (read(held->timer, &times, sizeof(times)) < 0)
        return; /* set anew meanwhile; the next turn of the loop looks anyway */
}

void timelines_arm(struct server *s)
{
    uint64_t now, youngest = 0, wait;
    struct itimerspec spec = {0};

    if (list_empty(&s->held.streams))
        return;
    now = clock_now_ns();
    list_for_each_safe (node, after, &s->held.streams) {
        const struct stream *stream = list_entry(node, struct stream, held_link);

        youngest = stream->held_since_ns > youngest ? stream->held_since_ns : youngest;
    }
    wait = (now - youngest) / LOOK_SHARE;
    wait = wait < LOOK_MIN_NS ? LOOK_MIN_NS : wait > LOOK_MAX_NS ? LOOK_MAX_NS : wait;
    spec.it_value.tv_nsec = (long)wait;
    timerfd_settime(s->held.timer, 0, &spec, NULL);
}

int timelines_init(struct server *s, struct error *e)
{
    list_init(&s->held.streams);
    s->held.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (s->held.timer < 0 || uv_poll_init(&s->loop, &s->held.poll, s->held.timer) < 0)
        return error_set(e, ERROR_INTERNAL, "the clock of ordered work cannot be set up");
    s->held.poll.data = &s->held;
    if (watch_start(&s->held.poll, UV_READABLE, on_clock) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch the clock of ordered work");
    return 0;
}

void timelines_stop(struct server *s)
{
    uv_close((uv_handle_t *)&s->held.poll, NULL);
}

void timelines_free(struct server *s)
{
    close(s->held.timer);
}
