/* The busy poll: polls rings, devices and sockets for up to server.spin_us before the loop sleeps. Owns the budget,
 * which shrinks while polling does not pay. Thread: loop. */
#ifndef KOPS_SERVER_CONTROL_BUSY_POLL_H
#define KOPS_SERVER_CONTROL_BUSY_POLL_H

#include "server/base/shared.h"

void busy_poll_init(struct server *s);

/* Polls rings, devices and recent sockets for a slice of the budget, then lets the loop look at everything else. True:
 * the loop must come back without sleeping, to poll on or since the last turn has left work. */
bool busy_poll_slice(struct server *s);

#endif
