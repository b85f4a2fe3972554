/* What happens to clients, as lines of the log.
 *
 *     connect     debug    pid uid
 *     disconnect  debug    pid uid client why inflight requests errors connected_s
 *     fault       warning  code uuid op pid uid client why: a device or somebody's memory failed while a run used it
 *
 * Each at most EVENTS_A_SECOND times a second, with `held_back`, the number of lines of its kind that were left out
 * since the one before, where there were any; metrics counts them. Thread: loop. */
#ifndef KOPS_SERVER_EVENTS_H
#define KOPS_SERVER_EVENTS_H

#include "server/types.h"

enum { EVENTS_A_SECOND = 20 };

void event_connect(struct connection *c);
void event_disconnect(struct connection *c, const char *why);
/* Only where the error is one of a device or of memory. */
void event_fault(const struct request *r, const struct error *e);

#endif
