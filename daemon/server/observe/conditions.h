/* Conditions that devices' speed depends on (backend/conditions.h), for `conditions`, `clients` and the metrics.
 * Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_CONDITIONS_H
#define KOPS_SERVER_OBSERVE_CONDITIONS_H

#include "server/peer/request.h"

struct backend_conditions;

int readings_init(struct server *s, struct error *e);
void readings_close(struct server *s);

/* The conditions map of results.json. */
struct conditions_map conditions_reply(const struct backend_conditions *c);

#endif
