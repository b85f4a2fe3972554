/* The two halves of a session, receiving and sending, and the end of a connection. Lock held; functions that wait drop
 * it meanwhile. */
#ifndef KOPS_CLIENT_SESSION_H
#define KOPS_CLIENT_SESSION_H

#include "client.h"

/* Waits for the reply. False: the deadline passed. */
bool session_wait(struct kops_client *c, struct call *call, uint64_t deadline);

/* The outcome of a CALL_DONE; gives the call back. */
enum kops_code session_finish(struct kops_client *c, struct call *call, struct kops_error *e);

/* Gives a call up: its reply will be dropped. */
void session_abandon(struct kops_client *c, struct call *call);

/* Receives until something came, or lets the thread that receives do it. */
void session_progress(struct kops_client *c, uint64_t deadline);

/* Reads the replies that have arrived, without waiting. */
void session_poll(struct kops_client *c);

/* Reads the replies in the ring, without a system call. */
void session_drain(struct kops_client *c);

/* Waits for a change that another thread makes. */
void session_sleep(struct kops_client *c, uint64_t deadline);

/* Closes a lost connection once no thread is in a system call on it. */
void session_close_lost(struct kops_client *c);

/* Ends the connection for that reason: every call ends with it. */
void session_lost(struct kops_client *c, enum kops_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The sending half of a session: requests and notifications on the present connection. Lock held; functions that wait
 * drop it meanwhile. */

/* A request that is being written and sent. */
struct outgoing {
    struct call *call;
    const int *fds;
    unsigned n_fds;
    enum stream stream;
    size_t from; /* place in that stream's outbox where the request begins */
    size_t length;
    bool alone;
};

/* Tells whether there is room for another request: no other thread is in the middle of a message, no long one is under
 * way, and the inflight limit is not reached. */
static inline bool session_has_room(const struct kops_client *c)
{
    return !c->sending && c->calls.inflight < c->max_inflight && (!c->alone || !call_by_msgid(&c->calls, c->alone));
}

/* Waits for a change that may make room. The connection may have ended then. */
void session_await_room(struct kops_client *c, uint64_t deadline);

/* Takes the room for a request. `fds` stay the caller's. The caller then appends the message to session_out(), and
 * keeps the lock until session_send(). */
enum kops_code session_reserve(struct kops_client *c, const int *fds, unsigned n_fds, struct outgoing *ret,
                               struct kops_error *e);

static inline struct bytes *session_out(struct kops_client *c, const struct outgoing *m)
{
    return &c->t.out[m->stream].bytes;
}

/* Checks the appended message. On failure it is taken back, with its call. */
enum kops_code session_appended(struct kops_client *c, struct outgoing *m, struct kops_error *e);

/* Takes an appended message back, with its call. */
void session_take_back(struct kops_client *c, struct outgoing *m);

/* Outcomes of sending a message. */
enum session_sent {
    SESSION_SENT,
    SESSION_NOT_SENT, /* the connection was over before the last byte; *e says why; worth another try on a new
                         connection */
    SESSION_FAILED    /* *e says why */
};

/* Sends an appended and checked message. After SESSION_NOT_SENT and SESSION_FAILED the call is no longer the caller's.
 * A call with an `ended` function is never given up alone: where its deadline passes, the connection is given up. */
enum session_sent session_send(struct kops_client *c, struct outgoing *m, uint64_t deadline, struct kops_error *e);

/* Asks the daemon to drop the call. */
void session_cancel(struct kops_client *c, const struct call *call);

/* ---- notifications: carried out in order with the requests, never answered; dropped without memory ---- */

enum { SESSION_BACKLOG_MAX = 16 << 10 };

struct notice {
    struct bytes *out; /* outbox for the notification */
    size_t from;
};

/* Begins a notification that must not overtake gathered work. session_notify() sends it as far as possible without
 * waiting. The lock is kept in between. */
struct notice session_notice(struct kops_client *c);
void session_notify(struct kops_client *c, const struct notice *n);

/* Tells whether so much waits to be sent that a dispensable notification should be dropped. */
static inline bool session_is_behind(struct kops_client *c)
{
    return client_notifications(c)->length > SESSION_BACKLOG_MAX;
}

/* Notifies the daemon of a release, as wire_pack_release(). */
void session_release(struct kops_client *c, const char *what, uint64_t id);

/* Holds notifications back while gathered work is not sent yet, until session_let_go() was called as often. */
static inline void session_hold(struct kops_client *c)
{
    c->held_back.holders++;
}
static inline bool session_is_holding(const struct kops_client *c)
{
    return c->held_back.holders > 0;
}
void session_let_go(struct kops_client *c);

#endif
