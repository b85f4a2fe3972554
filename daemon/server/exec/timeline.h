/* Ordered work. A run waits for its ready word in shared memory, which the client's CUDA stream writes. When it has
 * ended, its done word is written, for which the client's stream waits. See PROTOCOL.md, Ordered work.
 *
 * A waiting run stays in the daemon; no wait is ever put on the device. So a client holds up neither a channel of the
 * GPU nor a driver call that waits for the whole context (freeing memory, loading code).
 *
 * Thread: loop. */
#ifndef KOPS_SERVER_EXEC_TIMELINE_H
#define KOPS_SERVER_EXEC_TIMELINE_H

#include "server/exec/run.h"

struct timelines;

int timelines_init(struct server *s, struct error *e);
void timelines_stop(struct server *s);
/* Frees the timelines, after the loop has ended. */
void timelines_free(struct server *s);

/* Looks at every word that a run waits for. */
void timelines_poll(struct server *s);
/* Call before the loop sleeps: sets the timer that wakes it, soon for a young wait, seldom for an old one. */
void timelines_arm(struct server *s);

/* Writes the highest value to all done words after the connection's last job, so that no stream of the client waits on.
 * NULL is allowed. */
void timelines_close(struct server *s, struct timelines *t);

/* Checks, for a run with a ready or done value, that the connection has its page and that the values rise on the
 * stream, and notes them. */
int timeline_check(struct stream *stream, uint64_t ready, uint64_t done, struct error *e);
/* Makes the job of a run with a done value write it. */
void timeline_set_signal(struct run *run);

bool timeline_is_reached(const struct run *run);
/* The stream's next run waits for its word. Harmless when it is held already. */
void timeline_hold(struct run *run);
/* The stream's next run ends without having waited: the run behind it waits in its place. */
void timeline_pass_on(struct run *run);
/* Writes the run's done value, if it has one. All earlier runs of the stream have ended. */
void timeline_write_done(struct run *run);

#endif
