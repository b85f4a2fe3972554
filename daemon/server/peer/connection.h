/* A client's connection: its socket, what it owns, and its end. */
#ifndef KOPS_SERVER_CONNECTION_H
#define KOPS_SERVER_CONNECTION_H

#include "server/types.h"

/* Takes over an accepted, non-blocking socket. Returns NULL, with the socket still the caller's, when it cannot be
 * served; *e is for the peer, and the log has a line. */
struct connection *connection_new(struct server *server, int fd, struct error *e);

/* Ends it: no reply goes out any more, everything it owns is given back, jobs are stopped. It frees itself once its
 * last request has ended. `why` is for the log. */
void connection_close(struct connection *c, const char *why);

/* Ends it after telling the client so: an error notification, behind the replies that are there. */
void connection_fail(struct connection *c, const struct error *e, const char *why);

/* Frees a closed connection when nothing is left of it. */
void connection_free_if_done(struct connection *c);

/* There is output to flush, or input may go on: connection_turn() will see to it in this loop turn. */
void connection_mark_dirty(struct connection *c);
void connection_turn(struct connection *c);

/* connection_input.c: what it sends. */
/* Takes what its socket has, or a bounded part of it, and dispatches it. */
void connection_take_input(struct connection *c);
/* Dispatches messages that are there already. -1: the connection was closed. */
int connection_process(struct connection *c);
/* Ends it for breaking the protocol, or because the daemon has no room for what it sent. */
void connection_violation(struct connection *c, const struct error *e);

/* Whether it may have more requests now. */
bool connection_may_read(const struct connection *c);
/* Whether to take bytes from its socket, or its ring, to see what comes: also when it has no credit, because some
 * requests need none. */
bool connection_may_look(const struct connection *c);
bool connection_may_look_at_ring(const struct connection *c);
/* It has so many replies to read that it is not read itself. */
bool connection_is_stuck(const struct connection *c);
/* It has sent a part of a message, and the rest would be taken. */
bool connection_has_part(const struct connection *c);
/* Dispatches a bounded number of messages of its ring. True when there were any. */
bool connection_read_ring(struct connection *c);
/* The loop need not watch its socket, because somebody looks at it all the time; it must again. Being watched costs a
 * sender time at every message. */
void connection_unwatch(struct connection *c);
void connection_watch(struct connection *c);

/* Looks at its socket without waiting for the loop to say that it is readable. */
void connection_read_socket(struct connection *c);
/* Replies that have not gone. */
bool connection_has_output(const struct connection *c);

/* Reads what is there and dispatches it, on its socket and its ring. */
void connection_read_all(struct connection *c);
/* The same, then reads no more (the daemon is stopping). */
void connection_end_input(struct connection *c);

/* holdings.c: buffers, inline references and programs. */
/* Gives everything back that the connection holds; what runs still use stays until they have ended. */
void connection_drop_all(struct connection *c);
/* mapping_get_ipc() for this connection. */
int connection_get_ipc(struct connection *c, struct backend_device *device, const struct backend_import *import,
                       const uint64_t *alloc_id, struct mapping **ret_mapping, struct error *e);
/* The user's hold on the mapping, which is charged with its bytes, or with the declared ones until it is open. What
 * alloc made is charged otherwise. NULL: quota_exceeded. */
struct shared_charge *connection_hold(struct connection *c, const struct mapping *m, uint64_t declared,
                                      struct error *e);
/* For the registry of mappings: one has been opened, and may be larger than was declared. */
void connections_note_opened(const struct mapping *m, void *server);
/* … and an entry's user is charged with its areas, or may have no more; with that and the rest of its bill no longer.
 */
int mapping_charge_areas(struct mapping *m, unsigned areas, struct error *e);
void mapping_settle(struct mapping *m);
/* … and with shared memory no longer than somebody refers to it: who releases some can register as much at once. */
void mapping_settle_shared(struct mapping *m);
/* Closes what somebody of this user sent, however long that takes. */
void connections_close_fds(void *server, uid_t uid, const int *fds, unsigned count);
/* Inline references (see PROTOCOL.md): that of an earlier request with the same handle and id, or NULL. */
const struct inline_ref *connection_find_inline(struct connection *c, const struct backend_device *device,
                                                const unsigned char *handle, uint64_t alloc_id);
/* Keeps references; the least recently used one makes room. */
void connection_add_inline(struct connection *c, struct mapping *m, struct shared_charge *shared);
/* Drops every inline reference with these handle bytes; false when there is none. */
bool connection_drop_inline(struct connection *c, const unsigned char *handle);

/* One of its tables takes no more: fills in quota_exceeded, returns -1. `what` is its entries, in the plural. */
int connection_full(const struct connection *c, const struct idtable *table, const char *what, struct error *e);
enum buffer_kind { BUFFER_READ_ONLY, BUFFER_WRITABLE, BUFFER_ALLOCATED /* by this connection; writable */ };
/* A new buffer holding its own references to `m` and `hold`; NULL and quota_exceeded when there are too many. */
struct buffer_ref *connection_add_buffer(struct connection *c, struct mapping *m, struct shared_charge *shared,
                                         uint64_t size, enum buffer_kind kind, struct error *e);
/* It has become larger. */
void connection_resize_buffer(struct connection *c, struct buffer_ref *buffer, uint64_t size);
/* Forgets it and its reference. */
void connection_drop_buffer(struct connection *c, struct buffer_ref *buffer);

#endif
