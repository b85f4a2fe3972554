/* Files that a process can open, limited by Landlock to the paths of a list and below. Files that are open stay so.
 *
 * Landlock also keeps a process from tracing processes outside of its own sandbox (and so from their memory and
 * descriptors) and, where the kernel supports it, from the network, from abstract sockets and from sending signals to
 * others. Landlock does not restrict sockets that have a path.
 *
 * Thread: any. files_enter() applies to the calling thread and to the threads that it starts. */
#ifndef KOPS_SANDBOX_FILES_H
#define KOPS_SANDBOX_FILES_H

#include <stdint.h>

#include "util/error.h"

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

#endif
