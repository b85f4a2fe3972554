/* Listening sockets: the daemon's own, taken from the service manager or made. A link that another user may have put in
 * the socket's place is never followed: see THREATS in listen.c. Thread: main. */
#ifndef KOPS_MAIN_LISTEN_H
#define KOPS_MAIN_LISTEN_H

#include <stdbool.h>
#include <sys/un.h>

#include "main/config.h"
#include "main/privileges.h"

struct listener {
    int fd;           /* listening, non-blocking; the caller that takes it sets -1 here */
    int lock_fd;      /* held while we listen on a path of our own; -1 otherwise */
    int directory_fd; /* folder of the path, when it is ours; -1 otherwise */
    dev_t device;     /* the socket's file: no other file is removed */
    ino_t inode;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* for the log: where clients find us */
};

/* Opens the socket. Refuses when another daemon listens on the path; clears a stale socket. The socket belongs to the
 * user that the daemon becomes. */
int listener_open(const struct config *config, const struct privileges *owner, struct listener *ret_listener,
                  struct error *e);

/* A socket at a path of its own. `group` NULL or "": the user's own. Threads may run. */
struct listener_place {
    const char *path, *group;
    mode_t mode;
};
int listener_make(const struct listener_place *place, const struct privileges *owner, struct listener *ret_listener,
                  struct error *e);
/* Gives the socket another mode and group. */
int listener_change(struct listener *listener, const struct listener_place *place, const struct privileges *owner,
                    struct error *e);
/* Tells whether the socket that was made is still at its path. */
bool listener_is_there(const struct listener *listener);

/* Closes the descriptors, and removes the socket's file where this daemon made it. */
void listener_close(struct listener *listener);

#endif
