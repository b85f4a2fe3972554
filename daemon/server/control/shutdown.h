/* The daemon's orderly end: no new work, replies for what is in flight, then out. */
#ifndef KOPS_SERVER_CONTROL_SHUTDOWN_H
#define KOPS_SERVER_CONTROL_SHUTDOWN_H

#include "server/base/shared.h"

void shutdown_init(struct server *s);

/* Begins the end when SIGTERM or SIGINT came, has the settings read again when SIGHUP came. */
void shutdown_check_signals(struct server *s);

/* reload.c: the hooks read() and then reload(), unless the end has begun by then. */
void server_read_settings(struct server *s);

/* Begins the end; harmless when it has begun. */
void shutdown_begin(struct server *s);

/* Goes on with it; called at every turn of the loop while stopping. */
void shutdown_step(struct server *s);

#endif
