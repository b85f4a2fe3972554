/* A third-party library that the host device may use: found when the device opens, and loaded when first needed, since
 * loading costs tens of milliseconds and megabytes. It stays loaded. Thread: any. */
#ifndef KOPS_HOST_LIBRARY_H
#define KOPS_HOST_LIBRARY_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "util/error.h"

struct library {
    const char *what;    /* kind for messages, such as "BLAS" */
    const char *setting; /* name of its setting, for messages */
    char path[PATH_MAX]; /* "": not found */

    pthread_mutex_t lock; /* guards the members below, until `ready` */
    atomic_bool ready;
    atomic_bool failed; /* loading has failed, or the library was given up */
    struct error why;   /* the reason of `failed` */
};

/* A function whose address is written to *into. *into is unchanged if the library lacks an `optional` function. */
struct library_symbol {
    const char *name;
    void *into; /* address of a function pointer */
    bool optional;
};

/* Finds the library, without loading it. `named`: a path; "none"; "auto" or NULL: the first one found of `usual`, which
 * is NULL-terminated. Call while no other thread changes the environment. */
void library_init(struct library *library, const char *what, const char *setting, const char *named,
                  const char *const *usual);
void library_deinit(struct library *library);

/* Loads the library once; later calls repeat the first outcome. `prepare` (may be NULL) runs once, before any other
 * thread can use the library. Errors: unsupported. */
int library_load(struct library *library, const struct library_symbol *symbols, unsigned count,
                 void (*prepare)(void *context), void *context, struct error *e);
/* Whether library_load() has succeeded, so that it returns at once. */
bool library_is_loaded(const struct library *library);
/* Whether library_load() has failed, so that it always will. */
bool library_has_failed(const struct library *library);
/* Makes a loaded library count as failed. Threads that already use it may still call it. */
void library_give_up(struct library *library, const char *why);

#endif
