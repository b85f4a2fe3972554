/* Work that may block, on libuv's thread pool. The struct is embedded in its owner and stays until done(). */
#ifndef KOPS_UTIL_WORK_H
#define KOPS_UTIL_WORK_H

#include <uv.h>

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
