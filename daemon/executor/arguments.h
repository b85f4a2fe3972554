/* The command line and the environment of a process that has GPUs: written by the daemon, read by the process. */
#ifndef KOPS_EXECUTOR_ARGUMENTS_H
#define KOPS_EXECUTOR_ARGUMENTS_H

#include <limits.h>

#include "backend/backend.h"

enum { ARGUMENTS_CONFIG = 6, ARGUMENT_BYTES = PATH_MAX + 32 };

/* Writes ARGUMENTS_CONFIG arguments for the settings that a device's backend has. */
void arguments_write(const struct backend_config *config, char texts[ARGUMENTS_CONFIG][ARGUMENT_BYTES]);

/* Takes an argument "key=value" that arguments_write() wrote, of which `argument` is cut at the "=": the config points
 * into it. False: it is another one. */
bool arguments_read(char *argument, char *value, struct backend_config *config);

/* The daemon's environment. But for the common executor's, it has variables of its own in place of the daemon's:
 * processes that have, or may have, users' kernels, and the tuner, are never clients of MPS, since their end would
 * break programs that share a context. They have few channels, since there may be many of them. The caller frees the
 * list, not its texts. NULL: no memory. */
char **arguments_environment(bool common);

#endif
