/* Files below folders that only the present user can enter, such as root's home, for a process that becomes another
 * user.
 *
 * The process opens the folder while it can, and afterwards names the file by way of that descriptor, through /proc.
 * The file itself and the folders below must be readable for everybody, as installed libraries and headers are.
 *
 * Thread: the process's only one. */
#ifndef KOPS_SANDBOX_REACH_H
#define KOPS_SANDBOX_REACH_H

#include <limits.h>

struct reach {
    const char *path;
    const char *name; /* name below the folder: "/name" of a file, "" of a folder */
    int folder;       /* -1: not opened */
    char way[PATH_MAX];
};

/* Before the first reach_open(): frees the numbers that descriptors of folders get. */
void reach_prepare(void);

/* Opens the folder at `path`, or the folder that the file at `path` lies in. `path` stays the caller's, and as it is. A
 * folder that cannot be opened is no error here: the path is then used as it is. */
void reach_open(struct reach *r, const char *path);

/* Returns a name of the file or folder that works for the process as it is now: its path, or a path through the
 * descriptor, which stays open. Lives as long as `r`. */
const char *reach_path(struct reach *r);

/* Closes all descriptors from `first` on but those of folders. Returns 0 or -1 with errno. */
int reach_close_others(int first);

#endif
