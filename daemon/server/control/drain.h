/* Draining: what was begun ends, nothing new is begun. See Draining in PROTOCOL.md. Thread: loop. */
#ifndef KOPS_SERVER_CONTROL_DRAIN_H
#define KOPS_SERVER_CONTROL_DRAIN_H

#include "server/base/shared.h"

void drain_init(struct server *s);
void drain_close(struct server *s);

/* At the end of a turn of the loop: answers those who need wait no longer. True when it did something, so that there
 * may be output again. */
bool drain_step(struct server *s);

/* Of the state of a request. */
extern const size_t drain_state_bytes;

#endif
