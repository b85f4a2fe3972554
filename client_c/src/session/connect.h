/* Finding the daemon, greeting it, and waiting for one that is started anew; requests that go on with the next daemon;
 * things that a daemon keeps for a connection. */
#ifndef KOPS_CLIENT_CONNECT_H
#define KOPS_CLIENT_CONNECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fail.h"
#include "client.h"
#include "session.h"

/* How long to wait for a daemon that is started anew. */
struct patience {
    int64_t ms;                     /* 0: one try */
    bool strict;                    /* the last try ends with it */
    bool follows;                   /* the first connection is waited for as later ones are */
    bool (*is_over)(void *context); /* asked between tries, without the lock; NULL: never earlier */
    void *context;
};

/* Makes a connection where there is none. Lock held; dropped while it waits. One thread connects (`greeting`); the
 * others wait for the outcome, and share its failure. */
enum kops_code session_connect_for(struct kops_client *c, uint64_t deadline, const struct patience *p,
                                   struct kops_error *e);

/* As session_connect_for(), as long as the client's options allow. A binding's client has no new connection so: the
 * error is connection_lost, with the detail `ran` = 0. */
enum kops_code session_connect_anew(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* Makes sure that there is a connection. Lock held; dropped while it waits. */
static inline enum kops_code session_connect(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    if (client_is_connected(c) && !c->ends_by && !c->greeting)
        return KOPS_OK;
    return session_connect_anew(c, deadline, e);
}

/* A thing that the daemon keeps for a connection under an id (a buffer, a program, a module, a kernel). It is made
 * known at its first use, and anew on every connection. Part of a struct that has a reference to its client. Lock held;
 * may drop it while it waits. */
struct remote {
    uint64_t id;
    uint32_t generation; /* generation of the connection that knows the id; 0: none does */
    uint32_t defining;   /* generation for which a thread defines it; 0: none */
};

/* Asks the daemon for the thing, and calls remote_defined() when the daemon has it. */
typedef enum kops_code remote_define(void *thing, uint64_t deadline, struct kops_error *e);

static inline bool remote_known(const struct kops_client *c, const struct remote *r)
{
    return r->generation == c->generation;
}

/* Notes the id. `generation`: of the connection that gave it. */
static inline void remote_defined(const struct kops_client *c, struct remote *r, uint64_t id, uint32_t generation)
{
    if (generation != c->generation) /* the connection changed meanwhile: try again */
        return;
    r->id = id;
    r->generation = generation;
}

/* Lets one thread at a time define the thing, until the present connection knows it. `what` names it in messages. */
enum kops_code remote_ensure(struct kops_client *c, struct remote *r, remote_define *define, void *thing,
                             const char *what, uint64_t deadline, struct kops_error *e);

/* Tells the daemon that the thing is not used any more, where the present connection knows it. `what` as in
 * wire_pack_release(). */
void remote_release(struct kops_client *c, const struct remote *r, const char *what);

/* ---- starter.c: starting a daemon of this user's where nothing listens, by `kopsd --autostart`, which decides. Needs
 * no client and no lock. Thread: any. ---- */

/* Returns false where KOPS_AUTOSTART is 0, and in a set-user-ID program. */
bool starter_is_allowed(void);

/* Writes the path of a ready daemon's socket to `text`, or the reason why there is none. `timed_out` says that the
 * deadline was the reason; a daemon that has been started by then goes on. */
bool starter_run(uint64_t deadline, char *text, size_t size, bool *ret_timed_out);

/* ---- requests ----
 *
 * On the present connection (struct exchange), or on a new one where that is over (session_call()). struct
 * recovery decides whether a blocking call that failed is sent again. Lock held; dropped while a function waits.
 *
 * A request that was refused because the daemon ends never ran: it is sent again until a daemon takes it, as long as
 * the client's reconnect timeout. So is a request that a dead daemon never read. A request whose reply did not come, or
 * that failed with the device, may have run: it is sent again once, where running twice is harmless. */

/* ---- going on after a daemon that ended ---- */

/* Connections that may end during one try of a call, before the request is sent completely. */
enum { RECOVERY_CONNECTIONS = 8 };

/* The state of a blocking call. Zeroed at its begin. */
struct recovery {
    bool sent;           /* the last try was sent */
    enum call_fate fate; /* outcome of the last try */
    bool repeated;
    unsigned unread;
    unsigned pause_ms;
    uint64_t until; /* time until which a daemon that refuses is asked again; 0: none has refused yet */
};

/* Returns the outcome of the call, and gives the call back. */
enum kops_code recovery_finish(struct kops_client *c, struct recovery *r, struct call *call, struct kops_error *e);

/* Tells whether to send the call, which failed with *e, again; if not, *e says why. `safe` is asked at most once; NULL:
 * the call is never sent again, since the binding decides. */
typedef bool recovery_safe(const void *context);
bool recovery_again(struct kops_client *c, struct recovery *r, recovery_safe *safe, const void *context,
                    uint64_t deadline, struct kops_error *e);

/* The `safe` of requests that may always reach the daemon twice. */
bool recovery_always(const void *context);
bool recovery_never(const void *context);

/* ---- a request and its reply, on one connection ---- */

struct exchange {
    wire_pack *pack;
    const void *request;
    int fd; /* goes with the request; -1: none */
    wire_decode *decode;
    void *into;
};

/* Packs and sends, once there is room (*m, from session_reserve()). */
static inline enum session_sent exchange_send(struct kops_client *c, const struct exchange *x, struct outgoing *m,
                                              uint64_t deadline, struct kops_error *e)
{
    m->call->decode = x->decode;
    m->call->into = x->into;
    x->pack(session_out(c, m), m->call->msgid, x->request);
    return session_appended(c, m, e) ? SESSION_FAILED : session_send(c, m, deadline, e);
}

/* Waits for the reply. False: the deadline passed, and the call was given up. */
static inline bool exchange_wait(struct kops_client *c, struct call *call, uint64_t deadline, struct kops_error *e)
{
    if (session_wait(c, call, deadline))
        return true;
    session_abandon(c, call);
    fail(e, KOPS_ERR_TIMEOUT, "the daemon did not reply in time");
    return false;
}

/* Exchanges request and reply on the connection of that generation; connection_lost where it is over. */
enum kops_code exchange_here(struct kops_client *c, uint32_t generation, const struct exchange *x, uint64_t deadline,
                             struct kops_error *e);

/* ---- requests on any connection ---- */

/* Connects where there is no connection, and waits for room for one more request. See session_reserve(). */
enum kops_code session_begin(struct kops_client *c, const int *fds, unsigned n_fds, uint64_t deadline,
                             struct outgoing *ret, struct kops_error *e);

/* Repeats of a request. SESSION_ATTEMPTS: repeating is harmless, so it is repeated as described above. SESSION_ONCE:
 * sent again only where it surely was not carried out. SESSION_HERE: never sent again, since it is for this connection
 * alone. */
enum { SESSION_HERE, SESSION_ONCE, SESSION_ATTEMPTS };

/* Sends a request, with `fd` unless it is -1, and waits for its reply. */
enum kops_code session_call(struct kops_client *c, wire_pack *pack, const void *request, int fd, wire_decode *decode,
                            void *into, uint64_t deadline, unsigned attempts, struct kops_error *e);

/* Waits, before a request with descriptors, until notifications in the ring have been read. */
enum kops_code session_settle(struct kops_client *c, uint64_t deadline, struct kops_error *e);

#endif
