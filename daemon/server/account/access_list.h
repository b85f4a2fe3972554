/* Lists of users and groups from the configuration. A list is resolved once, when the configuration is read, and copied
 * by value. Thread: the one that reads the configuration; looking up names may block. */
#ifndef KOPS_SERVER_ACCOUNT_ACCESS_LIST_H
#define KOPS_SERVER_ACCOUNT_ACCESS_LIST_H

#include <stdbool.h>
#include <sys/types.h>

#include "util/error.h"

enum { ACCESS_LIST_MAX = 64 };
/* The classes of methods. */
enum access_class { ACCESS_USE, ACCESS_TUNE, ACCESS_ADMINISTER };

struct access_list {
    bool everybody; /* "*" */
    unsigned n_users, n_groups;
    uid_t users[ACCESS_LIST_MAX];
    gid_t groups[ACCESS_LIST_MAX];
};

/* The lists of [access]. Root and the daemon's own user are in every list but `deny`, and `deny` does not apply to
 * them. */
struct access_policy {
    struct access_list allow, deny, tune, administer;
};

/* Parses `text`: user names and numbers, "@group" and "@gid", "*", "owner" (adds nobody: the owner is in every list),
 * separated by commas or blanks. `name` is the setting's name, for errors. */
int access_list_parse(const char *name, const char *text, struct access_list *ret, struct error *e);

/* Whether the user is in the list. `groups` are the user's groups beside `gid`. */
bool access_list_has(const struct access_list *list, uid_t uid, gid_t gid, const gid_t *groups, unsigned n_groups);

#endif
