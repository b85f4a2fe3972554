/* Finding a daemon and greeting it, requests to it, and going on after a daemon that ended. */
#include "connect.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "session.h"
#include "util/places.h"

enum { POLL_PROCESSORS = 4, MAX_POLL_US = 1000 }; /* processors from which on busy polling pays, and its longest time */

static int processors(void)
{
    cpu_set_t allowed;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
        return (int)sysconf(_SC_NPROCESSORS_ONLN); /* more than the set has room for */
    return CPU_COUNT(&allowed);
}

/* ---- the socket ---- */

/* Needs no lock, since no other thread connects meanwhile. */
static int try_path(struct kops_client *c, const char *path, int64_t timeout_ms, struct bytes *tried)
{
    char line[512], why[320];
    int fd = -1, r;
    bool trusted = false;

    pthread_mutex_unlock(&c->lock);
    r = transport_dial(path, timeout_ms, &fd);
    if (r)
        places_explain(path, r, why, sizeof(why));
    else
        trusted = places_check(path, fd, why, sizeof(why));
    pthread_mutex_lock(&c->lock);
    if (!trusted) {
        if (fd >= 0)
            close(fd);
        snprintf(line, sizeof(line), "%s%s (%s)", tried->length ? ", " : "", path, why);
        bytes_append(tried, line, strlen(line));
        return -1;
    }
    transport_adopt(&c->t, fd);
    if (!c->info.info.socket)
        c->info.info.socket = arena_text(&c->info.arena, path, strlen(path));
    return 0;
}

/* Tries a given path, or the path found before, alone; otherwise the usual ones. */
static int try_paths(struct kops_client *c, int64_t timeout_ms, struct bytes *tried)
{
    const char *given = c->socket_option ? c->socket_option : getenv("KOPS_SOCKET");
    char paths[PLACES_MAX][PLACE_BYTES];
    unsigned n;

    if (c->info.info.server) /* buffers and all else belong to that daemon or its successor */
        return try_path(c, c->info.info.socket, timeout_ms, tried);
    if (given && *given)
        return try_path(c, given, timeout_ms, tried);
    if (c->started)
        return try_path(c, c->started, timeout_ms, tried);
    n = places_of_process(paths);
    for (unsigned i = 0; i < n; i++)
        if (!try_path(c, paths[i], timeout_ms, tried))
            return 0;
    return -1;
}

static enum kops_code open_socket(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    const int left_ms = deadline_poll_ms(deadline);
    struct bytes tried = {0};

    if (try_paths(c, left_ms >= 0 && left_ms < c->connect_timeout_ms ? left_ms : c->connect_timeout_ms, &tried)) {
        fail(e, KOPS_ERR_CONNECT_FAILED,
             "no daemon answers: %.*s; start kopsd, or set KOPS_SOCKET to the socket of the one that runs",
             (int)tried.length, tried.data ? tried.data : "");
        bytes_free(&tried);
        return KOPS_ERR_CONNECT_FAILED;
    }
    bytes_free(&tried);
    c->generation++;
    return KOPS_OK;
}

/* ---- a daemon of this user's ---- */

/* Only the first connection starts a daemon; later ones are for the daemon found first, or its successor. */
static bool may_start(const struct kops_client *c)
{
    const char *given = getenv("KOPS_SOCKET");

    return !c->info.info.server && !c->socket_option && !(given && *given) && !c->no_autostart && starter_is_allowed();
}

/* Starts a daemon. *e says that none answers; a failure adds why none was started. */
static enum kops_code start_daemon(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    const struct kops_error none = *e;
    char text[sizeof(e->message)];
    bool done, timed_out;

    pthread_mutex_unlock(&c->lock); /* no other thread connects meanwhile */
    done = starter_run(deadline, text, sizeof(text), &timed_out);
    pthread_mutex_lock(&c->lock);
    if (!done)
        return fail(e, timed_out ? KOPS_ERR_TIMEOUT : KOPS_ERR_CONNECT_FAILED, "no daemon could be started: %s (%.*s)",
                    text, (int)strcspn(none.message, ";"), none.message);
    free(c->started);
    c->started = strdup(text);
    return c->started ? KOPS_OK : fail(e, KOPS_ERR_NO_MEMORY, "there is no memory to connect");
}

/* ---- the greeting ---- */

static unsigned known_features(const struct kops_client *c)
{
    static const struct {
        const char *name;
        enum client_feature feature;
    } table[] = {{"shm", FEATURE_SHM},         {"ordered", FEATURE_ORDERED},   {"sequence", FEATURE_SEQUENCE},
                 {"program", FEATURE_PROGRAM}, {"priority", FEATURE_PRIORITY}, {"exact", FEATURE_EXACT},
                 {"code", FEATURE_CODE},       {"images", FEATURE_IMAGES}};
    unsigned features = 0;

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (kops_info_feature(c, table[i].name))
            features |= table[i].feature;
    return features;
}

static enum kops_transport wanted_transport(const struct kops_client *c)
{
    const char *given = getenv("KOPS_TRANSPORT");

    if (c->transport != KOPS_TRANSPORT_AUTO || !given)
        return c->transport;
    if (!strcmp(given, "shm"))
        return KOPS_TRANSPORT_SHM;
    return strcmp(given, "socket") ? KOPS_TRANSPORT_AUTO : KOPS_TRANSPORT_SOCKET;
}

static enum kops_code open_ring(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    const struct wire_hello hello = {.client = c->name, .protocol = WIRE_PROTOCOL, .shm = true};
    struct wire_shm shm = {.fd = -1, .doorbell = -1, .wake = -1};
    const struct exchange x = {wire_pack_hello, &hello, -1, wire_decode_shm, &shm};
    struct ring_offer offer;
    const char *wrong;
    enum kops_code r = exchange_here(c, c->generation, &x, deadline, e);

    if (r)
        return r;
    offer = (struct ring_offer){shm.fd, shm.doorbell, shm.wake, shm.request_bytes, shm.reply_bytes};
    wrong = ring_link_open(&c->t.ring, &offer);
    return wrong ? fail(e, KOPS_ERR_BAD_REPLY, "the daemon's shared memory cannot be used: %s", wrong) : KOPS_OK;
}

/* Asks for shared memory where it is wanted, and decides how long to poll. */
static enum kops_code share_memory(struct kops_client *c, uint64_t daemon_spin_us, uint64_t deadline,
                                   struct kops_error *e)
{
    const enum kops_transport wanted = wanted_transport(c);
    enum kops_code r;

    c->poll_us = c->spin_option == KOPS_NO_SPIN ? 0 : c->spin_option;
    c->poll_failures = 0;
    if (wanted == KOPS_TRANSPORT_SHM && !(c->features & FEATURE_SHM))
        return fail(e, KOPS_ERR_UNSUPPORTED, "the daemon has no shared memory for messages: use KOPS_TRANSPORT_AUTO");
    if (wanted == KOPS_TRANSPORT_SOCKET || !(c->features & FEATURE_SHM) ||
        (wanted == KOPS_TRANSPORT_AUTO && (!daemon_spin_us || processors() < POLL_PROCESSORS)))
        return KOPS_OK;
    r = open_ring(c, deadline, e);
    if (r && wanted == KOPS_TRANSPORT_AUTO && !c->lost && c->t.fd >= 0) {
        fail_clear(e); /* a limit, say: the socket does it too */
        return KOPS_OK;
    }
    if (r)
        return r;
    if (!c->spin_option)
        c->poll_us = daemon_spin_us < MAX_POLL_US ? (unsigned)daemon_spin_us : MAX_POLL_US;
    return KOPS_OK;
}

/* Greets the daemon. The first hello is read completely, later ones only for the limits, since kops_info() gave out
 * pointers to the rest. */
static enum kops_code greet(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    const struct wire_hello hello = {.client = c->name, .protocol = WIRE_PROTOCOL, .isolate = c->isolate};
    struct kops_limits limits = {0};
    const bool first = !c->info.info.server;
    struct wire_greeting greeting = {&c->info, first ? NULL : &limits, &c->hello};
    const struct exchange x = {wire_pack_hello, &hello, -1, wire_decode_greeting, &greeting};
    enum kops_code r = exchange_here(c, c->generation, &x, deadline, e);

    if (r)
        return r;
    if (first) {
        limits = c->info.info.limits;
        c->features = known_features(c);
    }
    if (limits.inflight)
        c->max_inflight = limits.inflight < UINT16_MAX ? (uint32_t)limits.inflight : UINT16_MAX;
    if (limits.message_bytes)
        c->max_message = limits.message_bytes;
    return share_memory(c, limits.spin_us, deadline, e);
}

/* ---- until there is a connection ---- */

enum { FIRST_PAUSE_MS = 5, LAST_PAUSE_MS = 100 };
enum { MOST_STARTS = 2 }; /* a daemon that was found may have been about to end */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Pauses between two tries. False: the caller does not want to wait on. */
static bool pause_until(struct kops_client *c, uint64_t time, const struct patience *p)
{
    bool is_over = false;

    while (clock_ns() < time)
        session_sleep(c, time);
    if (p->is_over) {
        pthread_mutex_unlock(&c->lock); /* no other thread connects meanwhile */
        is_over = p->is_over(p->context);
        pthread_mutex_lock(&c->lock);
    }
    return !is_over;
}

static enum kops_code connect_once(struct kops_client *c, uint64_t deadline, bool *ret_reached, struct kops_error *e)
{
    enum kops_code r;

    while (c->lost && clock_ns() < deadline) /* other threads are still in system calls on the socket */
        session_sleep(c, deadline);
    if (c->lost)
        return fail(e, KOPS_ERR_TIMEOUT, "the connection is being made anew");
    r = open_socket(c, deadline, e);
    if (r)
        return r;
    *ret_reached = true;
    r = greet(c, deadline, e);
    if (r == KOPS_ERR_TIMEOUT)
        fail(e, r,
             "%s: kopsd does not answer: it took the connection and has said nothing in time; start it anew, or name "
             "another socket in KOPS_SOCKET",
             c->info.info.socket);
    if (r && c->t.fd >= 0)
        session_lost(c, r, "%s", e->message);
    return r;
}

/* Tells whether the error may be gone in a moment, while a daemon is started anew. */
static bool passes(enum kops_code code)
{
    return code == KOPS_ERR_CONNECT_FAILED || code == KOPS_ERR_CONNECTION_LOST || code == KOPS_ERR_SHUTTING_DOWN ||
           code == KOPS_ERR_DEVICE_LOST || code == KOPS_ERR_JOB_TIMEOUT || code == KOPS_ERR_TIMEOUT;
}

static enum kops_code give_up(const struct patience *p, uint64_t deadline, struct kops_error *e)
{
    const struct kops_error why = *e;

    if (deadline_passed(deadline))
        return fail(e, KOPS_ERR_TIMEOUT, "the call's time was over before a daemon could be reached again: %.400s",
                    why.message);
    return fail(e, KOPS_ERR_CONNECT_FAILED,
                "the connection to kopsd was lost, and no new one could be made within %g s: %.400s",
                (double)p->ms / 1000, why.message);
}

/* Tries the first connection once, unless a daemon takes it and ends: a daemon that is not there may never be. Later
 * connections are tried as long as the caller's patience. */
static enum kops_code connect_with_retries(struct kops_client *c, uint64_t deadline, const struct patience *p,
                                           struct kops_error *e)
{
    const bool first = !c->info.info.server && !p->follows, retries = p->ms != 0;
    uint64_t once = earlier(deadline, deadline_in(c->connect_timeout_ms));
    const uint64_t until = retries ? earlier(deadline, deadline_in(p->ms)) : 0;
    unsigned pause_ms = FIRST_PAUSE_MS, starts = 0;
    bool reached = false;

    for (;;) {
        enum kops_code r = connect_once(c, first || (until < once && !p->strict) ? once : until, &reached, e);
        uint64_t now = clock_ns();

        if (!r)
            fail_clear(e); /* the error of earlier tries */
        if (r == KOPS_ERR_CONNECT_FAILED && starts++ < MOST_STARTS && may_start(c)) {
            r = start_daemon(c, deadline, e);
            if (r)
                return r;
            once = earlier(deadline, deadline_in(c->connect_timeout_ms));
            continue;
        }
        if (!r || !retries || !passes(r) || (first && (!reached || now >= once)))
            return r;
        if (now >= until)
            return first ? r : give_up(p, deadline, e);
        if (!pause_until(c, earlier(now + (uint64_t)pause_ms * 1000000U, until), p) || (first && clock_ns() >= once))
            return r;
        pause_ms = pause_ms * 2 < LAST_PAUSE_MS ? pause_ms * 2 : LAST_PAUSE_MS;
    }
}

static enum kops_code connect_for_all(struct kops_client *c, uint64_t deadline, const struct patience *p,
                                      struct kops_error *e)
{
    enum kops_code r;

    c->greeting = true;
    r = connect_with_retries(c, deadline, p, e);
    c->greeting = false;
    /* A timeout of this caller says nothing about the daemon. */
    if (r && r != KOPS_ERR_TIMEOUT) {
        c->unreachable = *e;
        c->failures++;
    }
    client_changed(c);
    return r;
}

/* Waits for a daemon that said that it ends to close the connection; leaves a daemon that does not. */
static void await_end(struct kops_client *c, uint64_t deadline)
{
    if (clock_ns() >= c->ends_by)
        session_lost(c, KOPS_ERR_DEVICE_LOST, "the daemon lost its device, and the connection was given up");
    else
        session_progress(c, earlier(deadline, c->ends_by));
}

enum kops_code session_connect_anew(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    const struct patience own = {.ms = c->reconnect_timeout_ms};

    if (!c->bound)
        return session_connect_for(c, deadline, &own, e);
    fail(e, KOPS_ERR_CONNECTION_LOST, "the connection to the daemon was lost");
    return fail_number(e, KOPS_ERR_CONNECTION_LOST, "ran", 0);
}

/* At least 1. */
static int64_t ms_until(uint64_t time)
{
    const uint64_t now = clock_ns();

    return time > now ? (int64_t)((time - now) / 1000000U) + 1 : 1;
}

enum kops_code session_connect_for(struct kops_client *c, uint64_t deadline, const struct patience *p,
                                   struct kops_error *e)
{
    const uint32_t failures = c->failures;
    struct patience left = *p;
    const uint64_t end = p->strict ? earlier(deadline, deadline_in(p->ms)) : deadline;

    while (c->lost || c->ends_by || c->greeting) {
        if (c->lost || c->greeting)
            session_sleep(c, end);
        else
            await_end(c, end);
        if ((c->lost || c->ends_by || c->greeting) && deadline_passed(end))
            return fail(e, KOPS_ERR_TIMEOUT, "the call's time was over while another thread waited for the daemon");
    }
    if (c->t.fd >= 0)
        return KOPS_OK;
    if (c->failures != failures && (!p->strict || deadline_passed(end))) {
        *e = c->unreachable;
        return e->code;
    }
    if (c->failures != failures && end != DEADLINE_NEVER) /* another's patience was over first */
        left.ms = ms_until(end);
    return connect_for_all(c, deadline, &left, e);
}

/* ---- things that the daemon keeps ---- */

enum kops_code remote_ensure(struct kops_client *c, struct remote *r, remote_define *define, void *thing,
                             const char *what, uint64_t deadline, struct kops_error *e)
{
    for (;;) {
        enum kops_code code = session_connect(c, deadline, e);

        if (code || remote_known(c, r))
            return code;
        if (r->defining == c->generation) {
            session_sleep(c, deadline);
        } else {
            r->defining = c->generation;
            code = define(thing, deadline, e);
            r->defining = 0;
            client_changed(c);
            if (code)
                return code;
        }
        if (!remote_known(c, r) && deadline_passed(deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "the %s could not be made known to the daemon in time", what);
    }
}

void remote_release(struct kops_client *c, const struct remote *r, const char *what)
{
    if (remote_known(c, r) && client_is_connected(c))
        session_release(c, what, r->id);
}

/* ---- going on after a daemon that ended ---- */

enum { FIRST_AGAIN_MS = 5, LAST_AGAIN_MS = 100 };

bool recovery_always(const void *context)
{
    (void)context;
    return true;
}

bool recovery_never(const void *context)
{
    (void)context;
    return false;
}

enum kops_code recovery_finish(struct kops_client *c, struct recovery *r, struct call *call, struct kops_error *e)
{
    r->sent = true;
    r->fate = call->fate;
    return session_finish(c, call, e);
}

/* Waits until the daemon closes the connection, or for a pause before another try. False: the deadline passed. */
static bool wait_for_another(struct kops_client *c, struct recovery *r, uint64_t deadline)
{
    const uint32_t generation = c->generation;
    uint64_t now = clock_ns(), end;

    if (!r->until) {
        r->until = deadline_in(c->reconnect_timeout_ms);
        r->pause_ms = FIRST_AGAIN_MS;
    }
    if (r->until > deadline)
        r->until = deadline;
    if (now >= r->until)
        return false;
    end = now + (uint64_t)r->pause_ms * 1000000U;
    if (end > r->until)
        end = r->until;
    while (client_is_connected(c) && c->generation == generation && clock_ns() < end)
        session_progress(c, end);
    r->pause_ms = r->pause_ms * 2 < LAST_AGAIN_MS ? r->pause_ms * 2 : LAST_AGAIN_MS;
    return true;
}

static void add(struct kops_error *e, const char *text)
{
    size_t length = strlen(e->message);

    snprintf(e->message + length, sizeof(e->message) - length, "%s", text);
}

/* Tells whether the call may have run before the daemon ended. */
static bool may_have_run(const struct recovery *r, const struct kops_error *e)
{
    if (e->code == KOPS_ERR_DEVICE_LOST)
        return fail_ends_daemon(e);
    return r->fate == FATE_UNANSWERED && (e->code == KOPS_ERR_CONNECTION_LOST || e->code == KOPS_ERR_SHUTTING_DOWN ||
                                          e->code == KOPS_ERR_JOB_TIMEOUT);
}

static bool is_made_again(struct kops_client *c, struct recovery *r, recovery_safe *safe, const void *context,
                          uint64_t deadline, struct kops_error *e)
{
    if (!r->sent || !safe)
        return false;
    r->sent = false;
    if (r->fate == FATE_UNREAD)
        return r->unread++ < RECOVERY_CONNECTIONS;
    if (r->fate == FATE_ANSWERED && e->code == KOPS_ERR_SHUTTING_DOWN)
        return c->reconnect_timeout_ms && wait_for_another(c, r, deadline);
    if (!may_have_run(r, e))
        return false;
    if (r->repeated) {
        add(e, "; the call was repeated once, and failed again");
        return false;
    }
    if (!c->reconnect_timeout_ms)
        return false;
    if (!safe(context)) {
        add(e, "; it is not repeated by itself, since twice may not be the same as once (a kernel of one's own, an "
               "output that is read): look what became of it, and call again");
        return false;
    }
    r->repeated = true;
    return !deadline_passed(deadline);
}

bool recovery_again(struct kops_client *c, struct recovery *r, recovery_safe *safe, const void *context,
                    uint64_t deadline, struct kops_error *e)
{
    if (!is_made_again(c, r, safe, context, deadline, e))
        return false;
    fail_clear(e);
    return true;
}

/* ---- one request on one connection ---- */

enum kops_code exchange_here(struct kops_client *c, uint32_t generation, const struct exchange *x, uint64_t deadline,
                             struct kops_error *e)
{
    struct outgoing m;
    enum kops_code r;

    for (;;) {
        if (!client_is_connected(c) || c->generation != generation)
            return fail(e, KOPS_ERR_CONNECTION_LOST, "the connection ended before the request was sent");
        if (session_has_room(c))
            break;
        session_await_room(c, deadline);
        if (deadline_passed(deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "the daemon did not reply in time");
    }
    r = session_reserve(c, &x->fd, x->fd >= 0, &m, e);
    if (r)
        return r;
    if (exchange_send(c, x, &m, deadline, e) != SESSION_SENT || !exchange_wait(c, m.call, deadline, e))
        return e->code;
    return session_finish(c, m.call, e);
}

/* ---- requests ---- */

enum kops_code session_begin(struct kops_client *c, const int *fds, unsigned n_fds, uint64_t deadline,
                             struct outgoing *ret, struct kops_error *e)
{
    for (;;) {
        enum kops_code r = session_connect(c, deadline, e);

        if (r)
            return r;
        if (session_has_room(c))
            return session_reserve(c, fds, n_fds, ret, e);
        session_await_room(c, deadline);
        if (deadline_passed(deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "%u earlier requests are unanswered, the daemon takes no more",
                        c->calls.inflight);
    }
}

enum kops_code session_settle(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    if (!c->unconfirmed || !c->t.ring.memory)
        return KOPS_OK;
    c->unconfirmed = false;
    return session_call(c, wire_pack_plain, "ping", -1, wire_decode_nothing, NULL, deadline, SESSION_ATTEMPTS, e);
}

static enum kops_code exchange_once(struct kops_client *c, const struct exchange *x, struct recovery *recovery,
                                    uint64_t deadline, unsigned connections, struct kops_error *e)
{
    for (;;) {
        struct outgoing m;
        enum session_sent sent;
        enum kops_code r = session_begin(c, &x->fd, x->fd >= 0, deadline, &m, e);

        if (r)
            return r;
        sent = exchange_send(c, x, &m, deadline, e);
        if (sent == SESSION_NOT_SENT && --connections) {
            fail_clear(e);
            continue;
        }
        if (sent != SESSION_SENT || !exchange_wait(c, m.call, deadline, e))
            return e->code;
        return recovery_finish(c, recovery, m.call, e);
    }
}

enum kops_code session_call(struct kops_client *c, wire_pack *pack, const void *request, int fd, wire_decode *decode,
                            void *into, uint64_t deadline, unsigned attempts, struct kops_error *e)
{
    const struct exchange x = {pack, request, fd, decode, into};
    struct recovery recovery = {0};
    enum kops_code r = fd >= 0 ? session_settle(c, deadline, e) : KOPS_OK;

    if (r)
        return r;
    if (attempts == SESSION_HERE)
        return exchange_once(c, &x, &recovery, deadline, 1, e);
    do
        r = exchange_once(c, &x, &recovery, deadline, RECOVERY_CONNECTIONS, e);
    while (r && recovery_again(c, &recovery, attempts == SESSION_ATTEMPTS ? recovery_always : recovery_never, NULL,
                               deadline, e));
    return r;
}
