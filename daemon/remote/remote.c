#include "remote/remote_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/log.h"

enum { TICK_MS = 500, GRACE_MS = 2000 /* beyond a transfer's own time limit, which the helper keeps */ };

struct remote_request {
    struct list link; /* of waiting or sent */
    struct remote *remote;
    enum remote_kind kind;
    uint64_t id, until_ms; /* of sent: when the helper must have answered */
    unsigned char key[REMOTE_KEY_BYTES];
    int fd; /* of PUT; owned; -1: given away */
    remote_done *done;
    void *context;
};

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

static const char *quoted_why(const struct remote *r, char *into, size_t size)
{
    return log_quote(into, size, r->why, strlen(r->why));
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
                    quoted_why(r, quoted, sizeof(quoted)));
}

void remote_judge(struct remote *r, bool good, const char *why)
{
    if (good)
        succeed(r, REMOTE_GET);
    else
        fail(r, REMOTE_GET, why);
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

static void pump(struct remote *r);

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

static uint64_t patience_ends(const struct remote *r)
{
    return now_ms(r) + r->setup.timeout_ms + GRACE_MS;
}

static void start_ticking(struct remote *r)
{
    if (!uv_is_active((uv_handle_t *)&r->tick))
        uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
}

static int send_request(struct remote *r, struct remote_request *q)
{
    static const uint32_t orders[REMOTE_KINDS] = {[REMOTE_GET] = REMOTE_ORDER_GET, [REMOTE_PUT] = REMOTE_ORDER_PUT};
    struct remote_order order = {.kind = orders[q->kind], .id = ++r->next_id};

    memcpy(order.key, q->key, sizeof(order.key));
    if (remote_send(r->link->fd, &order, sizeof(order), q->fd) < 0)
        return -1;
    if (q->fd >= 0)
        close(q->fd);
    q->fd = -1;
    q->id = order.id;
    q->until_ms = patience_ends(r);
    list_remove(&q->link);
    list_append(&r->sent, &q->link);
    r->n_waiting--;
    r->n_sent[q->kind]++;
    start_ticking(r);
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
        if (!r->full_until_ms)
            r->full_until_ms = patience_ends(r);
        start_ticking(r);
        return;
    }
    r->full_until_ms = 0;
}

/* Takes `fd`. */
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
    list_init(&q->link);
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

/* Out of the counts. */
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
        remote_send(r->link->fd, &order, sizeof(order), -1); /* not heard: its answer is for nobody */
    request_free(q);
    pump(r);
}

void remote_link_answer(struct remote *r, const struct remote_event *event, int fd)
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
    /* What came too late is counted already. */
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

void remote_link_ready(struct remote *r)
{
    if (r->told)
        log_info("remote_cache", "helper=ready");
    r->told = false;
    pump(r);
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

/* A line when it goes, not each time that it fails to come back. */
void remote_link_lost(struct remote *r, const char *why)
{
    char quoted[2 * REMOTE_WHY_SIZE], kept[REMOTE_WHY_SIZE];
    unsigned wait_ms;

    snprintf(kept, sizeof(kept), "%s", why);
    uv_update_time(r->loop);
    wait_ms = backoff_after(&r->backoff, r->served, now_ms(r));
    note_why(r, kept);
    if (!r->told)
        log_warning("remote_cache", "helper=down why=%s", quoted_why(r, quoted, sizeof(quoted)));
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

/* The parts of `r` that are of the configuration. */
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

void remote_let_go(struct remote *r)
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
