/* The daemon's server: listens, owns connections and devices, runs requests.
 *
 * Everything here runs on one libuv loop, in the thread that calls server_run(); nothing on it blocks. */
#ifndef KOPS_SERVER_CONTROL_SERVER_H
#define KOPS_SERVER_CONTROL_SERVER_H

#include "server/base/config.h"
#include "util/error.h"

struct server;

/* `listener` is a listening, non-blocking socket whose ownership passes here. */
int server_new(const struct server_config *config, int listener, struct server **ret_server, struct error *e);

/* Until SIGTERM or SIGINT, or a lost device. Returns an exit status (enum server_exit). */
int server_run(struct server *server, const struct server_hooks *hooks);

/* Takes over what may change while the server runs; all the rest of `config` must be as it was. Limits on what a
 * connection has count for the connections that are there, too, but for the size of messages. Thread: loop, from the
 * hook reload(). */
void server_reload(struct server *server, const struct server_config *config);

/* After server_run(). NULL is allowed; returns NULL. */
struct server *server_free(struct server *server);

#endif
