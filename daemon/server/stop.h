/* The daemon's orderly end: no new work, replies for what is in flight, then out. */
#ifndef KOPS_SERVER_STOP_H
#define KOPS_SERVER_STOP_H

#include "server/types.h"

void stop_init(struct server *s);

/* Begins the end when SIGTERM or SIGINT came, has the settings read again when SIGHUP came. */
void stop_check_signals(struct server *s);

/* reload.c: the hooks read() and then reload(), unless the end has begun by then. */
void server_read_settings(struct server *s);

/* Begins the end; harmless when it has begun. */
void server_stop(struct server *s);

/* Goes on with it; called at every turn of the loop while stopping. */
void server_stop_step(struct server *s);

#endif
