/* Places where a client and a daemon meet: the sockets to try, and the servers to trust there.
 *
 * libkops and the daemon compile this file in. The Python client has the same rule (client_py/kops/_session/plain.py);
 * both run tests/vectors/places.json. For people the rule is in deploy/README.md, "Where clients look". Thread-safe. */
#ifndef KOPS_UTIL_PLACES_H
#define KOPS_UTIL_PLACES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { PLACES_MAX = 4, PLACE_BYTES = 256 };

#define PLACES_SYSTEM "/run/kopsd/kopsd.sock" /* socket of the machine's daemon */

typedef bool places_private(const char *folder);

/* Lists the sockets to try, in order: those of the user's own folders up to the first private one, where a daemon of
 * the user's is started, then the system's. `runtime` is XDG_RUNTIME_DIR or NULL. Returns their number. */
unsigned places_list(const char *runtime, uid_t uid, places_private *is_private, char paths[PLACES_MAX][PLACE_BYTES]);

/* places_list() for this process. */
unsigned places_of_process(char paths[PLACES_MAX][PLACE_BYTES]);

/* Opens a folder that belongs to this process's user and that others may not write to. -1: *ret_why is the reason. */
int places_open_private(const char *folder, const char **ret_why);

#define PLACES_NOBODY ((uid_t)-1) /* no user */

/* A server that has taken a connection, as this process sees it. */
struct place_server {
    uid_t uid, self;
    uid_t kops;         /* the user kops */
    uid_t unmapped;     /* the number of every user from outside this process's user namespace */
    uid_t folder;       /* the owner of the socket's folder */
    bool folder_shared; /* others may write to it */
    bool parent_shared; /* others may write to the folder above */
    bool system;        /* the socket is PLACES_SYSTEM */
    bool named;         /* KOPS_TRUST_USER has the server's user */
};

bool places_trusts(const struct place_server *s);

/* Tells whether the server at a connected socket is trusted; otherwise `why` says who serves there and what to do. */
bool places_check(const char *path, int fd, char *why, size_t size);

/* Explains why connect() to a path failed; for EACCES also who may connect, and how to become one of them. */
void places_explain(const char *path, int error, char *why, size_t size);

#endif
