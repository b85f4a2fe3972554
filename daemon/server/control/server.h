/* The daemon's server: listens, owns connections and devices, runs requests. It runs on one libuv loop, in the thread
 * that calls server_run(); no function on that thread blocks. */
#ifndef KOPS_SERVER_CONTROL_SERVER_H
#define KOPS_SERVER_CONTROL_SERVER_H

#include "server/base/config.h"
#include "util/error.h"

struct server;

/* `listener` is a listening, non-blocking socket, which the server owns from here on. */
int server_new(const struct server_config *config, int listener, struct server **ret_server, struct error *e);

/* Runs until SIGTERM, SIGINT, a drain with `stop` or a lost device. Returns an exit status (enum server_exit). */
int server_run(struct server *server, const struct server_hooks *hooks);

/* Applies the settings that may change while the server runs; the others in `config` must be as before. New limits also
 * hold for existing connections, except the size of messages. Thread: loop, from the hook reload(). */
void server_reload(struct server *server, const struct server_config *config);

/* Replaces the sockets of identities: others are closed, with their connections. The server owns the descriptors.
 * `watched` is a folder whose changes lead to the hook read(); NULL: none. Called before server_run(), and then on the
 * loop's thread, after server_reload(). */
void server_serve_sockets(struct server *server, const struct server_socket *sockets, unsigned n, const char *watched);

/* Frees the server after server_run(). NULL is allowed; returns NULL. */
struct server *server_free(struct server *server);

#endif
