/* Who is connected: the methods `clients` and `metrics`, and the line that says how the daemon does. Thread: loop. */
#ifndef KOPS_SERVER_CLIENTS_H
#define KOPS_SERVER_CLIENTS_H

#include "server/types.h"

/* Whether `viewer` may see what `uid` does. */
bool may_see(const struct connection *viewer, uid_t uid);
/* Whether `viewer` may see what is counted there: a subordinate user sees its owner's account, which it is charged to.
 */
bool may_see_account(const struct connection *viewer, const struct account *a);

/* Bytes that have come and gone, through the socket and the ring. */
uint64_t connection_bytes_in(const struct connection *c);
uint64_t connection_bytes_out(const struct connection *c);

/* Looks up the name of the peer's process, once. */
void connection_name_process(struct connection *c);

/* "serving; 3 clients, 2 jobs running, 1.2k requests/s": the rate since the last call. */
void server_status_text(struct server *s, char *into, size_t size);

#endif
