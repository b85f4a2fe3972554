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

/* The environment of a process that has, or may have, kernels of users, or must not disturb programs that share a
 * context: it is never a client of MPS, where its end would break theirs, and has few channels, since there may be many
 * such processes. `shared`: the environment as it is. The caller frees the list, not its texts. NULL: no memory. */
char **arguments_environment(bool shared);

#endif
