/* Runs: from a decoded request, through its stream's queue and the device, to the reply. */
#ifndef KOPS_SERVER_RUN_H
#define KOPS_SERVER_RUN_H

#include "rpc/value.h"
#include "server/types.h"

/* run.c: takes a decoded run on its way. */
void run_begin(struct request *r, const struct run_options *o);
/* Answers a run that could not be decoded, in its turn where it is ordered. Gives everything back. */
void run_refuse(struct request *r, const struct run_options *o, const struct error *e);
/* Stops a run for `why`, unless it was stopped before: a queued one ends at once; one that a device has ends when the
 * device has let go of it, and at its deadline it is answered first. */
void run_stop(struct request *r, enum run_stop why);
/* Its deadline has passed. */
void run_deadline(struct request *r);
/* The run is over: replies, gives everything back, lets the next one go on. */
void run_finish(struct request *r);
/* run_decode.c: the same for one whose parameters are wrong as such. */
void run_refuse_undecoded(struct request *r, const struct rpc_value *params, const struct error *e);
/* The same for every method that runs something: a run without a body; its priority; after the body, the job. */
void run_init(struct request *r);
int run_decode_priority(const struct rpc_arg *arg, enum backend_priority *ret, struct error *e);
int run_set_job(struct request *r, const struct run_options *o, struct error *e);
/* The options of such a method, out of its arguments. */
#define RUN_OPTIONS(METHOD)                                                                                            \
    {                                                                                                                  \
        .stream = args[METHOD##_stream].u, .warmup = args[METHOD##_warmup].u, .repeat = args[METHOD##_repeat].u,       \
        .timing = args[METHOD##_timing].b, .deadline_ms = args[METHOD##_deadline_ms].u,                                \
        .ready = args[METHOD##_ready].u, .done = args[METHOD##_done].u                                                 \
    }

/* Stops all of a connection's runs that were not stopped for this reason before. */
void run_stop_all(struct connection *c, enum run_stop why);

/* reply.c: answers an ended run; counts it alone where it was answered before. */
void run_reply(struct request *r);
/* Answers a stopped run whose work a device still has. */
void run_reply_early(struct request *r);

/* stream.c */
/* The connection's stream of that number, made at its first use; NULL: no memory. */
struct stream *stream_get(struct connection *c, uint64_t number, struct error *e);
/* Puts a run at the end of its stream. */
void stream_enqueue(struct stream *stream, struct request *r);
/* Lets the stream's next runs go on as far as they can. */
void stream_advance(struct stream *stream);
void stream_remove(struct request *r);
/* Gives the device queues back to the server's pool. NULL is allowed; returns NULL. */
struct stream *stream_free(struct stream *stream);
/* Lets low work go on where its device has no other any more. */
void streams_end_yielding(struct server *s);

/* deadline.c */
void deadline_add(struct request *r);
void deadline_remove(struct request *r);
void deadlines_init(struct server *s);

#endif
