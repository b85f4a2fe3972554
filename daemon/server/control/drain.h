/* Draining: what was begun ends, nothing new is begun. See Draining in PROTOCOL.md. Thread: loop. */
#ifndef KOPS_SERVER_DRAIN_H
#define KOPS_SERVER_DRAIN_H

#include "server/types.h"

void drain_init(struct server *s);
void drain_close(struct server *s);

/* Whether new work is refused now; *e says so. */
bool drain_refuses(const struct server *s, struct error *e);

/* At the end of a turn of the loop: answers those who need wait no longer. True when it did something, so that there
 * may be output again. */
bool drain_step(struct server *s);

/* "serving", "draining", "stopping" */
enum server_state { STATE_SERVING, STATE_DRAINING, STATE_STOPPING, STATE_COUNT };
enum server_state server_state(const struct server *s);
extern const char *const server_state_names[STATE_COUNT];

#endif
