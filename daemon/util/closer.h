/* Closes descriptors that others made, on threads of its own.
 *
 * The close of such a descriptor may take as long as its maker likes: a socket lingers over what it has not sent, a
 * file system of a user's own answers when it pleases, and a socket drops with itself whatever waits in it unread. So
 * no thread that anybody else needs does it. A lane is somebody's: what is in it is closed one after the other by one
 * thread, which there is while something is left; lanes do not wait for each other. Where too much waits in one, its
 * thread is interrupted, for which a socket does not linger on; a file system need not mind, so files that a file
 * system may be asked about at their close have lanes of their own.
 *
 * Thread: all functions are the loop's. */
#ifndef KOPS_UTIL_CLOSER_H
#define KOPS_UTIL_CLOSER_H

#include <pthread.h>
#include <stdbool.h>
#include <uv.h>

#include "util/list.h"

struct closer;
struct closing;

/* Part of whoever it belongs to, who stays until done() was called for everything in it. */
struct closer_lane {
    struct list link; /* the closer's, while there is something in it */
    struct closing *now;
    pthread_t thread; /* while there is something in it */
    struct list waiting;
    unsigned n_waiting;
    void (*done)(struct closer_lane *lane, unsigned count); /* on the loop's thread: so many are closed */
};

/* NULL: no memory. */
struct closer *closer_new(uv_loop_t *loop);
/* Nothing more comes, and what is not closed yet is left to the end of the process: done() is called for all of it. */
void closer_stop(struct closer *closer);
/* After the loop's end. NULL is allowed; returns NULL. */
struct closer *closer_free(struct closer *closer);

void closer_lane_init(struct closer_lane *lane, void (*done)(struct closer_lane *lane, unsigned count));

/* Takes ownership of all of them. Where there is no memory or no thread to be had they are closed at once. */
void closer_close(struct closer *closer, struct closer_lane *lane, const int *fds, unsigned count);

/* How many more wait in the lane than may, and interrupts its thread where there are any. Nothing holds them back: that
 * is for who brings them. */
unsigned closer_crowd(struct closer *closer, struct closer_lane *lane);

/* Closes a connected Unix socket: true when that was done here, since no descriptors wait in it. Else nothing comes in
 * any more, and it is the caller's to give to a lane. */
bool closer_close_socket(int socket);

#endif
