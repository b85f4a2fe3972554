/* Waiters: threads that do what would block the loop. They prepare jobs, and they sleep until work on the GPU has
 * ended, so that a waiting loop uses no CPU.
 *
 * Each busy stream has a thread, started when needed and up to a limit: a single thread would sleep on one stream while
 * another stream's job ends. An event to sleep on costs a call 0.5 to 1 us, so it is recorded only when the loop is
 * about to sleep and one execution is in flight. With more executions in flight the event would come after all of them,
 * so a thread naps instead. Thread: loop. */
#ifndef KOPS_CUDA_WAITER_H
#define KOPS_CUDA_WAITER_H

#include "driver/device.h"

struct cuda_waiters;

struct cuda_waiters *cuda_waiters_new(struct cuda_device *d);
/* Ends the threads. NULL is allowed; returns NULL. */
struct cuda_waiters *cuda_waiters_free(struct cuda_waiters *w);

/* Gives the event to a thread, which wakes the loop when the event has happened. False: no thread is free to sleep on
 * it. `progress_ns`: the time when an end was last detected. */
bool cuda_waiters_sleep(struct cuda_waiters *w, CUevent event, uint64_t progress_ns);

/* Makes a thread wake the loop soon. False: no thread could be started. */
bool cuda_waiters_nap(struct cuda_waiters *w, uint64_t progress_ns);

/* Makes a thread call `function`, and wake the loop when that has returned; a bounded number of calls at a time. If no
 * thread can be started at all, the calling thread makes the call. False: no thread is free now. */
bool cuda_waiters_call(struct cuda_waiters *w, void (*function)(void *argument), void *argument);

/* Returns an event that has happened to its pool as soon as no thread sleeps on it. */
void cuda_waiters_adopt(struct cuda_waiters *w, enum cuda_event_kind kind, CUevent event);

#endif
