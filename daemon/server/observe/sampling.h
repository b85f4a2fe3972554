/* Numbers that only the system or a driver knows: samples for `clients` and `metrics`, and readings of the conditions
 * that devices' speed depends on. They are asked for on the pool, so a driver that hangs never blocks the loop. Thread:
 * loop. */
#ifndef KOPS_SERVER_OBSERVE_SAMPLING_H
#define KOPS_SERVER_OBSERVE_SAMPLING_H

#include "server/peer/long_reply.h"
#include "server/peer/request.h"

/* ---- samples ---- */

void sampling_init(struct server *s);
void sampling_close(struct server *s);

/* Takes a new sample, then calls long_reply_enqueue(). If the sample is late, the reply has the last one. */
void sampling_enqueue(struct request *r, bool (*first)(struct long_reply *reply));

/* ---- the method `conditions` ---- */

struct backend_conditions;

int readings_init(struct server *s, struct error *e);
void readings_close(struct server *s);

/* The conditions map of results.json. */
struct conditions_map conditions_reply(const struct backend_conditions *c);

#endif
