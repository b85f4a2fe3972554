/* Finding the daemon, greeting it, and waiting for one that is started anew; things that a daemon keeps for a
 * connection. */
#ifndef KOPS_CLIENT_CONNECT_H
#define KOPS_CLIENT_CONNECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client.h"

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

#endif
