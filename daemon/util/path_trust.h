/* Users who can change a file, or put another one in its place: the owners and writers of the file, of every folder on
 * its path, and of the links that lead there. Thread: any. */
#ifndef KOPS_UTIL_PATH_TRUST_H
#define KOPS_UTIL_PATH_TRUST_H

#include <stdbool.h>
#include <sys/stat.h>

#include "util/error.h"

/* PATH_OWNERS: the owners of the file, the folders and the links. In a folder that others may write to they can only
 * put files of their own, which are not trusted. PATH_WRITERS: also users who may write there. */
enum path_hands { PATH_OWNERS, PATH_WRITERS };

/* Checks that only root, the process's user, `also` and the owner of / can change the file or folder. In a folder that
 * others may write to, the sticky bit keeps them from replacing files of others. `opened`: the file as it was opened by
 * that path; NULL: the file, or the end of its path, may not exist yet. Fails with permission_denied, which names who
 * can change it and what to do. *ret_closed (NULL is allowed): a folder on the way keeps all others out nevertheless.
 */
int path_trust(const char *path, const struct stat *opened, uid_t also, enum path_hands hands, bool *ret_closed,
               struct error *e);

#endif
