/* The event loop: the order of work in a turn, and the decision to sleep. Thread: loop. */
#ifndef KOPS_SERVER_CONTROL_EVENT_LOOP_H
#define KOPS_SERVER_CONTROL_EVENT_LOOP_H

#include "server/base/shared.h"

int event_loop_init(struct server *s, struct error *e);
/* Watches the descriptors of the devices, which are open. Devices that share a descriptor follow each other. */
int event_loop_watch_devices(struct server *s, struct error *e);
void event_loop_stop(struct server *s);

/* Does all work that needs no waiting. Replies of one turn leave in one write a connection. */
void event_loop_turn(struct server *s);

#endif
