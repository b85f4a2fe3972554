/* Runs: from a decoded request, through its stream's queue and the device, to the reply. */
#ifndef KOPS_SERVER_RUN_H
#define KOPS_SERVER_RUN_H

#include "rpc/value.h"
#include "server/types.h"

/* run_decode.c: fills r->run from the arguments, and takes its mappings into use. On failure nothing is held. */
int run_decode(struct request *r, const struct rpc_arg *args, struct error *e);

/* run.c */
/* Stops a run for `why`: a queued one ends at once, a running one between repeats. */
void run_stop(struct request *r, enum run_stop why);
/* The run is over: replies, gives everything back, lets the next one go on. */
void run_finish(struct request *r);
/* Gives the mappings back. */
void run_release(struct run *run);

/* stream.c */
/* Puts a decoded run at the end of its stream. -1: no memory. */
int stream_enqueue(struct connection *c, uint64_t number, struct request *r, struct error *e);
/* Lets the stream's next runs go on as far as they can. */
void stream_advance(struct stream *stream);
void stream_remove(struct request *r);
/* Gives the device queues back to the server's pool. NULL is allowed; returns NULL. */
struct stream *stream_free(struct stream *stream);
/* Frees the pool. */
void stream_pool_free(struct server *s);

/* deadline.c */
void deadline_add(struct request *r);
void deadline_remove(struct request *r);
void deadlines_init(struct server *s);

#endif
