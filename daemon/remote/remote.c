#include "remote/remote.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/error.h"
#include "util/list.h"
#include "util/log.h"
#include "util/loop.h"
#include "util/process.h"

/* ---- the circuit breaker ---- */

bool breaker_allows(struct breaker *b, uint64_t now_ms)
{
    if (!b->open)
        return true;
    if (b->trying || now_ms < b->until_ms)
        return false;
    b->trying = true;
    return true;
}

bool breaker_succeed(struct breaker *b)
{
    const bool was_open = b->open;

    *b = (struct breaker){0};
    return was_open;
}

bool breaker_fail(struct breaker *b, uint64_t now_ms)
{
    const bool was_open = b->open;

    if (was_open && !b->trying)
        return false;
    if (!was_open && ++b->failures < BREAKER_FAILURES)
        return false;
    b->trying = false;
    b->open = true;
    b->rest_ms = was_open ? 2 * b->rest_ms : BREAKER_FIRST_MS;
    if (b->rest_ms > BREAKER_LAST_MS)
        b->rest_ms = BREAKER_LAST_MS;
    b->until_ms = now_ms + b->rest_ms;
    return !was_open;
}

void breaker_abandon(struct breaker *b)
{
    b->trying = false;
}

uint64_t breaker_rests(const struct breaker *b, uint64_t now_ms)
{
    if (!b->open || now_ms >= b->until_ms)
        return 0;
    return b->until_ms - now_ms;
}

enum {
    READY_MS = 30000,
    TICK_MS = 500,
    GRACE_MS = 2000, /* beyond a transfer's own time limit, which the helper keeps */
};

/* A connection to a helper, and the process where the daemon has started it. Lives until both have ended, then frees
 * itself. */
struct link {
    struct work work; /* opening it may block: first */
    struct remote *remote;
    int fd, pidfd; /* -1: none */
    pid_t pid;     /* 0: none was started */
    uv_poll_t poll, pidfd_poll;
    uv_timer_t patience;
    unsigned handles;
    bool polled, pidfd_polled; /* the handles were made */
    bool ready, stopped;
    struct error error; /* set when it could not be opened */
};

enum remote_kind { REMOTE_GET, REMOTE_PUT, REMOTE_KINDS };

struct remote {
    uv_loop_t *loop;
    struct remote_setup setup;
    char helper[sizeof(((struct sockaddr_un *)0)->sun_path)], user[64], binary[PATH_MAX];
    struct link *link; /* NULL: none, the timer runs */
    uv_timer_t again;  /* the helper's next start */
    uv_timer_t tick;   /* looks for requests that the helper has forgotten or does not read, while there are some */
    uint64_t full_until_ms; /* when the helper must have read from its full socket; 0: the socket is not full */
    struct backoff backoff;
    bool served; /* the present helper has answered */
    bool told;   /* the log says that there is no helper */
    struct breaker breakers[REMOTE_KINDS];
    struct list waiting, sent;
    unsigned n_waiting, n_sent[REMOTE_KINDS];
    uint64_t next_id, skipped;
    char why[REMOTE_WHY_SIZE];
    unsigned busy; /* links, timers, callbacks that run */
    bool closing;
    void (*closed)(void *context);
    void *closed_context;
};

struct remote_request {
    struct list link; /* in remote.waiting or remote.sent */
    struct remote *remote;
    enum remote_kind kind;
    uint64_t id, until_ms; /* sent: when the helper must have answered */
    unsigned char key[REMOTE_KEY_BYTES];
    int fd; /* PUT: owned; -1: given away */
    remote_done *done;
    void *context;
};

static void remote_let_go(struct remote *r);
static void pump(struct remote *r);
static void remote_link_answer(struct remote *r, const struct remote_event *event, int fd);
static void remote_link_lost(struct remote *r, const char *why);

/* ---- the connection to the helper: opened on the pool, watched on the loop, never waited for ---- */

static void connect_to(const struct remote *r, struct link *l)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path, r->helper, sizeof(address.sun_path));
    l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        error_shortage(&l->error, errno, "a socket for the remote cache");
    else if (connect(l->fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        error_set(&l->error, ERROR_UNSUPPORTED, "connecting to %.100s: %s", r->helper, strerror(errno));
}

/* The helper gets the part of the environment that finds libraries, and proxies. */
static void start_process(const struct remote *r, struct link *l)
{
    static const char *const kept[] = {"LD_LIBRARY_PATH", "http_proxy",    "https_proxy",  "no_proxy",
                                       "HTTPS_PROXY",     "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_PROXY"};
    enum { KEPT = sizeof(kept) / sizeof(kept[0]) };
    static char name[] = "kopsd", argument[] = REMOTE_HELPER_ARGUMENT;
    char user[sizeof("user=") + sizeof(r->user)], parent[32], *arguments[] = {name, argument, parent, user, NULL};
    char *environment[KEPT + 1] = {NULL};
    struct remote_process p;
    unsigned n = 0;

    snprintf(user, sizeof(user), "user=%s", r->user);
    snprintf(parent, sizeof(parent), "parent=%d", (int)getpid());
    for (unsigned i = 0; i < KEPT; i++) {
        const char *value = getenv(kept[i]);

        if (value && asprintf(&environment[n], "%s=%s", kept[i], value) >= 0)
            n++;
    }
    environment[n] = NULL;
    if (remote_start("the helper of the remote cache", r->binary, arguments, environment, REMOTE_HELPER_FD, &p,
                     &l->error) == 0) {
        l->pid = p.pid;
        l->fd = p.fd;
        l->pidfd = p.pidfd;
    }
    while (n)
        free(environment[--n]);
}

static void open_run(struct work *work)
{
    struct link *l = (struct link *)work;
    const struct remote *r = l->remote;

    if (*r->helper)
        connect_to(r, l);
    else
        start_process(r, l);
    if (l->error.code && l->fd >= 0) {
        close(l->fd);
        l->fd = -1;
    } else if (!l->error.code && remote_send(l->fd, &r->setup, sizeof(r->setup), MSG_DONTWAIT, -1) < 0) {
        error_set(&l->error, ERROR_UNSUPPORTED, "telling the helper of the remote cache: %s", strerror(errno));
    }
}

/* ---- the connection ends ---- */

static void handle_closed(uv_handle_t *handle)
{
    struct link *l = handle->data;
    struct remote *r = l->remote;

    if (--l->handles)
        return;
    if (l->fd >= 0)
        close(l->fd);
    if (l->pidfd >= 0)
        close(l->pidfd);
    free(l);
    remote_let_go(r);
}

static void close_all(struct link *l)
{
    if (l->polled)
        uv_close((uv_handle_t *)&l->poll, handle_closed);
    if (l->pidfd_polled)
        uv_close((uv_handle_t *)&l->pidfd_poll, handle_closed);
    uv_close((uv_handle_t *)&l->patience, handle_closed);
}

static void end_process(struct link *l)
{
    syscall(SYS_pidfd_send_signal, l->pidfd, SIGKILL, NULL,
            0); /* where it may not be killed it sees the socket's end */
}

static void link_stop(struct link *l)
{
    if (l->remote->link == l)
        l->remote->link = NULL;
    if (l->stopped)
        return;
    l->stopped = true;
    uv_timer_stop(&l->patience);
    if (!l->polled)
        return; /* open_done() sees it */
    uv_poll_stop(&l->poll);
    shutdown(l->fd, SHUT_RDWR);
    if (l->pid)
        end_process(l); /* on_exit_of_process() goes on */
    else
        close_all(l);
}

/* ---- events ---- */

static void on_impatience(uv_timer_t *timer)
{
    remote_link_lost(((struct link *)timer->data)->remote, "the helper does not get ready");
}

static void on_event(struct link *l, struct remote_event *event, int fd)
{
    struct remote *r = l->remote;

    event->why[sizeof(event->why) - 1] = '\0';
    if (event->kind == REMOTE_EVENT_ANSWER && l->ready) {
        remote_link_answer(r, event, fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    if (event->kind == REMOTE_EVENT_READY && !l->ready) {
        char quoted[2 * REMOTE_WHY_SIZE];

        l->ready = true;
        uv_timer_stop(&l->patience);
        if (*event->why)
            log_warning("remote_cache", "sandbox=incomplete why=%s",
                        log_quote(quoted, sizeof(quoted), event->why, strlen(event->why)));
        if (r->told)
            log_info("remote_cache", "helper=ready");
        r->told = false;
        pump(r);
    } else if (event->kind == REMOTE_EVENT_FAILED) {
        remote_link_lost(r, event->why);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    enum { A_TURN = 32 };
    struct link *l = poll->data;
    struct remote *r = l->remote;
    struct remote_event event;

    (void)events;
    r->busy++;
    for (unsigned i = 0; i < A_TURN && !l->stopped; i++) {
        int fd = -1;
        long n = status < 0 ? 0 : remote_receive(l->fd, &event, sizeof(event), MSG_DONTWAIT, &fd);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n == sizeof(event)) {
            on_event(l, &event, fd);
            continue;
        }
        if (fd >= 0)
            close(fd);
        remote_link_lost(r, n > 0 ? "the helper does not speak as expected" : "the helper ended");
    }
    remote_let_go(r);
}

static void on_exit_of_process(uv_poll_t *poll, int status, int events)
{
    struct link *l = poll->data;
    int ended = 0;

    (void)status;
    (void)events;
    if (waitpid(l->pid, &ended, WNOHANG) == 0)
        return;
    log_debug("remote_cache", "pid=%d ended=%d", (int)l->pid, ended);
    if (!l->stopped)
        on_readable(&l->poll, 0, UV_READABLE); /* the helper's last words; then the end, which stops the link */
    if (!l->stopped)
        remote_link_lost(l->remote, "the helper ended");
    uv_poll_stop(poll);
    close_all(l);
}

static int add_poll(struct link *l, uv_poll_t *poll, int fd, bool *made)
{
    int error = uv_poll_init(l->remote->loop, poll, fd);

    if (error < 0)
        return error;
    poll->data = l;
    *made = true;
    l->handles++;
    return 0;
}

static int watch(struct link *l)
{
    int error = 0;

    if (l->pid) {
        error = add_poll(l, &l->pidfd_poll, l->pidfd, &l->pidfd_polled);
        if (!error)
            error = watch_start(&l->pidfd_poll, UV_READABLE, on_exit_of_process);
    }
    if (!error)
        error = add_poll(l, &l->poll, l->fd, &l->polled);
    if (!error)
        error = watch_start(&l->poll, UV_READABLE, on_readable);
    if (error < 0 && l->pid) { /* the process has only just begun, so reaping it takes no time */
        end_process(l);
        shutdown(l->fd, SHUT_RDWR);
        waitpid(l->pid, NULL, 0);
        l->pid = 0;
    }
    return error;
}

static void open_done(struct work *work)
{
    struct link *l = (struct link *)work;
    struct remote *r = l->remote;
    const bool stopped = l->stopped;
    int error;

    if (l->fd >= 0 && (error = watch(l)) < 0)
        error_set(&l->error, ERROR_OUT_OF_MEMORY, "the helper of the remote cache cannot be watched: %s",
                  uv_strerror(error));
    r->busy++;
    if (stopped) {
        l->stopped = false;
        link_stop(l);
    } else if (l->error.code) {
        remote_link_lost(r, l->error.message);
    } else {
        uv_timer_start(&l->patience, on_impatience, READY_MS, 0);
    }
    if (!l->polled) { /* nothing else will close it; a process that could not be watched was reaped */
        l->stopped = true;
        close_all(l);
    }
    remote_let_go(r);
}

static int link_start(struct remote *r, struct error *e)
{
    struct link *l = calloc(1, sizeof(*l));

    if (!l)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the helper of the remote cache");
    l->remote = r;
    l->fd = l->pidfd = -1;
    uv_timer_init(r->loop, &l->patience);
    l->patience.data = l;
    l->handles = 1;
    r->busy++;
    r->link = l;
    work_submit(r->loop, &l->work, open_run, open_done);
    return 0;
}

static const unsigned most_sent[REMOTE_KINDS] = {[REMOTE_GET] = REMOTE_GETS, [REMOTE_PUT] = REMOTE_PUTS};
static const char *const kind_names[REMOTE_KINDS] = {[REMOTE_GET] = "get", [REMOTE_PUT] = "put"};

const char *const remote_state_names[] = {
    [REMOTE_STARTING] = "starting", [REMOTE_SERVING] = "serving", [REMOTE_RESTING] = "resting", [REMOTE_DOWN] = "down"};

static uint64_t now_ms(const struct remote *r)
{
    return uv_now(r->loop);
}

static void note_why(struct remote *r, const char *why)
{
    snprintf(r->why, sizeof(r->why), "%s", why ? why : "");
    for (char *c = r->why; *c; c++) /* the helper's words: clients get them as text */
        if (*c < ' ' || *c > '~')
            *c = '?';
}

/* ---- verdicts: one line in the log at each change ---- */

static void succeed(struct remote *r, enum remote_kind kind)
{
    if (breaker_succeed(&r->breakers[kind]))
        log_info("remote_cache", "state=serving what=%s", kind_names[kind]);
}

static void fail(struct remote *r, enum remote_kind kind, const char *why)
{
    char quoted[2 * REMOTE_WHY_SIZE];

    note_why(r, why);
    if (breaker_fail(&r->breakers[kind], now_ms(r)))
        log_warning("remote_cache", "state=resting what=%s failures=%d why=%s", kind_names[kind], BREAKER_FAILURES,
                    log_quote(quoted, sizeof(quoted), r->why, strlen(r->why)));
}

void remote_judge(struct remote *r, bool good, const char *why)
{
    good ? succeed(r, REMOTE_GET) : fail(r, REMOTE_GET, why);
}

/* ---- requests ---- */

static void request_free(struct remote_request *q)
{
    list_remove(&q->link);
    if (q->fd >= 0)
        close(q->fd);
    free(q);
}

static void end(struct remote_request *q, enum remote_status status, int fd, const char *why)
{
    remote_done *done = q->done;
    void *context = q->context;

    request_free(q);
    if (done)
        done(context, status, fd, why);
    else if (fd >= 0)
        close(fd);
}

static struct remote_request *first(const struct list *head)
{
    struct list *node = list_first(head);

    return node ? list_entry(node, struct remote_request, link) : NULL;
}

static void on_tick(uv_timer_t *timer)
{
    struct remote *r = timer->data;

    list_for_each_safe (node, after, &r->sent) {
        if (list_entry(node, struct remote_request, link)->until_ms < now_ms(r)) {
            remote_link_lost(r, "the helper does not answer");
            return;
        }
    }
    pump(r);
    if (r->full_until_ms && r->full_until_ms < now_ms(r))
        remote_link_lost(r, "the helper does not read");
    else if (list_empty(&r->sent) && !r->full_until_ms)
        uv_timer_stop(&r->tick);
}

/* Returns when the helper must have done what it was just asked, for which on_tick() looks. */
static uint64_t start_patience(struct remote *r)
{
    if (!uv_is_active((uv_handle_t *)&r->tick))
        uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    return now_ms(r) + r->setup.timeout_ms + GRACE_MS;
}

static int send_request(struct remote *r, struct remote_request *q)
{
    static const uint32_t orders[REMOTE_KINDS] = {[REMOTE_GET] = REMOTE_ORDER_GET, [REMOTE_PUT] = REMOTE_ORDER_PUT};
    struct remote_order order = {.kind = orders[q->kind], .id = ++r->next_id};

    memcpy(order.key, q->key, sizeof(order.key));
    if (remote_send(r->link->fd, &order, sizeof(order), MSG_DONTWAIT, q->fd) < 0)
        return -1;
    if (q->fd >= 0)
        close(q->fd);
    q->fd = -1;
    q->id = order.id;
    q->until_ms = start_patience(r);
    list_remove(&q->link);
    list_append(&r->sent, &q->link);
    r->n_waiting--;
    r->n_sent[q->kind]++;
    return 0;
}

/* Sends what waits, as far as the helper may have more. A full socket is tried again at the next answer, and at each
 * tick: of questions that were cancelled there comes none. */
static void pump(struct remote *r)
{
    if (!r->link || !r->link->ready)
        return;
    list_for_each_safe (node, after, &r->waiting) {
        struct remote_request *q = list_entry(node, struct remote_request, link);

        if (r->n_sent[q->kind] >= most_sent[q->kind] || send_request(r, q) == 0)
            continue;
        r->full_until_ms = r->full_until_ms ? r->full_until_ms : start_patience(r);
        return;
    }
    r->full_until_ms = 0;
}

static struct remote_request *ask(struct remote *r, enum remote_kind kind, const unsigned char *key, int fd,
                                  remote_done *done, void *context)
{
    struct remote_request *q = NULL;

    uv_update_time(r->loop);
    if (!r->closing && r->link && r->n_waiting < REMOTE_WAITING && breaker_allows(&r->breakers[kind], now_ms(r))) {
        q = calloc(1, sizeof(*q));
        if (!q)
            breaker_abandon(&r->breakers[kind]);
    }
    if (!q) {
        if (fd >= 0)
            close(fd);
        r->skipped += kind == REMOTE_GET;
        return NULL;
    }
    *q = (struct remote_request){.remote = r, .kind = kind, .fd = fd, .done = done, .context = context};
    memcpy(q->key, key, sizeof(q->key));
    list_append(&r->waiting, &q->link);
    r->n_waiting++;
    pump(r);
    return q;
}

struct remote_request *remote_get(struct remote *r, const unsigned char key[REMOTE_KEY_BYTES], remote_done *done,
                                  void *context)
{
    return ask(r, REMOTE_GET, key, -1, done, context);
}

struct remote_request *remote_put(struct remote *r, const unsigned char key[REMOTE_KEY_BYTES], int fd,
                                  remote_done *done, void *context)
{
    return ask(r, REMOTE_PUT, key, fd, done, context);
}

static void leave(struct remote_request *q)
{
    struct remote *r = q->remote;

    if (q->id)
        r->n_sent[q->kind]--;
    else
        r->n_waiting--;
}

void remote_cancel(struct remote_request *q, bool too_slow)
{
    struct remote *r = q->remote;
    const struct remote_order order = {.kind = REMOTE_ORDER_CANCEL, .id = q->id};

    if (too_slow)
        fail(r, q->kind, "its answer came too late");
    else
        breaker_abandon(&r->breakers[q->kind]);
    if (too_slow && q->id && r->link) { /* on_tick() sees whether the helper answers at all */
        q->done = NULL;
        return;
    }
    leave(q);
    if (q->id && r->link && r->link->ready)
        remote_send(r->link->fd, &order, sizeof(order), MSG_DONTWAIT, -1); /* not heard: its answer is for nobody */
    request_free(q);
    pump(r);
}

static void remote_link_answer(struct remote *r, const struct remote_event *event, int fd)
{
    struct remote_request *q = NULL;

    list_for_each_safe (node, after, &r->sent) {
        struct remote_request *one = list_entry(node, struct remote_request, link);

        if (one->id == event->id)
            q = one;
    }
    if (!q || (event->answer == REMOTE_ANSWER_OK && q->kind == REMOTE_GET) != (fd >= 0)) {
        if (fd >= 0)
            close(fd);
        if (q)
            remote_link_lost(r, "the helper does not speak as expected");
        return;
    }
    r->served = true;
    leave(q);
    if (q->done && event->answer == REMOTE_ANSWER_FAILED)
        fail(r, q->kind, event->why);
    else if (q->done && fd < 0)
        succeed(r, q->kind); /* a body is judged by who asked for it */
    end(q,
        event->answer == REMOTE_ANSWER_OK        ? REMOTE_HIT
        : event->answer == REMOTE_ANSWER_MISSING ? REMOTE_MISS
                                                 : REMOTE_FAILED,
        fd, event->why);
    if (!r->closing)
        pump(r);
}

/* ---- the helper ---- */

static void start(struct remote *r)
{
    struct error e;

    r->served = false;
    if (link_start(r, &e) < 0)
        remote_link_lost(r, e.message);
}

static void on_again(uv_timer_t *timer)
{
    start(timer->data);
}

static void fail_all(struct remote *r, const char *why)
{
    struct remote_request *q;

    r->busy++;
    while (!r->closing && ((q = first(&r->sent)) || (q = first(&r->waiting)))) {
        leave(q);
        breaker_abandon(&r->breakers[q->kind]);
        end(q, REMOTE_FAILED, -1, why);
    }
    remote_let_go(r);
}

/* The log has a line when the helper goes, not each time that it fails to come back. */
static void remote_link_lost(struct remote *r, const char *why)
{
    char quoted[2 * REMOTE_WHY_SIZE], kept[REMOTE_WHY_SIZE];
    unsigned wait_ms;

    snprintf(kept, sizeof(kept), "%s", why);
    uv_update_time(r->loop);
    wait_ms = backoff_after(&r->backoff, r->served, now_ms(r));
    note_why(r, kept);
    if (!r->told)
        log_warning("remote_cache", "helper=down why=%s", log_quote(quoted, sizeof(quoted), r->why, strlen(r->why)));
    r->told = true;
    if (r->link)
        link_stop(r->link);
    r->full_until_ms = 0;
    uv_timer_stop(&r->tick);
    uv_timer_start(&r->again, on_again, wait_ms, 0);
    fail_all(r, kept);
}

/* ---- life ---- */

static int copy(char *into, size_t size, const char *text, const char *what, struct error *e)
{
    if (snprintf(into, size, "%s", text ? text : "") < (int)size)
        return 0;
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s is too long: at most %zu bytes", what, size - 1);
}

static int configure(struct remote *r, const struct remote_config *config, struct error *e)
{
    struct remote_setup *s = &r->setup;

    s->version = REMOTE_VERSION;
    s->timeout_ms = config->timeout_ms;
    s->max_bytes = config->max_bytes;
    if (copy(s->url, sizeof(s->url), config->url, "the remote cache's URL", e) < 0 ||
        copy(s->authorization, sizeof(s->authorization), config->authorization, "the authorization", e) < 0 ||
        copy(s->ca, sizeof(s->ca), config->ca, "the path of the certificates", e) < 0 ||
        copy(r->helper, sizeof(r->helper), config->helper, "the path of the helper's socket", e) < 0 ||
        copy(r->user, sizeof(r->user), config->user ? config->user : "nobody", "the helper's user", e) < 0)
        return -1;
    return copy(r->binary, sizeof(r->binary), config->binary ? config->binary : "/proc/self/exe", "the program", e);
}

static void forget(struct remote *r)
{
    explicit_bzero(r->setup.authorization, sizeof(r->setup.authorization));
    free(r);
}

bool remote_is(const struct remote *r, const struct remote_config *config)
{
    struct remote *other = calloc(1, sizeof(*other));
    struct error e;
    bool same = false;

    if (!other)
        return false;
    if (configure(other, config, &e) == 0)
        same = !memcmp(&r->setup, &other->setup, sizeof(r->setup)) && !strcmp(r->helper, other->helper) &&
               !strcmp(r->user, other->user) && !strcmp(r->binary, other->binary);
    forget(other);
    return same;
}

struct remote *remote_new(uv_loop_t *loop, const struct remote_config *config, struct error *e)
{
    struct remote *r = calloc(1, sizeof(*r));

    if (!r) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the remote cache");
        return NULL;
    }
    if (configure(r, config, e) < 0) {
        forget(r);
        return NULL;
    }
    r->loop = loop;
    list_init(&r->waiting);
    list_init(&r->sent);
    uv_timer_init(loop, &r->again);
    uv_timer_init(loop, &r->tick);
    r->again.data = r->tick.data = r;
    r->busy = 2; /* the timers */
    start(r);
    return r;
}

static void remote_let_go(struct remote *r)
{
    if (--r->busy || !r->closing)
        return;
    if (r->closed)
        r->closed(r->closed_context);
    forget(r);
}

static void timer_closed(uv_handle_t *handle)
{
    remote_let_go(handle->data);
}

void remote_close(struct remote *r, void (*closed)(void *context), void *context)
{
    struct remote_request *q;

    r->closing = true;
    r->closed = closed;
    r->closed_context = context;
    while ((q = first(&r->sent)) || (q = first(&r->waiting)))
        request_free(q);
    if (r->link)
        link_stop(r->link);
    uv_close((uv_handle_t *)&r->again, timer_closed);
    uv_close((uv_handle_t *)&r->tick, timer_closed);
}

void remote_report(const struct remote *r, struct remote_report *ret)
{
    *ret =
        (struct remote_report){.skipped = r->skipped, .rests_ms = breaker_rests(&r->breakers[REMOTE_GET], now_ms(r))};
    memcpy(ret->why, r->why, sizeof(ret->why));
    if (!r->link)
        ret->state = REMOTE_DOWN;
    else if (!r->link->ready)
        ret->state = REMOTE_STARTING;
    else
        ret->state = r->breakers[REMOTE_GET].open ? REMOTE_RESTING : REMOTE_SERVING;
}
