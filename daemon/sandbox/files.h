/* Which files a process can open: those below the paths of a list, by Landlock. Files that are open stay so.
 *
 * Beside files Landlock keeps a process from tracing processes outside of its own sandbox (and so from their memory and
 * descriptors) and, where the kernel knows of it, from the network, from abstract sockets and from sending signals to
 * others. It knows nothing of sockets that have a path.
 *
 * Thread: any. files_enter() is for the thread that calls it and for those that it starts. */
#ifndef KOPS_SANDBOX_FILES_H
#define KOPS_SANDBOX_FILES_H

#include <stdint.h>

#include "util/error.h"

/* What may be done at a path and below it. */
enum {
    FILES_READ = 1,   /* files and folders */
    FILES_WRITE = 2,  /* also cutting them */
    FILES_MAKE = 4,   /* making and removing files, no folders, devices or links */
    FILES_DEVICE = 8, /* the control calls of devices */
};

struct files {
    int ruleset;
    uint64_t known; /* the rights that this kernel's Landlock knows */
};

/* The version of this kernel's Landlock; 0: it has none, and errno says why. */
unsigned files_version(void);

int files_begin(struct files *f, struct error *e);
/* For a process that keeps the network. */
int files_begin_with_network(struct files *f, struct error *e);

/* Returns 0, or -1 with errno. Folders of /proc want `ret_fd`, a descriptor to be kept for as long as the process
 * lives: the kernel forgets them when nobody uses them, makes them anew at the next look, and the rule is for the old
 * ones. NULL: none is wanted. */
int files_allow(struct files *f, const char *path, unsigned what, int *ret_fd);

/* Ends `f`, also where it fails. */
int files_enter(struct files *f, struct error *e);

/* Ends `f` without any effect. */
void files_abandon(struct files *f);

#endif
