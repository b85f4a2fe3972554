/* The shutdown: refuses new work, sends the replies of work in flight, closes everything, in that order and within
 * server.shutdown_grace_ms. Thread: loop. */
#ifndef KOPS_SERVER_CONTROL_SHUTDOWN_H
#define KOPS_SERVER_CONTROL_SHUTDOWN_H

#include "server/base/shared.h"

void shutdown_init(struct server *s);

/* Begins the shutdown after SIGTERM or SIGINT; has the settings read again after SIGHUP. */
void shutdown_check_signals(struct server *s);

/* Calls the hook read() on the pool, then reload(), unless the shutdown has begun by then (reload.c). */
void server_read_settings(struct server *s, bool only_sockets);

/* Begins the shutdown; harmless when called again. */
void shutdown_begin(struct server *s);

/* Continues the shutdown; called in every turn of the loop while stopping. */
void shutdown_step(struct server *s);

/* The drain: work that has begun ends, and new work is refused. See Draining in PROTOCOL.md. Thread: loop. */

void drain_init(struct server *s);
void drain_close(struct server *s);

/* Answers drain requests that need not wait longer, and begins the shutdown after a drain with `stop`. Called at the
 * end of a turn of the loop. True when it did something, so that there may be output again. */
bool drain_step(struct server *s);

/* Size of the request's state. */
extern const size_t drain_state_bytes;

#endif
