/* The daemon's user. Root's rights are used to make the socket, and are dropped before any device is opened or any
 * client is served. Thread: main, before others start. */
#ifndef KOPS_MAIN_PRIVILEGES_H
#define KOPS_MAIN_PRIVILEGES_H

#include <stdbool.h>
#include <sys/types.h>

#include "main/config.h"

struct privileges {
    bool drop; /* false: the process keeps its user; uid and gid name it */
    uid_t uid;
    gid_t gid;
    char *name, *home; /* owned; NULL where the user has no entry */
};

/* Looks up server.user. Only root can become another user: for others the setting is ignored with a line in the log. */
int privileges_find(const struct config *config, struct privileges *ret, struct error *e);
void privileges_free(struct privileges *p);

/* Gives the directory of the cache to the user, with the files that an earlier daemon of root's left there; makes it
 * when it is missing. Failures are reported when the cache is opened. False: the daemon may not use the directory,
 * since a third user controls its path. */
bool privileges_give_cache(const struct privileges *p, const char *directory);

/* Drops the rights for good: groups, group, user; no executed program can get any back. */
int privileges_drop(const struct privileges *p, struct error *e);

#endif
