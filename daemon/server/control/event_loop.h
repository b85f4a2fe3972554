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

/* The busy poll: polls rings, devices and sockets for up to server.spin_us before the loop sleeps. Owns the budget,
 * which shrinks while polling does not pay. Thread: loop. */

void busy_poll_init(struct server *s);

/* Polls rings, devices and recent sockets for a slice of the budget, then lets the loop look at everything else. True:
 * the loop must come back without sleeping, to poll on or since the last turn has left work. */
bool busy_poll_slice(struct server *s);

/* The end of a daemon that nobody uses: server.idle_exit_s. Thread: loop. */

void idle_exit_init(struct server *s);
void idle_exit_close(struct server *s);

/* Begins and ends the wait. Called in every turn of the loop. */
void idle_exit_step(struct server *s);

/* The time may be another one; the wait begins anew. */
void idle_exit_reload(struct server *s);

#endif
