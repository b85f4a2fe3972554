#include "server/peer/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/peer/connection.h"
#include "server/peer/peers.h"
#include "server/peer/room.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/log.h"
#include "util/loop.h"

/* Few connections are accepted a turn: each costs as much as a request or two, and connected clients must not wait for
 * many. An idle loop turns all the faster. */
enum { ACCEPTS_A_TURN = 2, REST_MS = 50, NOTICE_BYTES = 4096 };
/* Descriptors that new connections do not get, so that connected clients can go on: an eighth of all, this many at
 * most. */
enum { HEADROOM_MAX = 1024, HEADROOM_PART = 8 };
/* The time between two looks at the sockets that wait to be closed, and how many looks in a row may find no
 * progress. */
enum { CLOSING_MS = 1, CLOSING_STILL = 10 };

static void on_listener(uv_poll_t *poll, int status, int events);

/* ---- turning away ---- */

static int accept_one(const struct listening *l)
{
    const int on = 1;
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), cause = errno;

    /* Without SO_OOBINLINE the kernel would drop out-of-band data on the way, with the descriptors that came with
     * it. */
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));
    errno = cause;
    return fd;
}

static void close_socket_of(struct server *s, struct account *a, int fd)
{
    account_close_socket(a, fd);
    if (!s->peers->listener.awaited && (s->peers->listener.excess_was = account_excess_sockets(a)) > 0)
        s->peers->listener.awaited = account_ref(a);
}

/* Closes the socket with its unread input, which may hold descriptors. */
static void close_newcomer(const struct listening *l, int fd)
{
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t length = sizeof(peer);
    struct server *s = l->server;
    struct account *a;

    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
    if (l->identity)
        peer.uid = l->identity->number;
    else if (uid_is_identity(peer.uid)) /* access_enter() refuses it */
        peer.uid = (uid_t)-1;
    a = account_get(&s->accounts, peer.uid);
    if (a)
        close_socket_of(s, a, fd);
    else if (!close_queue_close_socket(fd))
        work_close_fds(&s->loop, &fd, 1);
    account_unref(a);
}

/* Tells a new connection why it cannot be served, and closes it. */
static void refuse(const struct listening *l, int fd, const struct error *e)
{
    struct rpc_output *notice = &l->server->peers->listener.notice;

    rpc_write_error_notification(notice, e);
    rpc_output_flush(notice, fd);
    buffer_consume(&notice->bytes, buffer_length(&notice->bytes));
    close_newcomer(l, fd);
}

/* New connections get descriptors below this number: connected clients need some for the memory they register, and the
 * loop cannot watch descriptors beyond its own memory. */
static uint64_t newcomers_max(void)
{
    const uint64_t most = shortage_descriptors_max(), headroom = most / HEADROOM_PART;
    const uint64_t below = most - (headroom < HEADROOM_MAX ? headroom : HEADROOM_MAX);

    return below < loop_memory_descriptors() ? below : loop_memory_descriptors();
}

static int out_of_descriptors(const struct server *s, int cause, uint64_t taken, struct error *e)
{
    error_set(e, ERROR_QUOTA_EXCEEDED, "%s; try again later",
              cause == ENFILE ? "this machine has no descriptors left"
                              : "the daemon has no descriptors left for newcomers");
    error_detail_text(e, "quota", "descriptors");
    if (cause != ENFILE) {
        error_detail_number(e, "current", (int64_t)taken);
        error_detail_number(e, "limit", (int64_t)newcomers_max());
    }
    return error_detail_number(e, "connections", s->peers->n_connections);
}

static int too_many_connections(const struct server *s, struct error *e)
{
    error_set(e, ERROR_QUOTA_EXCEEDED, "the daemon has %u connections, the most it takes; try again later",
              s->peers->n_connections);
    error_detail_text(e, "quota", "max_connections");
    error_detail_number(e, "current", s->peers->n_connections);
    return error_detail_number(e, "limit", (int64_t)s->config.max_connections);
}

static int take_reserve(struct server *s)
{
    if (s->peers->listener.reserve_fd < 0)
        s->peers->listener.reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return s->peers->listener.reserve_fd < 0 ? -1 : 0;
}

/* ---- accepting ---- */

static void pause_all(struct server *s)
{
    list_for_each_safe (node, after, &s->peers->listener.sockets) {
        uv_poll_stop(&list_entry(node, struct listening, link)->poll);
    }
    s->peers->listener.paused = true;
}

/* -1: no memory; the sockets that were not reached stay paused. */
static int resume_all(struct server *s)
{
    list_for_each_safe (node, after, &s->peers->listener.sockets) {
        if (watch_start(&list_entry(node, struct listening, link)->poll, UV_READABLE, on_listener) < 0)
            return -1;
    }
    s->peers->listener.paused = false;
    return 0;
}

static void on_rested(uv_timer_t *timer)
{
    struct server *s = timer->data;

    if (take_reserve(s) < 0 || resume_all(s) < 0)
        uv_timer_start(timer, on_rested, REST_MS, 0);
}

/* New connections can be neither served nor refused: they wait in the queue, and the loop must not turn for them. */
static void rest(struct server *s, int cause)
{
    struct error e;

    error_set(&e, ERROR_OUT_OF_MEMORY, "nobody can be accepted: %s", strerror(cause));
    event_turned_away(s, -1, &e);
    pause_all(s);
    uv_update_time(&s->loop);
    uv_timer_start(&s->peers->listener.timer, on_rested, REST_MS, 0);
}

static void on_closing(uv_timer_t *timer)
{
    struct server *s = timer->data;
    const unsigned now = account_excess_sockets(s->peers->listener.awaited);

    s->peers->listener.still = now == s->peers->listener.excess_was ? s->peers->listener.still + 1 : 0;
    s->peers->listener.excess_was = now;
    if (now && s->peers->listener.still < CLOSING_STILL)
        return;
    if (resume_all(s) < 0)
        return; /* tried again at the next tick */
    uv_timer_stop(timer);
    s->peers->listener.awaited = account_unref(s->peers->listener.awaited);
}

/* Too many sockets wait to be closed: the thread that closes them is behind. New connections wait in the queue, in
 * their own memory, until that thread has caught up, or makes no progress at all, as where a file system does not
 * answer. */
static void wait_for_closing(struct server *s)
{
    s->peers->listener.still = 0;
    pause_all(s);
    uv_update_time(&s->loop);
    uv_timer_start(&s->peers->listener.timer, on_closing, CLOSING_MS, CLOSING_MS);
}

/* Out of descriptors: closes the reserve to take one connection off the queue, tell it so and close it. -1: that
 * failed, because the whole machine has no descriptors, or another thread took the freed one. */
static int shed(const struct listening *l, int cause)
{
    struct server *s = l->server;
    struct error e;
    int fd;

    if (s->peers->listener.reserve_fd < 0)
        return -1;
    close(s->peers->listener.reserve_fd);
    s->peers->listener.reserve_fd = -1;
    fd = accept_one(l);
    if (fd < 0) {
        const bool nobody = errno == EAGAIN; /* accept4() takes the descriptor before it looks into the queue */

        return take_reserve(s) == 0 && nobody ? 0 : -1;
    }
    out_of_descriptors(s, cause, shortage_descriptors_max(), &e);
    event_turned_away(s, fd, &e);
    refuse(l, fd, &e);
    return take_reserve(s);
}

static void take(const struct listening *l, int fd)
{
    const uint64_t began_ns = clock_now_ns();
    struct server *s = l->server;
    struct connection *c = NULL;
    struct error e;
    int r = 0;

    if ((uint64_t)fd >= newcomers_max()) /* accept4() takes the lowest free number: all below are taken */
        r = out_of_descriptors(s, EMFILE, (uint64_t)fd, &e);
    else if (s->peers->n_connections >= s->config.max_connections)
        r = too_many_connections(s, &e);
    if (r < 0)
        event_turned_away(s, fd, &e);
    else
        c = connection_new(s, fd, l->identity, &e);
    if (c)
        schedule_charge(&c->account->turns, clock_now_ns() - began_ns);
    else
        refuse(l, fd, &e);
}

static void on_listener(uv_poll_t *poll, int status, int events)
{
    const struct listening *l = poll->data;
    struct server *s = l->server;

    (void)status;
    (void)events;
    for (unsigned i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept_one(l), cause = errno;

        if (fd >= 0)
            take(l, fd);
        if (s->peers->listener.awaited) {
            wait_for_closing(s);
            return;
        }
        if (fd >= 0)
            continue;
        if (cause == EAGAIN)
            return;
        if (cause == EINTR || cause == ECONNABORTED)
            continue;
        if ((cause == EMFILE || cause == ENFILE) && shed(l, cause) == 0)
            continue;
        rest(s, cause);
        return;
    }
}

/* ---- life ---- */

static void on_unwatched(uv_handle_t *handle)
{
    free(handle->data);
}

/* Closes the socket. Its memory is freed when the loop has let go of it. */
static void listening_close(struct listening *l)
{
    list_remove(&l->link);
    close(l->fd);
    l->fd = -1;
    if (l->watched)
        uv_close((uv_handle_t *)&l->poll, on_unwatched);
    else
        free(l);
}

static struct listening *listening_new(struct server *s, int fd, struct identity *identity, struct error *e)
{
    struct listening *l = calloc(1, sizeof(*l));

    if (!l) {
        close(fd);
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a listening socket");
        return NULL;
    }
    l->server = s;
    l->fd = fd;
    l->identity = identity;
    l->poll.data = l;
    list_append(&s->peers->listener.sockets, &l->link);
    return l;
}

static int watch(struct listening *l, struct error *e)
{
    int r = uv_poll_init(&l->server->loop, &l->poll, l->fd);

    if (r < 0)
        return error_set(e, ERROR_INTERNAL, "watching the socket: %s", uv_strerror(r));
    l->watched = true;
    r = l->server->peers->listener.paused ? 0 : watch_start(&l->poll, UV_READABLE, on_listener);
    return r < 0 ? error_set(e, ERROR_INTERNAL, "watching the socket: %s", uv_strerror(r)) : 0;
}

int listener_begin(struct server *s, int fd, struct error *e)
{
    list_init(&s->peers->listener.sockets);
    s->peers->listener.reserve_fd = -1;
    rpc_output_init(&s->peers->listener.notice, NOTICE_BYTES);
    if (!listening_new(s, fd, NULL, e))
        return -1;
    if (!buffer_reserve(&s->peers->listener.notice.bytes, NOTICE_BYTES))
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
    if (take_reserve(s) < 0)
        return error_set(e, ERROR_QUOTA_EXCEEDED, "/dev/null: %s", strerror(errno));
    return 0;
}

int listener_start(struct server *s, struct error *e)
{
    uv_timer_init(&s->loop, &s->peers->listener.timer);
    s->peers->listener.timer.data = s;
    s->peers->listener.started = true;
    if (watch(list_entry(list_first(&s->peers->listener.sockets), struct listening, link), e) < 0) {
        listener_stop(s);
        return -1;
    }
    return 0;
}

int listener_add(struct server *s, int fd, struct identity *identity, struct error *e)
{
    struct listening *l = listening_new(s, fd, identity, e);

    if (!l)
        return -1;
    if (watch(l, e) < 0) {
        listening_close(l);
        return -1;
    }
    return 0;
}

void listener_remove(struct server *s, const struct identity *identity)
{
    list_for_each_safe (node, after, &s->peers->listener.sockets) {
        struct listening *l = list_entry(node, struct listening, link);

        if (l->identity == identity)
            listening_close(l);
    }
}

void listener_stop(struct server *s)
{
    if (s->peers->listener.started) {
        uv_close((uv_handle_t *)&s->peers->listener.timer, NULL);
        s->peers->listener.started = false;
    }
    s->peers->listener.awaited = account_unref(s->peers->listener.awaited);
    list_for_each_safe (node, after, &s->peers->listener.sockets) {
        listening_close(list_entry(node, struct listening, link));
    }
}

bool listener_has_newcomers(const struct server *s)
{
    list_for_each_safe (node, after, &s->peers->listener.sockets) {
        struct pollfd queue = {.fd = list_entry(node, struct listening, link)->fd, .events = POLLIN};

        if (poll(&queue, 1, 0) > 0)
            return true;
    }
    return false;
}

void listener_free(struct server *s)
{
    listener_stop(s);
    if (s->peers->listener.reserve_fd >= 0)
        close(s->peers->listener.reserve_fd);
    s->peers->listener.reserve_fd = -1;
    rpc_output_free(&s->peers->listener.notice);
}
