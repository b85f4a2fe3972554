/* The sandbox of a helper process: before it reads a source it gives up privileges, files, and most system calls.
 *
 * Thread: the process's only one; nothing here can be undone. */
#ifndef KOPS_COMPILE_SANDBOX_H
#define KOPS_COMPILE_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/error.h"

/* Tells whether this kernel supports the sandbox. Changes nothing; any thread, any process. */
bool sandbox_available(struct error *e);

/* Drops privileges: no new ones, not dumpable, dies with its parent; for root: another user. Call it before libraries
 * are loaded. `parent`: the process that must still be there. */
int sandbox_drop_privileges(const char *user, int parent, struct error *e);

/* Allows only files below the directories, read only, and no connection by name or address. */
int sandbox_enter_landlock(const char *const *directories, unsigned n, struct error *e);

/* Allows only the system calls that a compile needs; for the helper that forks (`forks`) also those for forking. Other
 * calls fail with EPERM. */
int sandbox_enter_seccomp(bool forks, struct error *e);

/* Returns a process's address space now. `statm`: a descriptor of /proc/self/statm, which describes the process that
 * opened it. 0: gone. */
uint64_t sandbox_address_space(int statm);

struct sandbox_limits {
    uint64_t memory_bytes; /* address space, in all */
    unsigned cpu_s;        /* more than used so far */
    unsigned files;        /* open at one time */
};

/* Sets soft and hard limits; no core dumps, no file may grow. */
int sandbox_limit(const struct sandbox_limits *limits, struct error *e);

#endif
