/* A parallel-for: the calling thread and helper threads, each with its own scratch memory.
 *
 * Helpers start at the first run that has work for them. They poll briefly after work and then block. They run on the
 * caller's processors, except the one on which the caller begins a run. A pool of one thread has no helpers. The caller
 * waits only for helpers that joined the run, and does the others' share. Thread: one caller at a time. */
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

/* Returns the number of threads, the caller included. */
unsigned pool_threads(const struct pool *pool);

/* `thread`: 0 for the caller, else from 1 to pool_threads() - 1. */
typedef void pool_task(void *context, unsigned thread, size_t item);

/* Runs the task once for each item below `items`, in any order and on any thread; returns when all have ended. */
void pool_run(struct pool *pool, size_t items, pool_task *task, void *context);

/* Makes later runs skip items that have not begun when *stop becomes true. NULL: no items are skipped. */
void pool_watch(struct pool *pool, const atomic_bool *stop);
/* Whether *stop is true. For long tasks, and for callers between two runs. */
bool pool_is_stopped(const struct pool *pool);

/* Gives each thread at least `bytes` of scratch memory, aligned to a page. Content is lost. Errors: out_of_memory. */
int pool_reserve(struct pool *pool, size_t bytes, struct error *e);
void *pool_scratch(const struct pool *pool, unsigned thread);

/* Blocks all signals except those that faults raise, so that the process's signals go to its main thread. Call at the
 * start of a thread. */
void pool_block_signals(void);

#endif
