/* Places of a daemon that clients start: its socket, its lock and its log. Thread: main, the only one. */
#ifndef KOPS_MAIN_AUTOSTART_PLACE_H
#define KOPS_MAIN_AUTOSTART_PLACE_H

#include <limits.h>
#include <sys/un.h>

#include "util/error.h"

struct place {
    int directory_fd;
    char socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

enum { PLACE_TRIED_BYTES = 1024 };

/* Finds the user's private directory, or makes one. After an error `tried` has a line for each directory, with the
 * reason. */
int place_find(struct place *ret, char tried[PLACE_TRIED_BYTES], struct error *e);
void place_close(struct place *p);

/* Opens a regular file of the user's in the directory, and makes it where it is missing. Returns the descriptor, or -1
 * with errno. */
int place_open(const struct place *p, const char *name, int flags);

/* Opens the log: in the user's directory for state, or beside the socket where that cannot be written. */
int place_open_log(const struct place *p, char path[PATH_MAX], int *ret_fd, struct error *e);

#endif
