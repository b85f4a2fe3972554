/* Finding the daemon, greeting it, and waiting for one that is started anew. */
#ifndef KOPS_CLIENT_CONNECT_H
#define KOPS_CLIENT_CONNECT_H

#include "client.h"

/* The same where there is no connection, or it is about to end. */
enum kops_code session_connect_anew(struct kops_client *c, uint64_t deadline, struct kops_error *e);

/* Makes sure that there is a connection: waits for a daemon that is started anew as long as the client may. Lock held;
 * dropped while it waits. One thread connects (`greeting`); the others wait for the outcome, and share its failure. */
static inline enum kops_code session_connect(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    if (client_is_connected(c) && !c->ends_by && !c->greeting)
        return KOPS_OK;
    return session_connect_anew(c, deadline, e);
}

#endif
