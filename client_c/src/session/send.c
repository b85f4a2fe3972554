#include "session.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

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
