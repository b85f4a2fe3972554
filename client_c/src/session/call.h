/* Requests on the present connection, or on a new one where that is over. Lock held; dropped while it waits. */
#ifndef KOPS_CLIENT_CALL_H
#define KOPS_CLIENT_CALL_H

#include "send.h"

/* Connects where there is no connection, and waits for room for one more request. See session_reserve(). */
enum kops_code session_begin(struct kops_client *c, const int *fds, unsigned n_fds, uint64_t deadline,
                             struct outgoing *ret, struct kops_error *e);

/* Whether a request may reach a daemon more than once. SESSION_ATTEMPTS: it does no harm, so it is repeated as
 * recover.h says. SESSION_ONCE: sent again only where it surely was not carried out. SESSION_HERE: never, since it is
 * for this connection alone. */
enum { SESSION_HERE, SESSION_ONCE, SESSION_ATTEMPTS };

/* One whole blocking request, with `fd` unless it is -1. */
enum kops_code session_call(struct kops_client *c, wire_pack *pack, const void *request, int fd, wire_decode *decode,
                            void *into, uint64_t deadline, unsigned attempts, struct kops_error *e);

/* Before a request with descriptors: waits until notifications that went through the ring have been read. */
enum kops_code session_settle(struct kops_client *c, uint64_t deadline, struct kops_error *e);

#endif
