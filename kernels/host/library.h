/* A shared library of others that the host device may use. It is found when the device opens, and loaded when it is
 * first needed: loading costs tens of milliseconds and megabytes. It stays loaded. Thread: any. */
#ifndef KOPS_HOST_LIBRARY_H
#define KOPS_HOST_LIBRARY_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "util/error.h"

struct library {
    const char *what;    /* "BLAS": for messages */
    const char *setting; /* the setting that names it: for messages */
    char path[PATH_MAX]; /* "": none was found */

    pthread_mutex_t lock; /* guards the members below, until `ready` */
    atomic_bool ready;
    atomic_bool failed; /* loading it has failed, or it was given up */
    struct error why;   /* the reason */
};

/* A function, written to *into; where the library has none and `optional`, *into stays. */
struct library_symbol {
    const char *name;
    void *into; /* the address of a pointer to a function */
    bool optional;
};

/* Looks for the library that `named` says ("auto", NULL: the first of `usual`, a list that ends with NULL; "none"; a
 * path) without loading it. Called when no other thread changes the environment. */
void library_init(struct library *library, const char *what, const char *setting, const char *named,
                  const char *const *usual);
void library_deinit(struct library *library);

/* Loads it once; later calls repeat the first outcome. `prepare` (NULL: nothing) runs once, before any other thread can
 * use the library. Errors: unsupported. */
int library_load(struct library *library, const struct library_symbol *symbols, unsigned count,
                 void (*prepare)(void *context), void *context, struct error *e);
/* Whether that has succeeded, so that library_load() returns at once. */
bool library_is_loaded(const struct library *library);
/* Whether it has failed, so that it always will. */
bool library_has_failed(const struct library *library);
/* A loaded library is of no use: from now on it has failed. Threads that know it may still call it. */
void library_give_up(struct library *library, const char *why);

#endif
