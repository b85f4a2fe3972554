/* The devices' queues, kept for the next stream that needs one, and the choice between two. Thread: loop. */
#ifndef KOPS_SERVER_QUEUES_H
#define KOPS_SERVER_QUEUES_H

#include "server/types.h"

/* Whether the number of the queue is to be even (0), odd (1), or either. */
enum { PARITY_ANY = -1 };

/* A free queue, or a new one. NULL: *e. */
struct device_queue *device_queue_take(struct server *s, struct backend_device *device, enum backend_priority priority,
                                       int parity, struct error *e);
/* No job is left on it. NULL is allowed. */
void device_queue_give(struct server *s, struct device_queue *p);
/* At the daemon's end; all have been given back. */
void device_queues_free(struct server *s);

/* An ordered run is about to begin: notes how long ago the last one did, and may put another queue in the stream's
 * place. Harmless for other runs. */
void queue_probe_note(struct stream *stream, const struct run *run);
/* The stream goes: gives back the queue that was put aside. */
void queue_probe_end(struct stream *stream);

#endif
