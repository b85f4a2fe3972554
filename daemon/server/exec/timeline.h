/* Ordered work: runs that wait for a word of shared memory that the client's CUDA stream writes, and write another one
 * that it waits for. See PROTOCOL.md, Ordered work.
 *
 * A waiting run stays here until its word is reached; no wait is ever put on the device. A channel of the GPU is then
 * never held up by a client, and neither is a driver call that waits for the whole context (freeing, loading code).
 *
 * Thread: loop. */
#ifndef KOPS_SERVER_EXEC_TIMELINE_H
#define KOPS_SERVER_EXEC_TIMELINE_H

#include "server/exec/run.h"

struct timelines;

int timelines_init(struct server *s, struct error *e);
void timelines_stop(struct server *s);
/* After the loop has ended. */
void timelines_free(struct server *s);

/* Looks at every word that a run waits for. */
void timelines_poll(struct server *s);
/* Before the loop sleeps: it will be woken to look again, soon where the wait is young, else seldom. */
void timelines_arm(struct server *s);

/* The connection's last job has ended: whoever still waits for its words goes on. NULL is allowed. */
void timelines_close(struct server *s, struct timelines *t);

/* Whether the values may follow those before them on the stream, and the connection has its page; notes them. */
int timeline_check(struct stream *stream, uint64_t ready, uint64_t done, struct error *e);
/* Makes the job write its done value. */
void timeline_set_signal(struct run *run);

bool timeline_is_reached(const struct run *run);
/* The run, its stream's next, waits for its word. Harmless when it is held already. */
void timeline_hold(struct run *run);
/* The run, its stream's next, ends without having waited: what comes behind it waits in its stead. */
void timeline_pass_on(struct run *run);
/* Writes the done value, if there is one, from here: all that came before it on the stream has ended. */
void timeline_write_done(struct run *run);

#endif
