/* The event loop by libuv: memory for its table, watching descriptors, and work on its thread pool. Where the kernel or
 * the process has no memory, that is an error, not the end of the process as in libuv. */
#ifndef KOPS_UTIL_LOOP_H
#define KOPS_UTIL_LOOP_H

#include <uv.h>

#include "util/error.h"

/* ---- memory ----
 *
 * libuv ends the process where it finds no memory for its table of watched descriptors. So the table gets its room
 * once, before there is a loop, and grows inside it. Descriptors beyond that room are refused where they come in. One
 * loop at a time. Thread: the loop's, before it starts; the functions that libuv calls are safe on any thread. */

/* Takes room for watching descriptors below `descriptors`. Call it before libuv's first function. */
int loop_memory_reserve(unsigned descriptors, struct error *e);

/* Returns the first descriptor number that the room cannot hold. */
unsigned loop_memory_descriptors(void);

/* ---- watching a descriptor; thread: the loop's ---- */

/* Registers libuv's own descriptors once, before the loop runs. Returns 0 or a negative errno. */
int watch_loop(uv_loop_t *loop);

/* Starts as uv_poll_start() does. Returns 0, or a negative errno: then the descriptor is not watched. */
int watch_start(uv_poll_t *poll, int events, uv_poll_cb callback);

/* ---- work that may block, on the thread pool ---- */

/* Embedded in its owner; stays until done(). */
struct work {
    uv_work_t request;
    void (*run)(struct work *work);  /* on a pool thread */
    void (*done)(struct work *work); /* on the loop thread, afterwards */
};

/* Loop thread. */
void work_submit(uv_loop_t *loop, struct work *work, void (*run)(struct work *), void (*done)(struct work *));

/* Closes descriptors on the pool: the last close of shared memory frees its pages, which takes long. Loop thread;
 * takes ownership of all of them. */
void work_close_fds(uv_loop_t *loop, const int *fds, unsigned count);

#endif
