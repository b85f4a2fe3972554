/* Running ops: the functions that the rooms above use. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_EXEC_H
#define KOPS_SERVER_EXEC_EXEC_H

#include "server/peer/request.h"

enum { STREAMS_MAX = 256 /* streams of a connection */ };

struct run_observer;

/* `observer` lives as long as the server. */
int exec_new(struct server *s, const struct run_observer *observer, struct error *e);
/* Closes the room's handles, since the loop ends. */
void exec_stop(struct server *s);
/* Frees the room after the loop's end, before the devices close. NULL is allowed. */
void exec_free(struct server *s);

extern const struct connection_part connection_exec_part;

/* Lets runs go on whose word was written, whose device has ended a job, or whose yielding is over. Called in every turn
 * of the loop. */
void exec_poll(struct server *s);
/* Makes sure that devices and words wake the loop. Called before the loop sleeps. */
void exec_arm(struct server *s);
/* Whether a job is likely to end so soon that polling pays. */
bool exec_ends_soon(const struct server *s, uint64_t now_ns);
/* Whether a device with jobs knows when their ends are likely: the loop sleeps until then. */
bool exec_has_forecasts(const struct server *s);
/* Whether polling may see something end, at a time that is not known. */
bool exec_may_complete(const struct server *s);

/* Jobs that devices have. */
unsigned exec_jobs(const struct server *s);
unsigned exec_jobs_on(const struct server *s, const struct backend_device *device);
/* Jobs that the device ever had. */
uint64_t exec_jobs_begun_on(const struct server *s, const struct backend_device *device);

/* Programs of the connection, and its unfinished runs that no device has. */
unsigned exec_programs(const struct connection *c);
unsigned exec_queued(const struct connection *c);

/* Tells whether the request is a run that can be cancelled. exec_cancel() cancels it, and answers it so. */
bool exec_can_cancel(const struct request *r);
void exec_cancel(struct request *r);

/* The daemon ends: ends all of the connection's runs, also those that a device can end only at its domain's cost. Runs
 * that have not begun are answered with shutting_down, others with cancelled. */
void exec_cancel_all(struct connection *c);

/* Applies changed limits to the connection, and to devices. */
void exec_limit_connection(struct connection *c);
void exec_reload(struct server *s);

/* Tells the observer of runs of programs that were counted since the last time. */
void exec_tell_programs(struct server *s);

/* Size of the state of a request that runs ops. */
extern const size_t run_state_bytes;

/* Answers a run whose parameters are wrong as such, in its turn where it is ordered. */
void run_refuse_undecoded(struct request *r, const struct rpc_value *params, const struct error *e);

#endif
