/* A parallel-for: the calling thread and helper threads, each with scratch memory of its own.
 *
 * Helpers start at the first call that has work for them; they poll briefly after work and then block. They run on the
 * caller's processors but the one that it has when a run begins. A pool of one thread never starts any. The caller does
 * not wait for a late helper: it does that helper's share itself, and waits only for helpers that joined. Thread: one
 * caller at a time. */
#ifndef KOPS_HOST_POOL_H
#define KOPS_HOST_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "util/error.h"

struct pool;

/* Errors: out_of_memory. */
int pool_new(unsigned threads, struct pool **ret_pool, struct error *e);
/* Joins the helpers. NULL is allowed; returns NULL. */
struct pool *pool_free(struct pool *pool);

/* The caller included. */
unsigned pool_threads(const struct pool *pool);

/* `thread` is 0 for the caller, below pool_threads() for every other. */
typedef void pool_task(void *context, unsigned thread, size_t item);

/* Runs the task once for every item below `items`, in any order and on any thread; returns when all have ended. */
void pool_run(struct pool *pool, size_t items, pool_task *task, void *context);

/* Later runs leave out items that were not begun once *stop is true. NULL: they leave out none. */
void pool_watch(struct pool *pool, const atomic_bool *stop);
/* Whether *stop is true: for tasks that are long, and for callers between two runs. */
bool pool_is_stopped(const struct pool *pool);

/* Gives each thread at least `bytes` of scratch, aligned to a page; its content is lost. Errors: out_of_memory. */
int pool_reserve(struct pool *pool, size_t bytes, struct error *e);
void *pool_scratch(const struct pool *pool, unsigned thread);

/* Blocks all signals but those that faults raise, so that the process's signals go to its main thread. For the start of
 * a thread. */
void pool_block_signals(void);

#endif
