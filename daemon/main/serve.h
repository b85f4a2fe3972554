/* The server as a process: its user, its socket, its notifications, and its settings, also when they are read again.
 * Thread: main, which is the loop's. */
#ifndef KOPS_MAIN_SERVE_H
#define KOPS_MAIN_SERVE_H

#include "main/config.h"
#include "main/flags.h"
#include "server/base/config.h"

/* Serves until the end. Returns an exit status. `config` changes when it is read again. */
int serve(const struct flags *flags, struct config *config);

/* The server's settings, made of the configuration's. Texts are the configuration's. Thread: any.
 */
struct server_config server_config_of(const struct config *c);
struct quota_limits quota_limits_of(const struct config *c);

#endif
