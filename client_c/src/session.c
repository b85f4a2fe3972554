#include "session.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "fail.h"

/* ---- the end of a connection ---- */

static void close_lost(struct kops_client *c)
{
    if (!c->lost || c->users)
        return;
    transport_close(&c->t);
    fail_clear(&c->reason);
    c->lost = false;
    pthread_cond_broadcast(&c->changed);
}

void session_lost(struct kops_client *c, enum kops_code code, const char *format, ...)
{
    va_list args;

    if (c->lost || c->t.fd < 0)
        return;
    /* What the daemon said before it closed the connection is the better reason. */
    if (!c->reason.code) {
        fail(&c->reason, code, "%s", "");
        va_start(args, format);
        vsnprintf(c->reason.message, sizeof(c->reason.message), format, args);
        va_end(args);
    }
    c->lost = true;
    shutdown(c->t.fd, SHUT_RDWR);
    calls_end_all(c, &c->reason);
    pthread_cond_broadcast(&c->changed);
    close_lost(c);
}

/* ---- receiving ---- */

/* Nobody waits for this any more; what it brought is given back. */
static void drop_late(struct kops_client *c, struct call *call, const struct wire_message *m, int *fds)
{
    struct wire_buffer buffer = {.fd = -1};
    wire_decode *decode = call->decode;

    call_end(c, call, NULL);
    if (m->error || (decode != wire_decode_register && decode != wire_decode_alloc))
        return;
    if (decode(m->result, fds, m->nfds, &buffer))
        wire_pack_release(&c->t.out, buffer.id);
    if (buffer.fd >= 0)
        close(buffer.fd);
}

static const char *take_response(struct kops_client *c, const struct wire_message *m)
{
    struct call *call = call_by_msgid(c, m->msgid);
    struct kops_error error;
    int fds[WIRE_MAX_FDS];
    const char *wrong = transport_claim(&c->t, m->nfds, fds);

    if (wrong)
        return wrong;
    if (!call) {
        wrong = "a response answers no request";
    } else if (call->state == CALL_LATE) {
        drop_late(c, call, m, fds);
    } else if (m->error) {
        wire_decode_error(m->error, &error);
        call_end(c, call, &error);
    } else if (!call->decode(m->result, fds, m->nfds, call->into)) {
        fail(&error, KOPS_ERR_BAD_REPLY, "the daemon's result lacks a key, or there is no memory to read it");
        call_end(c, call, &error);
    } else {
        call_end(c, call, NULL);
    }
    for (unsigned i = 0; i < m->nfds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return wrong;
}

/* Takes every whole message that is there. Called by whoever holds the receiving role. */
static void take_messages(struct kops_client *c)
{
    const char *wrong, *data;
    size_t length;

    while (!(wrong = transport_next(&c->t, &data, &length)) && data) {
        struct wire_message m;

        wrong = wire_parse(c->decoder, data, length, &m);
        if (!wrong && m.kind == WIRE_RESPONSE)
            wrong = take_response(c, &m);
        else if (!wrong && m.kind == WIRE_ERROR_NOTIFICATION)
            wire_decode_error(m.error, &c->reason);
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
                     "the daemon closed the connection; requests without a reply may or may not have run");
        break;
    case TRANSPORT_BROKEN:
        session_lost(c, KOPS_ERR_BAD_REPLY, "the daemon sent file descriptors that were cut off or too many");
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

/* Receives until something came, or lets the thread that receives do it. */
static void progress(struct kops_client *c, uint64_t deadline)
{
    enum transport_result r;

    if (c->reading || c->lost) {
        session_sleep(c, deadline);
        return;
    }
    c->reading = true;
    c->users++;
    pthread_mutex_unlock(&c->lock);
    r = transport_receive(&c->t, deadline, c->spin_us);
    pthread_mutex_lock(&c->lock);
    c->users--;
    if (!c->lost)
        take_received(c, r);
    c->reading = false;
    close_lost(c);
    if (c->waiters)
        pthread_cond_broadcast(&c->changed);
}

void session_poll(struct kops_client *c)
{
    enum transport_result r = TRANSPORT_OK;

    while (r == TRANSPORT_OK && !c->reading && !c->lost && c->t.fd >= 0) {
        r = transport_receive(&c->t, 0, 0);
        take_received(c, r);
    }
    if (c->waiters)
        pthread_cond_broadcast(&c->changed);
}

bool session_wait(struct kops_client *c, struct call *call, uint64_t deadline)
{
    while (call->state == CALL_SENT) {
        progress(c, deadline);
        if (call->state == CALL_SENT && deadline != DEADLINE_NEVER && clock_ns() >= deadline)
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
    call_free(c, call);
    return code;
}

void session_abandon(struct kops_client *c, struct call *call)
{
    if (call->state == CALL_SENT) {
        call->state = CALL_LATE;
        call->ticket = 0;
        call->into = NULL;
    } else {
        call_free(c, call);
    }
}

/* ---- sending ---- */

/* Waits until the socket takes bytes again, and takes in replies meanwhile: a daemon that cannot send does not read. */
static void wait_writable(struct kops_client *c, uint64_t deadline)
{
    struct pollfd p = {.fd = c->t.fd, .events = POLLOUT};
    enum transport_result r = TRANSPORT_TIMEOUT;
    bool receive = !c->reading;

    if (receive) {
        c->reading = true;
        p.events |= POLLIN;
    }
    c->sending = true;
    c->users++;
    pthread_mutex_unlock(&c->lock);
    if (poll(&p, 1, deadline_poll_ms(deadline)) > 0 && receive && p.revents & (POLLIN | POLLHUP | POLLERR))
        r = transport_receive(&c->t, 0, 0);
    pthread_mutex_lock(&c->lock);
    c->users--;
    if (receive) {
        if (!c->lost)
            take_received(c, r);
        c->reading = false;
    }
    c->sending = false;
    close_lost(c);
    if (c->waiters)
        pthread_cond_broadcast(&c->changed);
}

/* The message was not begun: takes it out again. */
static void unsend(struct kops_client *c, size_t from, size_t length)
{
    struct bytes *out = &c->t.out;

    memmove(out->data + from, out->data + from + length, out->length - from - length);
    out->length -= length;
    if (out->length == c->t.sent)
        out->length = c->t.sent = 0;
}

static enum session_sent not_appended(struct kops_client *c, struct call *call, size_t from, struct kops_error *e)
{
    size_t length = c->t.out.length - from;

    if (!c->t.out.failed && length <= c->max_message)
        return SESSION_SENT;
    if (c->t.out.failed)
        fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a request of %zu bytes", length);
    else
        fail(e, KOPS_ERR_BAD_ARGUMENT, "the request has %zu bytes, the daemon takes %llu", length,
             (unsigned long long)c->max_message);
    c->t.out.failed = false;
    unsend(c, from, length);
    call_free(c, call);
    return SESSION_FAILED;
}

enum session_sent session_send(struct kops_client *c, struct call *call, size_t from, int fd, uint64_t deadline,
                               struct kops_error *e)
{
    const uint32_t generation = c->generation;
    size_t before = from - c->t.sent, own = c->t.out.length - from, all = own;

    if (not_appended(c, call, from, e))
        return SESSION_FAILED;
    while (own) {
        /* Descriptors go with the first byte of their message, and nothing else goes with them. */
        bool alone = fd >= 0 && before;
        ssize_t n = transport_send(&c->t, c->t.sent + (alone ? before : before + own), before || own < all ? -1 : fd);

        if (n > 0) {
            size_t others = (size_t)n < before ? (size_t)n : before;

            before -= others;
            own -= (size_t)n - others;
            continue;
        }
        if (n != -EAGAIN) {
            session_poll(c); /* the daemon may have said why it hung up */
            session_lost(c, KOPS_ERR_CONNECTION_LOST, "the daemon closed the connection: %s", strerror((int)-n));
        } else if (deadline != DEADLINE_NEVER && clock_ns() >= deadline) {
            if (own == all) {
                unsend(c, from, all);
                call_free(c, call);
            } else {
                session_abandon(c, call); /* the rest is sent before the next message */
            }
            fail(e, KOPS_ERR_TIMEOUT, "the daemon did not take the request in time");
            return SESSION_FAILED;
        } else {
            wait_writable(c, deadline);
        }
        if (c->lost || c->t.fd < 0 || c->generation != generation) {
            session_finish(c, call, e);
            return own == all ? SESSION_NOT_SENT : SESSION_FAILED;
        }
    }
    return SESSION_SENT;
}

void session_push(struct kops_client *c)
{
    ssize_t n = 1;

    while (n > 0 && !c->sending && !c->lost && c->t.fd >= 0 && c->t.sent < c->t.out.length)
        n = transport_send(&c->t, c->t.out.length, -1);
}

enum kops_code session_begin(struct kops_client *c, uint64_t deadline, struct call **ret_call, struct kops_error *e)
{
    for (;;) {
        enum kops_code r = session_connect(c, deadline, e);

        if (r)
            return r;
        if (c->sending)
            session_sleep(c, deadline);
        else if (c->inflight >= c->max_inflight)
            progress(c, deadline);
        else
            break;
        if (deadline != DEADLINE_NEVER && clock_ns() >= deadline)
            return fail(e, KOPS_ERR_TIMEOUT, "%u earlier requests are unanswered, the daemon takes no more",
                        c->inflight);
    }
    *ret_call = call_new(c);
    if (!*ret_call)
        return fail(e, KOPS_ERR_NO_MEMORY, "too many runs were submitted and not waited for");
    return KOPS_OK;
}

enum kops_code session_call(struct kops_client *c, wire_pack *pack, const void *request, int fd, wire_decode *decode,
                            void *into, uint64_t deadline, unsigned attempts, struct kops_error *e)
{
    for (unsigned attempt = 1;; attempt++) {
        struct call *call;
        size_t from;
        enum kops_code r = session_begin(c, deadline, &call, e);
        enum session_sent sent;

        if (r)
            return r;
        call->decode = decode;
        call->into = into;
        from = c->t.out.length;
        pack(&c->t.out, call->msgid, request);
        sent = session_send(c, call, from, fd, deadline, e);
        if (sent == SESSION_NOT_SENT && attempt < attempts)
            continue;
        if (sent != SESSION_SENT)
            return e->code;
        if (session_wait(c, call, deadline))
            return session_finish(c, call, e);
        session_abandon(c, call);
        return fail(e, KOPS_ERR_TIMEOUT, "the daemon did not reply in time");
    }
}
