/* The listening socket: taken from systemd, or made. */
#ifndef KOPS_MAIN_LISTEN_H
#define KOPS_MAIN_LISTEN_H

#include <stdbool.h>

#include "main/config.h"

struct listener {
    int fd;           /* listening, non-blocking; ownership passes on with it */
    int lock_fd;      /* held while we listen on a path of our own; -1 otherwise */
    const char *path; /* to unlink at the end; NULL when it is not ours */
};

/* Refuses when another daemon listens on the path; clears a stale socket. */
int listener_open(const struct config *config, struct listener *ret_listener, struct error *e);

/* Unlinks the socket where it is ours. */
void listener_close(struct listener *listener);

/* Tells the service manager `state` ("READY=1"); does nothing without NOTIFY_SOCKET. */
void notify_manager(const char *state);

#endif
