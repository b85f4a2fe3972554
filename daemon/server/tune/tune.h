/* Tuning: choices among kernels by measurement, made when asked for or while devices have nothing to do, kept on disk,
 * and published to every process that owns GPUs. This room's functions for the room above. Thread: loop. */
#ifndef KOPS_SERVER_TUNE_TUNE_H
#define KOPS_SERVER_TUNE_TUNE_H

#include "server/peer/request.h"

struct run_observer;

/* Makes the table of choices and sets it in the configuration of the backends: to be called before devices are opened.
 */
int tune_new(struct server *s, struct error *e);
/* The loop is about to end: closes the room's handles, and ends what is measured. */
void tune_stop(struct server *s);
/* Waits for the room's thread. After the loop's end. NULL rooms are allowed. */
void tune_free(struct server *s);

/* Answers finished tasks, and publishes which devices have work. Called in every turn of the loop. */
void tune_step(struct server *s);
/* Whether a request waits. */
bool tune_is_busy(const struct server *s);
/* Tells whether the request is a tune. tune_cancel() answers it with `cancelled`. */
bool tune_can_cancel(const struct request *r);
void tune_cancel(struct request *r);
/* Ends waiting requests as cancelled, since the daemon ends. */
void tune_cancel_all(struct server *s);

/* Tells whether there is something to tune: a device with a backend that tunes. */
bool tune_is_there(const struct server *s);

extern const struct connection_part connection_tune_part;

/* Observes runs for observe/, and sees which problems come often. */
extern const struct run_observer tune_runs;

extern const size_t tune_state_bytes;

#endif
