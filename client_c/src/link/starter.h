/* Starts a daemon of this user's where nothing listens: runs `kopsd --autostart`, which decides. Needs no client and no
 * lock. Thread: any. */
#ifndef KOPS_CLIENT_STARTER_H
#define KOPS_CLIENT_STARTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns false where KOPS_AUTOSTART is 0, and in a set-user-ID program. */
bool starter_is_allowed(void);

/* Writes the path of a ready daemon's socket to `text`, or the reason why there is none. `timed_out` says that the
 * deadline was the reason; a daemon that has been started by then goes on. */
bool starter_run(uint64_t deadline, char *text, size_t size, bool *ret_timed_out);

#endif
