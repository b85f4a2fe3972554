/* Watching a descriptor. Where the kernel has no memory for it, that is an error, not the end of the process as in
 * libuv. Thread: the loop's. */
#ifndef KOPS_UTIL_WATCH_H
#define KOPS_UTIL_WATCH_H

#include <uv.h>

/* Registers libuv's own descriptors once, before the loop runs. Returns 0 or a negative errno. */
int watch_loop(uv_loop_t *loop);

/* Starts as uv_poll_start() does. Returns 0, or a negative errno: then the descriptor is not watched. */
int watch_start(uv_poll_t *poll, int events, uv_poll_cb callback);

#endif
