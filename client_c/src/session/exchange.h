/* One request and its reply, without another connection where that one ends. Lock held; dropped while it waits.
 */
#ifndef KOPS_CLIENT_EXCHANGE_H
#define KOPS_CLIENT_EXCHANGE_H

#include "base/fail.h"
#include "receive.h"
#include "send.h"

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

/* All of it on the connection of that generation: connection_lost where that one is over. */
enum kops_code exchange_here(struct kops_client *c, uint32_t generation, const struct exchange *x, uint64_t deadline,
                             struct kops_error *e);

#endif
