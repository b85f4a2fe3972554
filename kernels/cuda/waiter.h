/* Threads that sleep until the GPU has done something, so that an idle loop uses no CPU.
 *
 * One thread per stream that is waited for, made at need and up to a limit: a single thread would have to wait for
 * one stream while another one's job ends. */
#ifndef KOPS_CUDA_WAITER_H
#define KOPS_CUDA_WAITER_H

#include <cuda.h>

#include "backend/backend.h"
#include "events.h"

struct cuda_waiters;

/* Thread: any; no job exists. */
struct cuda_waiters *cuda_waiters_new(struct cuda_device *d);
/* Ends the threads. NULL is allowed; returns NULL. */
struct cuda_waiters *cuda_waiters_free(struct cuda_waiters *w);

/* The vtable's arm(). */
void cuda_arm(struct backend_device *base);

/* Nobody is woken from now on; threads may sleep in the driver for ever. Thread: loop. */
void cuda_waiters_mute(struct cuda_device *d);

/* Takes over an event that has happened: it goes back to the pool when no thread sleeps on it. Thread: loop. */
void cuda_waiters_adopt(struct cuda_device *d, enum cuda_event_kind kind, CUevent event);

#endif
