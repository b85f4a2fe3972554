/* What the kernel keeps a process from: opening files, by Landlock, and making system calls, by seccomp. */
#ifndef KOPS_SANDBOX_FILTER_H
#define KOPS_SANDBOX_FILTER_H

#include <limits.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/error.h"

/* ---- files that a process can open ----
 *
 * Landlock limits them to the paths of a list and below. Files that are open stay so. Landlock also keeps a process
 * from tracing processes outside of its own sandbox (and so from their memory and descriptors) and, where the kernel
 * supports it, from the network, from abstract sockets and from sending signals to others. Landlock does not restrict
 * sockets that have a path.
 *
 * Thread: any. files_enter() applies to the calling thread and to the threads that it starts. */

/* Rights at a path and below it. */
enum {
    FILES_READ = 1,   /* read files and list folders */
    FILES_WRITE = 2,  /* write files, and shorten them */
    FILES_MAKE = 4,   /* make and remove files, but no folders, devices or links */
    FILES_DEVICE = 8, /* make the control calls of devices */
};

struct files {
    int ruleset;
    uint64_t known; /* the rights that this kernel's Landlock supports */
};

/* Returns the version of this kernel's Landlock; 0: it has none, and errno says why. */
unsigned files_version(void);

int files_begin(struct files *f, struct error *e);
/* Begins a list for a process that keeps the network. */
int files_begin_with_network(struct files *f, struct error *e);

/* Allows a path. Returns 0, or -1 with errno. Folders of /proc need `ret_fd`, a descriptor to keep for as long as the
 * process lives: the kernel forgets unused folders there and makes them anew at the next look, but the rule is for the
 * old ones. NULL: not needed. */
int files_allow(struct files *f, const char *path, unsigned what, int *ret_fd);

/* Applies the list, and ends `f`, also where it fails. */
int files_enter(struct files *f, struct error *e);

/* Ends `f` without applying it. */
void files_abandon(struct files *f);

/* ---- files below folders that only the present user can enter ----
 *
 * Such as root's home, for a process that becomes another user. The process opens the folder while it can, and
 * afterwards names the file by way of that descriptor, through /proc. The file itself and the folders below must be
 * readable for everybody, as installed libraries and headers are.
 *
 * Thread: the process's only one. */

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

/* ---- system calls that a process can make; thread: any, before calls_enter() ---- */

/* Tells whether this kernel has filters. */
bool calls_available(void);

/* Makes a filter. `otherwise`: action for calls in none of its lists. NULL: no memory. */
scmp_filter_ctx calls_new(uint32_t otherwise);

/* Adds calls, whatever their arguments are. A call that this machine does not have is no error. Returns 0, or a
 * negative errno, as libseccomp's functions do. */
int calls_add(scmp_filter_ctx filter, uint32_t action, const int *calls, size_t n);

/* Calls of a process that reads files and computes: files (limited by Landlock), memory (without mapping or protecting
 * for execution), the process itself, time. */
extern const int calls_common[];
extern const size_t calls_common_n;

/* Applies the filter to this thread and threads that it starts; `all`: also to the process's other threads. Ends the
 * filter, also where that fails. `r` is the result of making the filter: where it is negative, the filter is only
 * ended. */
int calls_enter(scmp_filter_ctx filter, int r, bool all, struct error *e);

#endif
