/* What `clients` and `metrics` tell and only a driver or the system knows: asked for on the pool, so that a driver that
 * hangs holds up neither the loop nor, for more than a moment, those who watch it. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_SAMPLING_H
#define KOPS_SERVER_OBSERVE_SAMPLING_H

#include "server/peer/long_reply.h"

void sampling_init(struct server *s);
void sampling_close(struct server *s);

/* Asks anew, and then calls long_reply_enqueue(), with what is known when the answer does not come in time. */
void sampling_enqueue(struct request *r, bool (*first)(struct long_reply *reply));

#endif
