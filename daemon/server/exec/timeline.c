/* Ordered work. A run waits for its ready word in shared memory, which the client's CUDA stream writes. When it has
 * ended, its done word is written, for which the client's stream waits. See PROTOCOL.md, Ordered work.
 *
 * A waiting run stays in the daemon; no wait is ever put on the device. So a client holds up neither a channel of the
 * GPU nor a driver call that waits for the whole context (freeing memory, loading code).
 *
 * Thread: loop. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "backend/memory.h"
#include "server/exec/room.h"
#include "server/exec/run.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/loop.h"

enum {
    PAGE_BYTES = 4096,
    LOOK_MIN_NS = 20 * 1000, /* between two looks while the loop sleeps: */
    LOOK_MAX_NS = 1000 * 1000,
    LOOK_SHARE = 8, /* part of the newest wait's time, within the bounds */
    /* Bounds of a turn: streams of one user, and users, that are looked at. */
    LOOKS_A_TURN = 16,
    LOOKS_AFTER_SLEEP = 256,
    USERS_A_TURN = 16
};
static const int64_t FAR_END = INT64_MAX;

/* A connection's page: `ready` words, which the client's streams write, then `done` words, which the devices write. */
struct timelines {
    struct backend_memory *page;
    int fd;
    bool attached; /* to every device with signals; from then on the struct is only read */
    struct server *server;
    struct charge charge; /* QUOTA_FDS */
    struct work work;     /* attaches the page or gives it back; meanwhile the page is the pool's */
    bool failed;          /* set by `work`, with `error` */
    struct error error;
    struct list waiting; /* struct request, while it is attached */
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
    if (c->exec->timelines)
        return 0;
    if (!have_signals(c->server))
        return error_set(e, ERROR_UNSUPPORTED,
                         "no device here writes timelines; see `ordered` in hello's features. Use blocking calls");
    t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a page of timelines");
    t->server = c->server;
    list_init(&t->waiting);
    if (charge_take(&t->charge, c->account, c->pid, QUOTA_FDS, 1, e) < 0)
        goto free_timelines;
    if (memfd_new(PAGE_BYTES, &t->page, &t->fd, e) < 0)
        goto discharge;
    c->exec->timelines = t;
    return 0;

discharge:
    charge_free(&t->charge);
free_timelines:
    free(t);
    return -1;
}

static void attach(struct work *work)
{
    struct timelines *t = list_entry(work, struct timelines, work);
    const struct device_set *devices = &t->server->devices;

    t->failed = false;
    for (unsigned i = 0; i < devices->count && !t->failed; i++)
        if (devices->all[i]->signals)
            t->failed = devices->all[i]->backend->memory_attach(devices->all[i], t->page, &t->error) < 0;
}

static void answer(struct request *r, const struct timelines *t)
{
    const int fd = fcntl(t->fd, F_DUPFD_CLOEXEC, 0);
    struct error e;

    if (fd < 0) {
        error_shortage(&e, errno, "giving you the page");
        request_end_error(r, &e);
        return;
    }
    request_end_fds(r, &fd, 1, RECORD(timelines_reply, .nfds = 1, .fd = 0, .size = PAGE_BYTES, .streams = STREAMS_MAX));
}

static void attach_done(struct work *work)
{
    struct timelines *t = list_entry(work, struct timelines, work);
    const struct error e = t->error;
    const bool failed = t->failed;
    struct list waiting, *node;

    t->attached = !failed;
    list_take(&waiting, &t->waiting);
    while ((node = list_pop(&waiting))) { /* the list is taken first: answering may end requests */
        struct request *r = list_entry(node, struct request, queue_link);

        if (failed)
            request_end_error(r, &e);
        else
            answer(r, t);
    }
}

void handle_timelines(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    struct connection *c = r->connection;
    struct timelines *t;
    struct error e;

    (void)args;
    (void)fds;
    if (make_page(c, &e) < 0) {
        request_end_error(r, &e);
        return;
    }
    t = c->exec->timelines;
    if (t->attached) {
        answer(r, t);
        return;
    }
    if (list_empty(&t->waiting)) /* threads write one at a time: jobs read the result */
        work_submit(&c->server->loop, &t->work, attach, attach_done);
    list_append(&t->waiting, &r->queue_link);
}

/* On the pool: giving a registration back may block. */
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
    struct timelines *t = list_entry(work, struct timelines, work);

    charge_free(&t->charge);
    free(t);
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
    const struct timelines *t = stream->connection->exec->timelines;

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
    run->job.signal = (struct backend_signal){
        .page = run->stream->connection->exec->timelines->page,
        .offset = (STREAMS_MAX + run->stream->number) * sizeof(int64_t),
        .value = run->done,
    };
}

/* The value that the run waits for: its own, or one that an earlier run left. */
static uint64_t awaited(const struct run *run)
{
    return run->ready > run->stream->owed_ready ? run->ready : run->stream->owed_ready;
}

bool timeline_is_reached(const struct run *run)
{
    uint64_t value = awaited(run);
    int64_t now;

    /* An offered run's word was reached. A run behind it may have left another one since. */
    if (!value || run->state != RUN_QUEUED)
        return true;
    now =
        atomic_load_explicit(word(run->stream->connection->exec->timelines, run->stream->number), memory_order_acquire);
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
    done = word(run->stream->connection->exec->timelines, STREAMS_MAX + run->stream->number);
    now = atomic_load_explicit(done, memory_order_relaxed);
    while (now < (int64_t)run->done && !atomic_compare_exchange_weak_explicit(
                                           done, &now, (int64_t)run->done, memory_order_release, memory_order_relaxed))
        ;
    run->done = 0;
}

void timeline_hold(struct run *run)
{
    struct stream *stream = run->stream;
    struct account *a = stream->connection->account;
    struct server *s = stream->connection->server;

    if (!list_empty(&stream->held_link) && stream->held_for == awaited(run))
        return;
    /* Each wait has its own time, even if timelines_poll() did not see the end of the one before. */
    stream->held_since_ns = clock_now_ns();
    stream->held_for = awaited(run);
    s->exec->held.newest_ns = stream->held_since_ns;
    list_remove(&stream->held_link);
    list_append(a->held.next, &stream->held_link); /* in front: the next look is at this one */
    if (list_empty(&a->held_link))
        list_append(s->exec->held.users.next, &a->held_link);
}

/* The first run that no device has; NULL: none. */
static struct run *next_run(struct stream *stream)
{
    struct list *node = list_first(&stream->queue);

    return node ? list_entry(node, struct run, queue_link) : NULL;
}

static void fail_stalled(struct connection *c)
{
    struct error e;

    error_set(&e, ERROR_STALLED, "an ordered op's stream has not come to it within stall_timeout_ms (%llu)",
              (unsigned long long)c->server->config.stall_timeout_ms);
    connection_fail(c, &e, "an ordered op stalled");
}

/* Resumes the stream if its word is reached. */
static void look(struct server *s, struct stream *stream)
{
    enum { RESUMED_NS = 1000 };
    const uint64_t limit_ns = s->config.stall_timeout_ms * 1000000;
    struct run *run = next_run(stream);

    if (!run || timeline_is_reached(run)) {
        list_remove(&stream->held_link);
        s->active = true;
        schedule_charge(&stream->connection->account->turns, RESUMED_NS);
        stream_advance(stream);
        return;
    }
    timeline_hold(run); /* another run may be first now */
    if (limit_ns && clock_now_ns() > stream->held_since_ns + limit_ns) {
        list_remove(&stream->held_link);
        fail_stalled(stream->connection);
    }
}

/* Looks at each of the user's streams at most once, and at a bounded number of them. */
static void look_at_user(struct server *s, struct account *a, unsigned looks)
{
    while (looks-- && !list_empty(&a->held)) {
        struct stream *stream = list_entry(list_first(&a->held), struct stream, held_link);

        if (stream->looked == s->exec->held.turn)
            return;
        stream->looked = s->exec->held.turn;
        list_remove(&stream->held_link);
        list_append(&a->held, &stream->held_link);
        look(s, stream);
    }
    if (list_empty(&a->held))
        list_remove(&a->held_link);
}

void timelines_poll(struct server *s)
{
    const unsigned looks = s->exec->held.slept ? LOOKS_AFTER_SLEEP : LOOKS_A_TURN;

    s->exec->held.slept = false;
    s->exec->held.turn++;
    for (unsigned i = 0; i < USERS_A_TURN && !list_empty(&s->exec->held.users); i++) {
        struct account *a = list_entry(list_first(&s->exec->held.users), struct account, held_link);

        if (a->looked == s->exec->held.turn)
            return;
        a->looked = s->exec->held.turn;
        list_remove(&a->held_link);
        list_append(&s->exec->held.users, &a->held_link);
        look_at_user(s, a, looks);
    }
}

/* ---- the clock ---- */

static void on_clock(uv_poll_t *poll, int status, int events)
{
    struct timeline_poll *held = poll->data;
    uint64_t times;

    (void)status;
    (void)events;
    if (read(held->timer, &times, sizeof(times)) < 0)
        return; /* the timer was set anew; the next turn of the loop looks anyway */
}

void timelines_arm(struct server *s)
{
    struct itimerspec spec = {0};
    uint64_t wait;

    s->exec->held.slept = true;
    wait = (clock_now_ns() - s->exec->held.newest_ns) / LOOK_SHARE;
    wait = wait < LOOK_MIN_NS ? LOOK_MIN_NS : wait > LOOK_MAX_NS ? LOOK_MAX_NS : wait;
    spec.it_value.tv_nsec = (long)wait;
    timerfd_settime(s->exec->held.timer, 0, &spec, NULL);
}

int timelines_init(struct server *s, struct error *e)
{
    list_init(&s->exec->held.users);
    s->exec->held.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (s->exec->held.timer < 0 || uv_poll_init(&s->loop, &s->exec->held.poll, s->exec->held.timer) < 0)
        return error_set(e, ERROR_INTERNAL, "the clock of ordered work cannot be set up");
    s->exec->held.poll.data = &s->exec->held;
    if (watch_start(&s->exec->held.poll, UV_READABLE, on_clock) < 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch the clock of ordered work");
    return 0;
}

void timelines_stop(struct server *s)
{
    uv_close((uv_handle_t *)&s->exec->held.poll, NULL);
}

void timelines_free(struct server *s)
{
    close(s->exec->held.timer);
}
