/* The drain: work that has begun ends, and new work is refused. See Draining in PROTOCOL.md. Thread: loop. */
#ifndef KOPS_SERVER_CONTROL_DRAIN_H
#define KOPS_SERVER_CONTROL_DRAIN_H

#include "server/base/shared.h"

void drain_init(struct server *s);
void drain_close(struct server *s);

/* At the end of a turn of the loop: answers drain requests that need not wait longer, and begins the shutdown after a
 * drain with `stop`. True when it did something, so that there may be output again. */
bool drain_step(struct server *s);

/* Size of the request's state. */
extern const size_t drain_state_bytes;

#endif
