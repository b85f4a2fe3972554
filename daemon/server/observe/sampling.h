/* Sampling: numbers for `clients` and `metrics` that only the system or a driver knows. They are asked for on the pool,
 * so that a driver that hangs never blocks the loop, and delays a reply for a moment only. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_SAMPLING_H
#define KOPS_SERVER_OBSERVE_SAMPLING_H

#include "server/peer/long_reply.h"

void sampling_init(struct server *s);
void sampling_close(struct server *s);

/* Takes a new sample, then calls long_reply_enqueue(). If the sample is late, the reply has the last one. */
void sampling_enqueue(struct request *r, bool (*first)(struct long_reply *reply));

#endif
