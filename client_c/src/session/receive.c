/* The receiving half, and the end of a connection. */
#include "session.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"

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
