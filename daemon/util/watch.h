/* Watching a descriptor, where the kernel's having no memory for it is an error and not the end of the process, which
 * libuv would make of it. Thread: the loop's. */
#ifndef KOPS_UTIL_WATCH_H
#define KOPS_UTIL_WATCH_H

#include <uv.h>

/* Registers libuv's own descriptors once, before the loop runs. Returns 0 or a negative errno. */
int watch_loop(uv_loop_t *loop);

/* As uv_poll_start(). Returns 0, or a negative errno, and then it is not watched. */
int watch_start(uv_poll_t *poll, int events, uv_poll_cb callback);

#endif
