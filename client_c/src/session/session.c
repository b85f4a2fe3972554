/* The sending and the receiving half of a session, and the end of a connection. */
#include "session.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"

/* Waits until the socket takes bytes again, and reads replies meanwhile, since a daemon that cannot send does not read.
 */
static void wait_writable(struct kops_client *c, uint64_t deadline)
{
    struct pollfd p = {.fd = c->t.fd, .events = POLLOUT};
    bool receive = !c->reading;

    if (receive)
        p.events |= POLLIN;
    c->users++;
    c->reading = true;
    pthread_mutex_unlock(&c->lock);
    poll(&p, 1, deadline_poll_ms(deadline));
    pthread_mutex_lock(&c->lock);
    c->users--;
    if (receive) {
        c->reading = false;
        if (p.revents & (POLLIN | POLLHUP | POLLERR))
            session_poll(c);
    }
}

/* Waits for room in the ring. The thread that receives hears the bell. */
static void wait_for_room(struct kops_client *c, enum stream stream, uint64_t deadline)
{
    c->sending = true;
    if (stream == STREAM_SOCKET)
        wait_writable(c, deadline);
    else if (ring_link_want_room(&c->t.ring))
        session_progress(c, deadline);
    c->sending = false;
    session_close_lost(c);
    client_changed(c);
}

void session_take_back(struct kops_client *c, struct outgoing *m)
{
    struct outbox *out = &c->t.out[m->stream];
    struct bytes *b = &out->bytes;
    size_t end = m->from + m->length;

    /* Notifications may have been appended after the message. */
    memmove(b->data + m->from, b->data + end, b->length - end);
    b->length -= m->length;
    b->failed = false;
    if (b->length == out->sent)
        b->length = out->sent = 0;
    call_free(&c->calls, m->call);
}

/* Moves a message that is too long for the ring to the socket's stream. */
static bool move_to_socket(struct kops_client *c, struct outgoing *m)
{
    struct bytes *ring = session_out(c, m), *socket = &c->t.out[STREAM_SOCKET].bytes;
    size_t from = socket->length;

    if (!bytes_append(socket, ring->data + m->from, ring->length - m->from)) {
        socket->failed = false;
        return false;
    }
    ring->length = m->from;
    if (ring->length == c->t.out[STREAM_RING].sent)
        ring->length = c->t.out[STREAM_RING].sent = 0;
    m->stream = STREAM_SOCKET;
    m->from = from;
    m->alone = true;
    return true;
}

enum kops_code session_appended(struct kops_client *c, struct outgoing *m, struct kops_error *e)
{
    struct bytes *out = session_out(c, m);
    size_t length = out->length - m->from;
    enum kops_code r = KOPS_OK;

    m->length = length;
    if (out->failed)
        r = fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a request of %zu bytes", length);
    else if (length > c->max_message)
        r = fail(e, KOPS_ERR_BAD_ARGUMENT, "the request has %zu bytes, the daemon takes %llu", length,
                 (unsigned long long)c->max_message);
    else if (m->stream == STREAM_RING && length > ring_message_bytes(c->t.ring.requests.size) && !move_to_socket(c, m))
        r = fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a request of %zu bytes", length);
    if (r)
        session_take_back(c, m);
    return r;
}

/* Waits until the replies to all earlier requests have come; false: the deadline passed. The connection may be lost. */
static bool wait_until_alone(struct kops_client *c, uint32_t generation, uint64_t deadline)
{
    while (c->calls.inflight > 1 && !c->lost && c->t.fd >= 0 && c->generation == generation) {
        if (deadline_passed(deadline))
            return false;
        c->sending = true;
        session_progress(c, deadline);
        c->sending = false;
    }
    session_close_lost(c);
    client_changed(c);
    return true;
}

/* Gives the connection up: a CUDA stream waits for this request, and only the connection's end releases the stream. */
static void give_up(struct kops_client *c)
{
    session_lost(c, KOPS_ERR_TIMEOUT, "the daemon did not take an ordered call in time; the connection was given up");
}

static enum session_sent out_of_time(struct kops_client *c, struct outgoing *m, bool begun, struct kops_error *e)
{
    if (begun)
        session_abandon(c, m->call); /* the rest of the message is sent before the next one */
    else
        session_take_back(c, m);
    fail(e, KOPS_ERR_TIMEOUT, "the daemon did not take the request in time");
    return SESSION_FAILED;
}

/* Reports that the connection ended, and every call with it. An ordered call has noted its error already. */
static enum session_sent gone(struct kops_client *c, struct call *call, bool ordered, struct kops_error *e)
{
    if (ordered)
        fail(e, KOPS_ERR_CONNECTION_LOST, "the connection was lost while the request was sent");
    else
        session_finish(c, call, e);
    return SESSION_NOT_SENT; /* part of a message may have been sent, which runs nothing */
}

enum session_sent session_send(struct kops_client *c, struct outgoing *m, uint64_t deadline, struct kops_error *e)
{
    struct outbox *out = &c->t.out[m->stream];
    const uint32_t generation = c->generation;
    const bool ordered = m->call->ended != NULL;
    size_t before = m->from - out->sent, own = m->length;

    if (m->alone) {
        c->alone = m->call->msgid;
        if (!wait_until_alone(c, generation, deadline)) {
            if (!ordered)
                return out_of_time(c, m, false, e);
            give_up(c);
        }
    }
    while (own) {
        ssize_t n;

        if (c->lost || c->t.fd < 0 || c->generation != generation)
            return gone(c, m->call, ordered, e);
        /* Descriptors go with the first byte of their message, and no other bytes go with them. */
        if (m->n_fds && before)
            n = transport_send(&c->t, m->stream, out->sent + before, NULL, 0);
        else
            n = transport_send(&c->t, m->stream, out->sent + before + own, m->fds, own < m->length ? 0 : m->n_fds);
        if (n > 0) {
            size_t others = (size_t)n < before ? (size_t)n : before;

            before -= others;
            own -= (size_t)n - others;
        } else if (n != -EAGAIN) {
            session_poll(c); /* the daemon may have said why it hung up */
            session_lost(c, KOPS_ERR_CONNECTION_LOST, "the daemon closed the connection: %s", strerror((int)-n));
        } else if (deadline_passed(deadline)) {
            if (!ordered)
                return out_of_time(c, m, own < m->length, e);
            give_up(c);
        } else {
            wait_for_room(c, m->stream, deadline);
        }
    }
    m->call->ring_end = m->stream == STREAM_RING ? c->t.ring.requests.head : 0;
    return SESSION_SENT;
}

/* ---- room for a request ---- */

void session_await_room(struct kops_client *c, uint64_t deadline)
{
    if (c->sending)
        session_sleep(c, deadline);
    else
        session_progress(c, deadline);
}

enum kops_code session_reserve(struct kops_client *c, const int *fds, unsigned n_fds, struct outgoing *ret,
                               struct kops_error *e)
{
    c->alone = 0;
    ret->call = call_new(&c->calls);
    if (!ret->call)
        return fail(e, KOPS_ERR_NO_MEMORY, "too many runs were submitted and not waited for");
    ret->fds = fds;
    ret->n_fds = n_fds;
    ret->stream = c->t.ring.memory && !n_fds ? STREAM_RING : STREAM_SOCKET;
    ret->from = c->t.out[ret->stream].bytes.length;
    ret->alone = false;
    return KOPS_OK;
}

/* ---- notifications ---- */

static void push(struct kops_client *c)
{
    for (enum stream s = 0; s < STREAMS; s++) {
        ssize_t n = 1;

        if (s == STREAM_RING && !c->t.ring.memory)
            continue;
        while (n > 0 && !c->sending && client_is_connected(c) && c->t.out[s].sent < c->t.out[s].bytes.length)
            n = transport_send(&c->t, s, c->t.out[s].bytes.length, NULL, 0);
    }
    c->unconfirmed = true;
}

/* Removes a notification that ran out of memory while it was written. */
static void cut_torn(struct bytes *out, size_t from)
{
    if (!out->failed)
        return;
    out->length = from;
    out->failed = false;
}

struct notice session_notice(struct kops_client *c)
{
    struct held_back *h = &c->held_back;
    struct bytes *out = h->holders ? &h->notifications : client_notifications(c);

    if (h->holders && h->generation != c->generation) {
        h->notifications.length = 0; /* ids of another connection mean other things on this one */
        h->generation = c->generation;
    }
    return (struct notice){out, out->length};
}

void session_notify(struct kops_client *c, const struct notice *n)
{
    cut_torn(n->out, n->from);
    if (n->out != &c->held_back.notifications)
        push(c);
}

void session_release(struct kops_client *c, const char *what, uint64_t id)
{
    const struct notice n = session_notice(c);

    wire_pack_release(n.out, what, id);
    session_notify(c, &n);
}

void session_cancel(struct kops_client *c, const struct call *call)
{
    struct bytes *out = client_notifications(c);
    const size_t from = out->length;

    wire_pack_cancel(out, call->msgid);
    cut_torn(out, from);
    push(c);
}

void session_let_go(struct kops_client *c)
{
    struct held_back *h = &c->held_back;
    struct bytes *out = client_notifications(c);
    const size_t from = out->length;

    if (--h->holders || !h->notifications.length)
        return;
    if (h->generation == c->generation && client_is_connected(c)) {
        bytes_append(out, h->notifications.data, h->notifications.length);
        cut_torn(out, from);
        push(c);
    }
    h->notifications.length = 0;
}

/* After POLL_FAILURES waits in a row in which busy polling did not help, polling is cut to POLL_LEAST_US: enough to
 * learn from the daemon when the reply is likely. */
enum { POLL_FAILURES = 8, POLL_LEAST_US = 20 };

/* A daemon that lost its device answers requests under way for this time, then ends. */
enum { END_GRACE_MS = 1000 };

_Static_assert(WIRE_MAX_FDS <= (int)TRANSPORT_MAX_FDS, "a reply's descriptors fit");

/* ---- the end of a connection ---- */

void session_close_lost(struct kops_client *c)
{
    if (!c->lost || c->users)
        return;
    transport_close(&c->t);
    fail_clear(&c->reason);
    c->lost = false;
    c->ends_by = 0;
    pthread_cond_broadcast(&c->changed);
}

/* Tells whether the daemon has closed its end: then it reads nothing more. */
static bool hung_up(const struct kops_client *c)
{
    struct pollfd end = {.fd = c->t.fd, .events = POLLRDHUP};

    return poll(&end, 1, 0) > 0 && end.revents & (POLLRDHUP | POLLHUP);
}

void session_lost(struct kops_client *c, enum kops_code code, const char *format, ...)
{
    bool ended;
    va_list args;

    if (c->lost || c->t.fd < 0)
        return;
    ended = code == KOPS_ERR_CONNECTION_LOST && hung_up(c);
    /* An error that the daemon sent before it closed the connection is the better reason. */
    if (!c->reason.code) {
        fail(&c->reason, code, "%s", "");
        va_start(args, format);
        vsnprintf(c->reason.message, sizeof(c->reason.message), format, args);
        va_end(args);
    }
    c->lost = true;
    shutdown(c->t.fd, SHUT_RDWR);
    calls_end_all(&c->calls, &c->reason, ended ? &c->t.ring : NULL);
    pthread_cond_broadcast(&c->changed);
    session_close_lost(c);
}

/* ---- receiving ---- */

/* Finds the id that some replies bring, and the name of its kind for the release. */
static bool late_id(wire_decode *decode, const struct wire_message *m, int *fds, uint64_t *ret_id,
                    const char **ret_what)
{
    static const struct {
        wire_decode *decode;
        const char *what;
    } table[] = {{wire_decode_program, "program"}, {wire_decode_module, "module"}, {wire_decode_kernel, "kernel"}};
    struct wire_buffer buffer = {.fd = -1};
    bool whole;

    if (decode == wire_decode_register || decode == wire_decode_alloc) {
        whole = decode(m->result, fds, m->nfds, &buffer);
        if (buffer.fd >= 0)
            close(buffer.fd);
        *ret_id = buffer.id;
        *ret_what = "buffer";
        return whole;
    }
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        *ret_what = table[i].what;
        if (decode == table[i].decode)
            return decode(m->result, fds, m->nfds, ret_id);
    }
    return false;
}

/* Handles a reply whose caller has given up. A new id in the reply is released. */
static void drop_late(struct kops_client *c, struct call *call, const struct wire_message *m, int *fds)
{
    wire_decode *decode = call->decode;
    const char *what;
    uint64_t id;

    call_end(&c->calls, call, NULL);
    if (!m->error && late_id(decode, m, fds, &id, &what)) {
        wire_pack_release(client_notifications(c), what, id);
        c->unconfirmed = true;
    }
}

/* Keeps a reply undecoded. */
static bool take_raw(struct native_reply *r, const struct wire_message *m, int *fds)
{
    if (r->capacity < m->length) {
        char *grown = realloc(r->data, m->length);

        if (!grown)
            return false;
        r->data = grown;
        r->capacity = m->length;
    }
    memcpy(r->data, m->error ? m->error : m->result, m->length);
    r->length = m->length;
    r->is_error = m->error != NULL;
    r->n_fds = m->nfds;
    for (unsigned i = 0; i < m->nfds; i++) {
        r->fds[i] = fds[i];
        fds[i] = -1;
    }
    return true;
}

static bool take_result(struct call *call, const struct wire_message *m, int *fds)
{
    return call->reply ? take_raw(call->reply, m, fds) : call->decode(m->result, fds, m->nfds, call->into);
}

/* Handles an error. A daemon that has lost its device for good refuses every request: the client waits for the next
 * daemon. */
static void take_error(struct kops_client *c, const struct wire_message *m, struct kops_error *ret_error)
{
    wire_decode_error(m->error, ret_error);
    if (fail_ends_daemon(ret_error) && !c->ends_by)
        c->ends_by = deadline_in(END_GRACE_MS);
}

static const char *take_response(struct kops_client *c, const struct wire_message *m)
{
    struct call *call = call_by_msgid(&c->calls, m->msgid);
    struct kops_error error;
    int fds[WIRE_MAX_FDS];
    const char *wrong = transport_claim(&c->t, m->nfds, fds);

    if (wrong)
        return wrong;
    if (m->error)
        take_error(c, m, &error);
    if (!call) {
        wrong = "a response answers no request";
    } else if (call->state == CALL_LATE) {
        drop_late(c, call, m, fds);
    } else if (m->error && !call->reply) {
        call_end(&c->calls, call, &error);
    } else if (!take_result(call, m, fds)) {
        fail(&error, KOPS_ERR_BAD_REPLY, "the daemon's result lacks a key, or there is no memory to read it");
        call_end(&c->calls, call, &error);
    } else {
        call_end(&c->calls, call, NULL);
    }
    for (unsigned i = 0; i < m->nfds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return wrong;
}

static const char *take_message(struct kops_client *c, const char *data, size_t length)
{
    struct wire_message m;
    const char *wrong;

    wrong = wire_parse(data, length, &m);
    if (!wrong && m.kind == WIRE_RESPONSE)
        return take_response(c, &m);
    if (!wrong && m.kind == WIRE_ERROR_NOTIFICATION)
        wire_decode_error(m.error, &c->reason);
    return wrong;
}

/* Takes every complete message. The caller has the receiving role. */
static void take_messages(struct kops_client *c)
{
    const char *wrong, *data;
    size_t length;

    while (!(wrong = transport_next(&c->t, &data, &length)) && data) {
        wrong = take_message(c, data, length);
        if (wrong)
            break;
        wrong = transport_taken(&c->t, length);
        if (wrong)
            break;
    }
    if (wrong)
        session_lost(c, KOPS_ERR_BAD_REPLY, "the daemon's bytes are no valid reply: %s", wrong);
}

static void take_received(struct kops_client *c, enum transport_result r)
{
    switch (r) {
    case TRANSPORT_OK:
        take_messages(c);
        break;
    case TRANSPORT_TIMEOUT:
        break;
    case TRANSPORT_CLOSED:
        session_lost(c, KOPS_ERR_CONNECTION_LOST,
                     "the daemon ended, or closed the connection; requests without a reply may or may not have run");
        break;
    case TRANSPORT_BROKEN:
        session_lost(c, KOPS_ERR_BAD_REPLY, "the daemon broke the rules for file descriptors or shared memory");
        break;
    case TRANSPORT_NO_MEMORY:
        session_lost(c, KOPS_ERR_NO_MEMORY, "there is no memory to receive a reply");
        break;
    }
}

void session_sleep(struct kops_client *c, uint64_t deadline)
{
    c->waiters++;
    if (deadline == DEADLINE_NEVER) {
        pthread_cond_wait(&c->changed, &c->lock);
    } else {
        struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000U), .tv_nsec = (long)(deadline % 1000000000U)};

        pthread_cond_timedwait(&c->changed, &c->lock, &until);
    }
    c->waiters--;
}

static unsigned poll_budget(const struct kops_client *c)
{
    return c->poll_failures >= POLL_FAILURES && c->poll_us > POLL_LEAST_US ? POLL_LEAST_US : c->poll_us;
}

void session_progress(struct kops_client *c, uint64_t deadline)
{
    const unsigned poll_us = poll_budget(c);
    enum transport_result r;

    if (c->reading || c->lost) {
        session_sleep(c, deadline);
        return;
    }
    c->reading = true;
    c->users++;
    pthread_mutex_unlock(&c->lock);
    r = transport_receive(&c->t, deadline, poll_us);
    pthread_mutex_lock(&c->lock);
    c->poll_failures = c->t.polled_in_vain ? c->poll_failures + 1 : 0;
    c->users--;
    if (!c->lost)
        take_received(c, r);
    c->reading = false;
    session_close_lost(c);
    client_changed(c);
}

void session_poll(struct kops_client *c)
{
    enum transport_result r = TRANSPORT_OK;

    while (r == TRANSPORT_OK && !c->reading && client_is_connected(c)) {
        r = transport_receive(&c->t, 0, 0);
        take_received(c, r);
    }
    client_changed(c);
}

void session_drain(struct kops_client *c)
{
    if (c->reading || !client_is_connected(c))
        return;
    take_received(c, transport_drain(&c->t));
    client_changed(c);
}

bool session_wait(struct kops_client *c, struct call *call, uint64_t deadline)
{
    while (call->state == CALL_SENT) {
        session_progress(c, deadline);
        if (call->state == CALL_SENT && deadline_passed(deadline))
            return false;
    }
    return true;
}

enum kops_code session_finish(struct kops_client *c, struct call *call, struct kops_error *e)
{
    enum kops_code code = call->code;

    if (code && e) {
        if (call->error)
            *e = *call->error;
        else
            fail(e, code, "%s (no memory for its message)", kops_code_name(code));
    }
    call_free(&c->calls, call);
    return code;
}

void session_abandon(struct kops_client *c, struct call *call)
{
    if (call->state == CALL_SENT) {
        call->state = CALL_LATE;
        call->ticket = 0;
        call->into = NULL;
        if (!call->owns_reply)
            call->reply = NULL;
    } else {
        call_free(&c->calls, call);
    }
}
